"""Code blocks of the documentation, and the server of its examples, for tests that run what is written."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SERVER = ("pgbridge", "demo", "--server-only")
"""As the documentation starts it."""


def block_with(page: str, first: str) -> list[str]:
    """The lines of the code block that has this line, from it on."""
    for block in re.findall(r"^```.*?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        lines: list[str] = block.splitlines()
        if first in lines:
            return lines[lines.index(first) + 1 :]
    raise AssertionError(f"there is no {first!r}")


def code_of(page: str, language: str, section: str = "") -> list[str]:
    """The code blocks of a language, of a page's text or of a section of it."""
    if section:
        page = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def printed(shown: str, spark: SparkSession, lake: str, warehouse: str) -> tuple[str, str]:
    """What the lines of a program print, and what the page says that they do.

    Args:
        lake: The warehouse on the page.
        warehouse: The warehouse.
    """
    names = {"spark": spark}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        for line in shown.splitlines():
            if line.startswith(">>> "):
                exec(line.removeprefix(">>> ").replace(lake, warehouse), names)
    said = "".join(f"{line}\n" for line in shown.splitlines() if not line.startswith(">>> "))
    return output.getvalue().replace("\n\n", "\n"), said


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
