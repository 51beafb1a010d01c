"""LIKE and ILIKE: the operators ~~, !~~, ~~* and !~~*, and `like_escape`, the function behind ESCAPE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Column, functions as F

from bridge.rowfilter.types.typed import STRINGS, Apply, Collation, Constant, Typed, collation_of, constant
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from bridge.rowfilter.types.pg_catalog import Signature

_OPERATORS: Final = frozenset({"~~", "!~~", "~~*", "!~~*"})


def operator(name: str, signature: Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate LIKE or ILIKE of a string; None for any other operator.

    A value of type char is matched with its trailing blanks.

    Raises:
        Refused: The pattern is not a literal, or the collation may match in another way.
    """
    if name not in _OPERATORS or signature.arguments[0] not in STRINGS:
        return None
    pattern, collation = literal_pattern(arguments, at)
    if pattern is None:
        return null_match(arguments, at)
    any_case = name.endswith("*")
    if any_case and not collation.ascii_case:
        raise Refused(
            f'case depends on collation "{collation.name}", which only the server knows; '
            'ILIKE … COLLATE "C" is translated',
            at,
        )
    return match(_like(pattern, any_case=any_case), arguments, at, negated=name.startswith("!"))


def function(name: str, _signature: Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate `like_escape` of two literals; None for any other function.

    Raises:
        Refused: The escape or the pattern is invalid.
    """
    if name != "like_escape" or not all(isinstance(argument, Constant) for argument in arguments):
        return None
    pattern, escape = (argument.value for argument in arguments if isinstance(argument, Constant))
    escaped = None if pattern is None or escape is None else like_escaped(pattern, escape)
    return constant("text", escaped, at, collation_of(arguments, at))


def literal_pattern(arguments: tuple[Typed, ...], at: int) -> tuple[str | None, Collation]:
    """The pattern of a string and a pattern, None for NULL, and the collation by which they are matched.

    Raises:
        Refused: The pattern is not a literal, or the collation is nondeterministic.
    """
    pattern = arguments[1]
    if not isinstance(pattern, Constant):
        raise Refused("a pattern that is not a literal is not translated", pattern.at)
    collation = collation_of(arguments, at)
    if not collation.deterministic:
        raise Refused(f'matching by the nondeterministic collation "{collation.name}" is not translated', at)
    return pattern.value, collation


def match(apply: Apply, arguments: tuple[Typed, ...], at: int, *, negated: bool) -> Typed:
    """Whether the string, the first argument, matches."""
    return Typed("bool", at, (lambda text: ~apply(text)) if negated else apply, arguments[:1])


def null_match(arguments: tuple[Typed, ...], at: int) -> Typed:
    """The result of a pattern that is NULL."""
    return Typed("bool", at, lambda _: F.lit(None).cast("boolean"), arguments[:1])


class Pattern(NamedTuple):
    """The test that a pattern of LIKE stands for.

    Attributes:
        kind: equals, starts, ends or contains: `text` is literal; matches: `text` is a Java regular expression.
    """

    kind: str
    text: str


def pattern_of(pattern: str) -> Pattern:
    """Read a pattern of LIKE whose escape character is the backslash.

    Raises:
        Refused: The pattern ends with the escape character.
    """
    parts: list[str | None] = []  # a literal character; None for %, an empty string for _
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
            if position == len(pattern):
                raise Refused("LIKE pattern must not end with escape character")
            parts.append(pattern[position])
        else:
            parts.append({"%": None, "_": ""}.get(character, character))
        position += 1
    if "" not in parts:
        text = "".join(part for part in parts if part)
        inner = parts[1:-1]
        first, last = (parts[0] is None, parts[-1] is None) if parts else (False, False)
        if None not in parts:
            return Pattern("equals", text)
        if None not in inner and len(text) == len(parts) - (first + last if len(parts) > 1 else first):
            return Pattern("contains" if first and last else "ends" if first else "starts", text)
    java = "".join(".*" if part is None else "." if part == "" else _quoted(part) for part in parts)
    return Pattern("matches", rf"(?s)\A{java}\z")


def like_escaped(pattern: str, escape: str) -> str:
    """Rewrite a pattern with the backslash as its escape character (`like_escape`).

    Raises:
        Refused: The escape has more than one character, or the pattern ends with it.
    """
    if len(escape) > 1:
        raise Refused("invalid escape string: Escape string must be empty or one character.")
    if escape == "\\":
        return pattern
    result, position = "", 0
    while position < len(pattern):
        character = pattern[position]
        if escape and character == escape:
            position += 1
            if position == len(pattern):
                raise Refused("LIKE pattern must not end with escape character")
            result += "\\" + pattern[position]
        else:
            result += "\\\\" if character == "\\" else character
        position += 1
    return result


def _like(pattern: str, *, any_case: bool) -> Apply:
    kind, text = pattern_of(pattern)
    if any_case:
        return _ilike(kind, text)
    simple = {
        "equals": lambda column: column == F.lit(text),
        "starts": lambda column: F.startswith(column, F.lit(text)),
        "ends": lambda column: F.endswith(column, F.lit(text)),
        "contains": lambda column: F.contains(column, F.lit(text)),
    }
    return simple.get(kind) or _matches(text)


def _ilike(kind: str, text: str) -> Apply:
    if kind == "matches":
        return _matches(f"(?i){text}")
    start = r"\A" if kind in {"equals", "starts"} else ""
    end = r"\z" if kind in {"equals", "ends"} else ""
    return _matches(f"(?is){start}{''.join(map(_quoted, text))}{end}")


def _quoted(character: str) -> str:
    """A Java regular expression for a literal character."""
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"


def _matches(java: str) -> Apply:
    def apply(column: Column) -> Column:
        return column.rlike(java)

    return apply
