"""The encodings of databases: what of a row filter gives the same verdicts on values that come in UTF-8.

The server compares, cuts and counts text in the database's encoding; here every value is UTF-8. What depends on the
difference is refused. Of functions on text only those pass that are known not to depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.rowfilter.types.constants import element
from bridge.rowfilter.types.typed import STRINGS, Constant
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from bridge.rowfilter.types.typed import Typed


@dataclass(frozen=True, slots=True)
class Encoding:
    """A database's encoding, beside UTF-8.

    Attributes:
        name: As in pg_database, by pg_encoding_to_char.
        one_to_one: Different texts are different texts in UTF-8.
        characters: A character is one code point of UTF-8.
        ordered: Texts sort by their bytes as they do in UTF-8.
        octets: A text has the bytes that it has in UTF-8.
    """

    name: str
    one_to_one: bool = False
    characters: bool = False
    ordered: bool = False
    octets: bool = False


UTF8: Final = Encoding("UTF8", one_to_one=True, characters=True, ordered=True, octets=True)
_KNOWN: Final = {
    "UTF8": UTF8,
    # nothing is converted, and each byte is a character
    "SQL_ASCII": Encoding("SQL_ASCII", one_to_one=True, ordered=True, octets=True),
    # its bytes are the first code points
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
"""Two of their characters may be one in UTF-8, though none of ASCII's. In EUC_JIS_2004 one may be two code points."""

_TEXTUAL: Final = STRINGS | {"name", "jsonb"}
_ORDERS: Final = frozenset({"<", "<=", ">", ">="})
_LIKES: Final = frozenset({"~~", "!~~", "~~*", "!~~*"})
_REGULAR: Final = frozenset({"~", "!~", "~*", "!~*"})
_EQUALITIES: Final = frozenset({"=", "<>", "^@", "@>", "<@", "&&", "->", "->>", "?", "?|", "?&"})
_WHOLE: Final = frozenset({"lower", "upper", "repeat"})
"""Functions that know of no characters, or of ASCII's alone."""
_SEARCHES: Final = frozenset({"replace", "starts_with"})
_CHARACTER_SEARCHES: Final = frozenset({"btrim", "ltrim", "position", "rtrim", "split_part", "strpos", "translate"})
_CHARACTERS: Final = _CHARACTER_SEARCHES | {
    "char_length", "character_length", "left", "length", "like_escape", "lpad", "overlay", "reverse", "right", "rpad",
    "substr", "substring",
}  # fmt: skip
_OCTETS: Final = frozenset({"bit_length", "octet_length"})
_CODES: Final = frozenset({"chr", "convert", "convert_from", "convert_to"})


def encoding_of(name: str) -> Encoding:
    """What is known of an encoding by its name."""
    one_to_one = name in _ONE_TO_ONE
    return _KNOWN.get(name) or Encoding(name, one_to_one, characters=one_to_one or name in _SOME_ALIKE)


def check_operator(encoding: Encoding, name: str, arguments: tuple[Typed, ...], at: int) -> None:
    """Hold an operator against the encoding.

    Raises:
        Refused: Its result depends on it.
    """
    if encoding == UTF8 or name == "||" or not any(map(_depends, arguments)):
        return
    if name not in _EQUALITIES | _LIKES or all(map(_depends, arguments)):
        _check_one_to_one(encoding, at)
    if name in _ORDERS:
        if not encoding.ordered:
            raise Refused(f"the order of text in the database's encoding, {encoding.name}, is the server's alone", at)
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
        raise Refused(f"a regular expression goes by the codes of the database's encoding, {encoding.name}", at)


def check_function(encoding: Encoding, name: str, arguments: tuple[Typed, ...], at: int) -> None:
    """Hold a function against the encoding.

    Raises:
        Refused: Its result depends on it, or may do so.
    """
    if encoding == UTF8:
        return
    if name in _CODES:
        raise Refused(f"{name} goes by the codes of the database's encoding, {encoding.name}", at)
    if not any(map(_depends, arguments)):
        return
    if name in _SEARCHES | _CHARACTER_SEARCHES:
        _check_one_to_one(encoding, at)
    if name in _OCTETS:
        if not encoding.octets:
            raise Refused(f"{name} counts bytes of the database's encoding, {encoding.name}; values come in UTF8", at)
    elif name in _CHARACTERS:
        if not encoding.characters:
            raise _not_characters(encoding, name, at)
    elif name not in _WHOLE | _SEARCHES:
        raise Refused(f"{name} of text is not translated for the database's encoding, {encoding.name}", at)


def check_modifiers(encoding: Encoding, node: Typed, at: int) -> None:
    """Hold `varchar(n)` and `char(n)` of a value against the encoding.

    Raises:
        Refused: It counts other characters.
    """
    if not encoding.characters and _depends(node):
        raise _not_characters(encoding, "the length of a type", at)


def check_literal(encoding: Encoding, node: Constant, type_: str) -> None:
    """Hold a literal that is read as a type against the encoding: a bytea is made of the text's bytes.

    Raises:
        Refused: They are others.
    """
    if not encoding.octets and element(type_) == "bytea" and not str(node.value).isascii():
        reason = f"the bytes of this text are those of the database's encoding, {encoding.name}; write them as '\\x…'"
        raise Refused(reason, node.at)


def _depends(node: Typed) -> bool:
    """Whether it is text of more than ASCII, or may be."""
    if element(node.type) not in _TEXTUAL:
        return False
    return not isinstance(node, Constant) or not str(node.value).isascii()


def _check_one_to_one(encoding: Encoding, at: int) -> None:
    if not encoding.one_to_one:
        reason = f"different characters of the database's encoding, {encoding.name}, may be the same in UTF8"
        raise Refused(f"{reason}: comparing text is the server's alone", at)


def _not_characters(encoding: Encoding, what: str, at: int) -> Refused:
    return Refused(f"{what}: a character of the database's encoding, {encoding.name}, is not one of UTF8", at)
