"""Code blocks of the documentation, for tests that hold them against what really happens."""

from __future__ import annotations

import re


def block_with(page: str, first: str) -> list[str]:
    """The lines of the code block that has this line, from it on."""
    for block in re.findall(r"^```.*?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        lines: list[str] = block.splitlines()
        if first in lines:
            return lines[lines.index(first) + 1 :]
    raise AssertionError(f"there is no {first!r}")
