"""The database's encoding: which operators and functions have the same results on values in UTF-8.

The server compares, cuts and counts text in the database's encoding, but pgbridge receives all text in UTF-8. What
depends on the difference is refused, and so is every function on text that is not known to be independent of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pgbridge.bridge.rowfilter.types.typed import STRINGS, Constant, Typed, element
from pgbridge.bridge.sqltext.refusal import Refused


@dataclass(frozen=True, slots=True)
class Encoding:
    """A database's encoding, compared with UTF-8.

    Attributes:
        name: The name that pg_encoding_to_char returns.
        one_to_one: Whether different texts are different in UTF-8, too.
        characters: Whether each character is one code point of Unicode.
        ordered: Whether texts sort by their bytes as they do in UTF-8.
        octets: Whether a text has the same bytes in UTF-8.
    """

    name: str
    one_to_one: bool = False
    characters: bool = False
    ordered: bool = False
    octets: bool = False


UTF8: Final = Encoding("UTF8", one_to_one=True, characters=True, ordered=True, octets=True)
_KNOWN: Final = {
    "UTF8": UTF8,
    # the server does not convert it, and takes each byte for a character
    "SQL_ASCII": Encoding("SQL_ASCII", one_to_one=True, ordered=True, octets=True),
    # each byte is the code point of the same number
    "LATIN1": Encoding("LATIN1", one_to_one=True, characters=True, ordered=True),
}
_ONE_TO_ONE: Final = frozenset(
    {
        "EUC_CN", "EUC_KR", "LATIN2", "LATIN3", "LATIN4", "LATIN5", "LATIN6", "LATIN7", "LATIN8", "LATIN9", "LATIN10",
        "WIN1250", "WIN1251", "WIN1252", "WIN1253", "WIN1254", "WIN1255", "WIN1256", "WIN1257", "WIN1258", "WIN866",
        "WIN874", "KOI8R", "KOI8U", "ISO_8859_5", "ISO_8859_6", "ISO_8859_7", "ISO_8859_8",
    }
)  # fmt: skip
_SOME_ALIKE: Final = frozenset({"EUC_JP", "EUC_TW"})
"""Encodings in which two characters beyond ASCII may be the same code point.

EUC_JIS_2004 is not among them: one of its characters may be two code points.
"""

_TEXTUAL: Final = STRINGS | {"name", "jsonb"}
_ORDERS: Final = frozenset({"<", "<=", ">", ">="})
_LIKES: Final = frozenset({"~~", "!~~", "~~*", "!~~*"})
_REGULAR: Final = frozenset({"~", "!~", "~*", "!~*"})
_EQUALITIES: Final = frozenset({"=", "<>", "^@", "@>", "<@", "&&", "->", "->>", "?", "?|", "?&"})
_WHOLE: Final = frozenset({"lower", "upper", "repeat"})
"""Functions that do not look at single characters, or only at ASCII's."""
_SEARCHES: Final = frozenset({"replace", "starts_with"})
_CHARACTER_SEARCHES: Final = frozenset({"btrim", "ltrim", "position", "rtrim", "split_part", "strpos", "translate"})
_CHARACTERS: Final = _CHARACTER_SEARCHES | {
    "char_length", "character_length", "left", "length", "like_escape", "lpad", "overlay", "reverse", "right", "rpad",
    "substr", "substring",
}  # fmt: skip
_OCTETS: Final = frozenset({"bit_length", "octet_length"})
_CODES: Final = frozenset({"chr", "convert", "convert_from", "convert_to"})


def encoding_of(name: str) -> Encoding:
    """The encoding of a name; nothing is assumed about an unknown one."""
    one_to_one = name in _ONE_TO_ONE
    return _KNOWN.get(name) or Encoding(name, one_to_one, characters=one_to_one or name in _SOME_ALIKE)


def check_operator(encoding: Encoding, name: str, arguments: tuple[Typed, ...], at: int) -> None:
    """Check that an operator has the same result on text in UTF-8.

    Raises:
        Refused: The result depends on the database's encoding.
    """
    if encoding == UTF8 or name == "||" or not any(map(_depends, arguments)):
        return
    if name not in _EQUALITIES | _LIKES or all(map(_depends, arguments)):
        _check_one_to_one(encoding, at)
    if name in _ORDERS:
        if not encoding.ordered:
            raise Refused(f"the order of text depends on the database's encoding, {encoding.name}", at)
    elif name in _LIKES | _REGULAR:
        _check_pattern(encoding, name, arguments[1], at)
    elif name not in _EQUALITIES:
        raise Refused(f"the operator {name} on text is not translated for the database's encoding, {encoding.name}", at)


def _check_pattern(encoding: Encoding, name: str, argument: Typed, at: int) -> None:
    pattern = str(argument.value) if isinstance(argument, Constant) else "_"
    if not encoding.characters and (name in _REGULAR or "_" in pattern):
        what = "a regular expression" if name in _REGULAR else "_ in a pattern"
        raise _not_characters(encoding, what, at)
    if name in _REGULAR and not encoding.ordered and not pattern.isascii():
        raise Refused(f"this regular expression depends on the codes of the database's encoding, {encoding.name}", at)


def check_function(encoding: Encoding, name: str, arguments: tuple[Typed, ...], at: int) -> None:
    """Check that a function has the same result on text in UTF-8.

    Raises:
        Refused: The result depends, or may depend, on the database's encoding.
    """
    if encoding == UTF8:
        return
    if name in _CODES:
        raise Refused(f"{name} depends on the codes of the database's encoding, {encoding.name}", at)
    if not any(map(_depends, arguments)):
        return
    if name in _SEARCHES | _CHARACTER_SEARCHES:
        _check_one_to_one(encoding, at)
    if name in _OCTETS:
        if not encoding.octets:
            raise Refused(f"{name} counts bytes in the database's encoding, {encoding.name}, not in UTF8", at)
    elif name in _CHARACTERS:
        if not encoding.characters:
            raise _not_characters(encoding, name, at)
    elif name not in _WHOLE | _SEARCHES:
        raise Refused(f"{name} of text is not translated for the database's encoding, {encoding.name}", at)


def check_modifiers(encoding: Encoding, node: Typed, at: int) -> None:
    """Check that `varchar(n)` or `char(n)` cuts a value after the same character.

    Raises:
        Refused: The database's encoding has other characters.
    """
    if not encoding.characters and _depends(node):
        raise _not_characters(encoding, "the length of a type", at)


def check_literal(encoding: Encoding, node: Constant, type_: str) -> None:
    """Check that a literal of a type has the same value in UTF-8: that of a bytea has the bytes of the text.

    Raises:
        Refused: The bytes depend on the database's encoding.
    """
    if not encoding.octets and element(type_) == "bytea" and not str(node.value).isascii():
        reason = f"the bytes of this text depend on the database's encoding, {encoding.name}; write them as '\\x…'"
        raise Refused(reason, node.at)


def _depends(node: Typed) -> bool:
    """Whether this is, or may be, text beyond ASCII."""
    if element(node.type) not in _TEXTUAL:
        return False
    return not isinstance(node, Constant) or not str(node.value).isascii()


def _check_one_to_one(encoding: Encoding, at: int) -> None:
    if not encoding.one_to_one:
        reason = f"different characters of the database's encoding, {encoding.name}, may be the same in UTF8"
        raise Refused(f"comparing text is not translated: {reason}", at)


def _not_characters(encoding: Encoding, what: str, at: int) -> Refused:
    return Refused(
        f"{what} is not translated: a character of the database's encoding, {encoding.name}, may not be one in UTF8", at
    )
