"""Text from elsewhere, made safe for a terminal: a name or an error message must not move its cursor."""

from __future__ import annotations

from unicodedata import category

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control and format characters (ESC, C1, bidirectional overrides), lone surrogates, and separators of lines."""


def printable(text: str, *, keep: str = "") -> str:
    r"""Return a text with escapes such as `\x1b` in the place of characters that a terminal would obey.

    Args:
        text: The text.
        keep: Characters that stay as they are, such as a line feed.
    """
    if text.isprintable():
        return text
    return "".join(_escaped(c) if category(c) in _UNSAFE and c not in keep else c for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
