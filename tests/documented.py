"""Code blocks of the documentation, and the server of its examples, for tests that run what is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = ("pgbridge", "demo", "--server-only")
"""As the documentation starts it."""


def block_with(page: str, first: str) -> list[str]:
    """The lines of the code block that has this line, from it on."""
    for block in re.findall(r"^```.*?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        lines: list[str] = block.splitlines()
        if first in lines:
            return lines[lines.index(first) + 1 :]
    raise AssertionError(f"there is no {first!r}")


def environment() -> dict[str, str]:
    """That of a shell in which the environment of the tests is active."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@contextmanager
def shop_server(folder: Path) -> Iterator[list[str]]:
    """Run the examples' server; yield the two lines that it prints, the second of which is the connection string."""
    with subprocess.Popen(SERVER, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield [server.stdout.readline().strip() for _ in range(2)]
        finally:
            server.terminate()
        assert server.wait(30) == 0
