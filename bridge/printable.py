"""Text for a terminal, which obeys control characters: names and messages of a server must not give it orders."""

from __future__ import annotations

import re
from typing import Any, Final

_ORDERS: Final = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # all of C0 and C1 but tab and newline: ESC and CSI among them
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # they end lines, or turn the direction of writing
    "\ud800-\udfff"  # no terminal's encoding has them
    "]"
)
_NAMES: Final = frozenset(
    {"columns", "leaves", "name", "path", "publications", "relation", "root", "slot_name", "subject"}
)
"""Keys of the commands' documents that have names: one with a newline must not look like two lines."""


def printable(text: str) -> str:
    r"""Return a text with control characters as psql shows them, such as \x1B; newlines and tabs are kept."""
    return _ORDERS.sub(_shown, text)


def one_line(text: str) -> str:
    r"""Return a name, or a sentence with names, as `printable` does, and with \n and \t for newline and tab."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable_document(value: Any, key: str = "") -> Any:
    """Return a document of a command with all its texts printable, names in one line.

    Args:
        value: A JSON value.
        key: Its key.
    """
    match value:
        case str():
            return one_line(value) if key in _NAMES else printable(value)
        case list():
            return [printable_document(item, key) for item in value]
        case dict():
            return {name: printable_document(item, name) for name, item in value.items()}
        case _:
            return value


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02X}" if code <= 0xFF else f"\\u{code:04X}"
