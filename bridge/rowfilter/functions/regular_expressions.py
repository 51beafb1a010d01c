r"""The operators ~, !~, ~* and !~*: PostgreSQL's regular expressions as Java's, where both mean the same.

The common part of both languages is translated: characters, `.`, brackets, groups, `|`, `*`, `+`, `?`, `{m,n}`, `^`,
`$` and escaped punctuation; also `\d`, `\w`, `\s` and case-insensitive matching in a collation that knows only the
letters, digits and spaces of ASCII. Back references and look-around, on which the two engines may differ, are refused.
Whether a repetition is greedy does not matter, since only the existence of a match does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.rowfilter.functions.text import literal_pattern, match, null_match
from pgbridge.bridge.rowfilter.types.typed import STRINGS, Typed
from pgbridge.bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from pgbridge.bridge.rowfilter.types.pg_catalog import Signature

_OPERATORS: Final = frozenset({"~", "!~", "~*", "!~*"})

_MAX_REPEATS: Final = 255  # DUPMAX
_CLASSES: Final = {"d": "0-9", "w": "A-Za-z0-9_", "s": " \\t\\n\\x0B\\f\\r"}
_NAMED: Final = {
    "digit": "0-9", "alpha": "A-Za-z", "alnum": "A-Za-z0-9", "upper": "A-Z", "lower": "a-z",
    "space": " \\t\\n\\x0B\\f\\r", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_BRACES: Final = re.compile(r"\{(\d{1,3})(,(\d{1,3})?)?\}", re.ASCII)


def operator(name: str, signature: Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate ~, !~, ~* or !~* on a string; None for any other operator.

    Raises:
        Refused: The pattern is not a literal, or may not mean the same in Java.
    """
    if name not in _OPERATORS or signature.arguments[0] not in STRINGS:
        return None
    pattern, collation = literal_pattern(arguments, at)
    if pattern is None:
        return null_match(arguments, at)
    java = regular_expression(pattern, any_case=name.endswith("*"), ascii_types=collation.ascii_case)
    return match(lambda text: text.rlike(java), arguments, at, negated=name.startswith("!"))


def regular_expression(pattern: str, *, any_case: bool, ascii_types: bool) -> str:
    """Translate an advanced regular expression to a Java expression that matches the same texts.

    Args:
        pattern: The regular expression.
        any_case: Whether to ignore case.
        ascii_types: Whether the collation knows only the letters, digits and spaces of ASCII.

    Raises:
        Refused: The expression is invalid, or may not mean the same in Java.
    """
    if any_case and not ascii_types:
        raise Refused('case depends on the collation, which only the server knows; it is translated in collation "C"')
    if pattern.startswith("***"):
        raise Refused("directors (***) are not translated")
    reader = _Reader(pattern, ascii_types)
    java = reader.alternatives()
    if reader.position < len(pattern):
        raise Refused(f"invalid regular expression: parentheses () not balanced in {pattern!r}")
    return f"(?{'i' if any_case else ''}s){java}"


class _Reader:
    def __init__(self, pattern: str, ascii_types: bool) -> None:
        self.pattern = pattern
        self.position = 0
        self._ascii_types = ascii_types

    def _here(self, count: int = 1) -> str:
        return self.pattern[self.position : self.position + count]

    def _take(self, count: int = 1) -> str:
        taken = self._here(count)
        if len(taken) < count:
            raise Refused(f"invalid regular expression: {self.pattern!r} ends too early")
        self.position += count
        return taken

    def _untranslated(self, what: str) -> Refused:
        return Refused(f"{what} in the regular expression {self.pattern!r} is not translated")

    def alternatives(self) -> str:
        branches = [self._branch()]
        while self._here() == "|":
            self._take()
            branches.append(self._branch())
        return "|".join(branches)

    def _branch(self) -> str:
        java = ""
        while self._here() not in {"", "|", ")"}:
            java += self._piece()
        return java

    def _piece(self) -> str:
        character = self._take()
        if character in "^$":
            if self._here() in {"*", "+", "?", "{"}:
                raise self._untranslated("a repeated anchor")
            return r"\A" if character == "^" else r"\z"
        if character in "*+?{":
            raise self._untranslated(f"{character} with nothing before it")
        return self._atom(character) + self._repeats()

    def _atom(self, character: str) -> str:
        if character == "(":
            return self._group()
        if character == "[":
            return self._bracket()
        if character == "\\":
            return self._escape(brackets=False)
        return "." if character == "." else _literal(character)

    def _group(self) -> str:
        if self._here() == "?":
            self._take()
            if self._take() != ":":
                raise self._untranslated("(?")
        elif self._here() == "*":
            raise self._untranslated("(*")
        inner = self.alternatives()
        if self._here() != ")":
            raise Refused(f"invalid regular expression: parentheses () not balanced in {self.pattern!r}")
        self._take()
        return f"(?:{inner})"

    def _repeats(self) -> str:
        character = self._here()
        if character == "{":
            braces = _BRACES.match(self.pattern, self.position)
            if not braces:
                raise self._untranslated("{ without numbers")
            low, high = int(braces[1]), int(braces[3] or braces[1])
            if not low <= high <= _MAX_REPEATS:
                raise Refused(f"invalid regular expression: invalid repetition count(s) in {self.pattern!r}")
            java = braces[0]
        elif character and character in "*+?":
            java = character
        else:
            return ""
        self._take(len(java))
        if self._here() == "?":  # a non-greedy repetition matches the same texts
            self._take()
        if self._here() and self._here() in "*+?{":
            raise self._untranslated("a repeated repetition")
        return java

    def _escape(self, *, brackets: bool) -> str:
        character = self._take()
        if character in _CLASSES:
            self._needs_ascii(f"\\{character}")
            return _CLASSES[character] if brackets else f"[{_CLASSES[character]}]"
        if character in "nrtf":
            return f"\\{character}"
        if character.isascii() and not character.isalnum():
            return _literal(character)
        raise self._untranslated(f"\\{character}")

    def _needs_ascii(self, what: str) -> None:
        if not self._ascii_types:
            raise Refused(
                f'{what} depends on the collation, which only the server knows; it is translated in collation "C"'
            )

    def _bracket(self) -> str:
        java = "["
        if self._here() == "^":
            java += self._take()
        if self._here() == "]":
            raise self._untranslated("[] with ] in it")
        while self._here() != "]":
            java += self._range()
        self._take()
        return java + "]"

    def _range(self) -> str:
        start = self._take()
        if start == "[" and self._here() in {":", ".", "="}:
            return self._named_class()
        if start == "-" and self._here() != "]" and self.pattern[self.position - 2] not in "[^":
            raise self._untranslated("a - between other things in []")
        if start == "\\":
            escaped = self._here()
            low = self._escape(brackets=True)
            if self._here() == "-" and self._here(2) != "-]":
                raise self._untranslated("a range from an escape")
            return low if escaped else ""
        if self._here() != "-" or self._here(2) == "-]":
            return _literal(start)
        self._take()
        end = self._take()
        if end in "\\[":
            raise self._untranslated("a range to an escape")
        if end < start:
            raise Refused(f"invalid regular expression: invalid character range in {self.pattern!r}")
        return f"{_literal(start)}-{_literal(end)}"

    def _named_class(self) -> str:
        kind = self._take()
        end = self.pattern.find(f"{kind}]", self.position)
        name = self.pattern[self.position : max(end, self.position)]
        if kind != ":" or name not in _NAMED:
            raise self._untranslated(f"[{kind}{name}{kind}]")
        self._needs_ascii(f"[:{name}:]")
        self._take(len(name) + 2)
        if self._here() == "-" and self._here(2) != "-]":
            raise self._untranslated("a range from a class")
        return _NAMED[name]


def _literal(character: str) -> str:
    """A literal character, also within brackets."""
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"
