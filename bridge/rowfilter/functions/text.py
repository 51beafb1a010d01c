"""Operators and functions on text and bytea, LIKE among them; a character is a code point, in Spark as in PostgreSQL.

LIKE and ILIKE are the operators ~~, !~~, ~~* and !~~*, and `like_escape` is the function behind ESCAPE.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Column, functions as F

from pgbridge.bridge.rowfilter.types import pg_catalog, typed
from pgbridge.bridge.rowfilter.types.typed import STRINGS, Apply, Collation, Constant, Typed
from pgbridge.bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable


_LEAST: Final = -(1 << 31)
_END: Final = (1 << 31) - 1  # no string has as many characters
_MAX_BYTES: Final = 0x3FFFFFFF - 4  # MaxAllocSize without a header
_CHARACTER_BYTES: Final = 4  # the most that a character has in UTF-8
_TOO_LARGE: Final = "requested length too large"


def operator(name: str, signature: pg_catalog.Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate || of text or bytea, and ^@; None for any other operator."""
    if name == "||" and signature.arguments in {("text", "text"), ("bytea", "bytea")}:
        return Typed(signature.result, at, F.concat, arguments, strength=typed.merged(arguments))
    return Typed("bool", at, F.startswith, arguments) if name == "^@" else None


def function(name: str, signature: pg_catalog.Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate a function on text or bytea; None for any other function.

    Raises:
        Refused: The function is not translated for these arguments.
    """
    apply = _apply(name, signature, arguments, at)
    if apply is None:
        return None
    strength = typed.merged(arguments) if signature.result == "text" else None
    return Typed(signature.result, at, apply, arguments, strength=strength)


def _apply(name: str, signature: pg_catalog.Signature, arguments: tuple[Typed, ...], at: int) -> Apply | None:
    if name in {"lower", "upper"} and signature.arguments == ("text",):
        return _change_case(name, arguments, at)
    if name in {"position", "strpos", "replace", "split_part", "starts_with"}:
        collation = typed.collation_of(arguments, at)
        if not collation.deterministic:
            raise Refused(f'{name} by the nondeterministic collation "{collation.name}" is not translated', at)
    apply = _FUNCTIONS.get((name, *signature.arguments))
    if apply is not None and name in {"btrim", "ltrim", "rtrim"} and len(arguments) > 1:
        _check_trimmed(arguments[1], at)
    return apply


def _change_case(name: str, arguments: tuple[Typed, ...], at: int) -> Apply:
    collation = typed.collation_of(arguments, at)
    if not collation.ascii_case:
        raise Refused(
            f'{name} depends on collation "{collation.name}", which only the server knows; '
            f'{name}(… COLLATE "C") is translated',
            at,
        )
    letters = (string.ascii_uppercase, string.ascii_lowercase)
    source, target = letters if name == "lower" else letters[::-1]
    return lambda text: F.translate(text, source, target)


def _check_trimmed(characters: Typed, at: int) -> None:
    if not isinstance(characters, Constant):
        raise Refused("trimming characters that are not a literal is not translated", at)


def _window(text: Column, start: Column, count: Column) -> Column:
    """`substring(text, start, count)`: positions before the first are counted, though they have no characters."""
    first = start.cast("bigint")
    after = first + count.cast("bigint")
    begin = F.greatest(first, F.lit(1))
    size = F.least(F.greatest(after - begin, F.lit(0)), F.lit(_END))
    part = text.substr(F.least(begin, F.lit(_END)).cast("int"), size.cast("int"))
    # least and greatest ignore NULL
    known = text.isNotNull() & first.isNotNull() & count.isNotNull()
    return F.when(known & (count < 0), typed.failure("negative substring length not allowed")).when(known, part)


def _from(text: Column, start: Column) -> Column:
    return F.when(start.isNotNull(), text.substr(F.greatest(start, F.lit(1)), F.lit(_END)))


def _left(text: Column, count: Column) -> Column:
    size = F.when(count >= 0, count.cast("bigint")).when(count < 0, F.length(text) + count.cast("bigint"))
    # greatest ignores NULL
    return F.when(size.isNotNull(), text.substr(F.lit(1), F.greatest(size, F.lit(0)).cast("int")))


def _right(text: Column, count: Column) -> Column:
    size = count.cast("bigint")
    start = F.when(size >= 0, F.length(text) - size + 1).when(size < 0, 1 - size)
    start = F.when(size == _LEAST, 1).otherwise(start)  # text_right cannot negate it
    part = text.substr(F.least(F.greatest(start, F.lit(1)), F.lit(_END)).cast("int"), F.lit(_END))
    return F.when(start.isNotNull(), part)


def _position(text: Column, part: Column) -> Column:
    return F.call_function("instr", text, part)


def _replace(text: Column, source: Column, target: Column) -> Column:
    # an empty source replaces nothing, in Spark as in PostgreSQL
    return F.replace(text, source, target)


def _repeat(text: Column, count: Column) -> Column:
    size = F.octet_length(text).cast("bigint") * count
    return F.when(size > _MAX_BYTES, typed.failure(_TOO_LARGE)).otherwise(F.call_function("repeat", text, count))


def _padded(name: str) -> Callable[..., Column]:
    def apply(text: Column, size: Column, fill: Column | None = None) -> Column:
        fill = F.lit(" ") if fill is None else fill
        too_large = (size > _MAX_BYTES // _CHARACTER_BYTES) & (F.length(fill) > 0) & text.isNotNull()
        return F.when(too_large, typed.failure(_TOO_LARGE)).otherwise(F.call_function(name, text, size, fill))

    return apply


def _overlay(text: Column, part: Column, start: Column, count: Column | None = None) -> Column:
    behind = start + (F.length(part) if count is None else count)
    replaced = F.concat(text.substr(F.lit(1), start - 1), part, _from(text, behind))
    known = text.isNotNull() & part.isNotNull() & behind.isNotNull()
    return F.when(known & (start <= 0), typed.failure("negative substring length not allowed")).when(known, replaced)


def _split_part(text: Column, delimiter: Column, number: Column) -> Column:
    known = text.isNotNull() & delimiter.isNotNull() & number.isNotNull()
    zero = typed.failure("field position must not be zero")
    # greatest ignores NULL; the least integer cannot be negated
    within = F.greatest(number, F.lit(-_END))
    return F.when(known & (number == 0), zero).when(known, F.split_part(text, delimiter, within))


_FUNCTIONS: Final[dict[tuple[str, ...], Callable[..., Column]]] = {
    **{(name, "text"): F.length for name in ("length", "char_length", "character_length")},
    **{
        (name, "bpchar"): lambda text: F.length(F.rtrim(text)) for name in ("length", "char_length", "character_length")
    },
    ("length", "bytea"): F.octet_length,
    ("octet_length", "bytea"): F.octet_length,
    ("octet_length", "text"): F.octet_length,
    ("octet_length", "bpchar"): F.octet_length,
    **{(name, "text", "int4", "int4"): _window for name in ("substr", "substring")},
    **{(name, "text", "int4"): _from for name in ("substr", "substring")},
    ("left", "text", "int4"): _left,
    ("right", "text", "int4"): _right,
    ("btrim", "text"): F.btrim,
    ("ltrim", "text"): F.ltrim,
    ("rtrim", "text"): F.rtrim,
    ("btrim", "text", "text"): F.btrim,
    ("ltrim", "text", "text"): F.ltrim,
    ("rtrim", "text", "text"): F.rtrim,
    ("position", "text", "text"): _position,
    ("strpos", "text", "text"): _position,
    ("starts_with", "text", "text"): F.startswith,
    ("replace", "text", "text", "text"): _replace,
    ("reverse", "text"): F.reverse,
    ("repeat", "text", "int4"): _repeat,
    **{(name, "text", "int4", *fill): _padded(name) for name in ("lpad", "rpad") for fill in ((), ("text",))},
    ("translate", "text", "text", "text"): lambda *given: F.call_function("translate", *given),
    ("overlay", "text", "text", "int4"): _overlay,
    ("overlay", "text", "text", "int4", "int4"): _overlay,
    ("split_part", "text", "text", "int4"): _split_part,
}


_OPERATORS: Final = frozenset({"~~", "!~~", "~~*", "!~~*"})


def like_operator(name: str, signature: pg_catalog.Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
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


def like_escape(name: str, _signature: pg_catalog.Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate `like_escape` of two literals; None for any other function.

    Raises:
        Refused: The escape or the pattern is invalid.
    """
    if name != "like_escape" or not all(isinstance(argument, Constant) for argument in arguments):
        return None
    pattern, escape = (argument.value for argument in arguments if isinstance(argument, Constant))
    escaped = None if pattern is None or escape is None else like_escaped(pattern, escape)
    return typed.constant("text", escaped, at, typed.collation_of(arguments, at))


def literal_pattern(arguments: tuple[Typed, ...], at: int) -> tuple[str | None, Collation]:
    """The pattern of a string and a pattern, None for NULL, and the collation by which they are matched.

    Raises:
        Refused: The pattern is not a literal, or the collation is nondeterministic.
    """
    pattern = arguments[1]
    if not isinstance(pattern, Constant):
        raise Refused("a pattern that is not a literal is not translated", pattern.at)
    collation = typed.collation_of(arguments, at)
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
