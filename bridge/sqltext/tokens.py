"""SQL text to tokens, by the rules of PostgreSQL's scan.l, as far as a statement's shape depends on them.

Not for the meaning of an expression: a number or an operator is only told from its neighbours. Text is read as with
`standard_conforming_strings = on`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_IDENTIFIER_BYTES = 63


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RESERVED = _words(
    "all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation"
    " column concurrently constraint create cross current_catalog current_date current_role current_schema"
    " current_time current_timestamp current_user default deferrable desc distinct do else end except false fetch for"
    " foreign freeze from full grant group having ilike in initially inner intersect into is isnull join lateral"
    " leading left like limit localtime localtimestamp natural not notnull null offset on only or order outer overlaps"
    " placing primary references returning right select session_user similar some symmetric system_user table"
    " tablesample then to trailing true union unique user using variadic verbose when where window with"
)
"""Keywords that name nothing unless quoted (catcode R and T of pg_get_keywords(), PostgreSQL 18)."""

COLUMN_NAMES = _words(
    "between bigint bit boolean char character coalesce dec decimal exists extract float greatest grouping inout int"
    " integer interval json json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar"
    " json_serialize json_table json_value least merge_action national nchar none normalize nullif numeric out overlay"
    " position precision real row setof smallint substring time timestamp treat trim values varchar xmlattributes"
    " xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable"
)
"""Keywords that name tables and columns, and that quote_ident() quotes all the same (catcode C)."""


class Kind(Enum):
    """What a token is."""

    WORD = "word"  # an identifier or keyword that stands unquoted; value: folded to lower case
    QUOTED = "quoted"  # "…" and U&"…"; value: the name
    STRING = "string"  # '…' in all its forms, and dollar quotes; value: the text, or the source where it is no text
    NUMBER = "number"
    SYMBOL = "symbol"  # one of , ( ) [ ] ; . : or an operator
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text, at text[start:end]."""

    kind: Kind
    value: str
    source: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these keywords, which are in lower case."""
        return self.kind is Kind.WORD and self.value in words

    def is_symbol(self, symbol: str) -> bool:
        """Whether it is this symbol."""
        return self.kind is Kind.SYMBOL and self.value == symbol

    def __str__(self) -> str:
        return "end of input" if self.kind is Kind.END else f'"{self.source}"'


class LexicalError(Exception):
    """A text that scan.l refuses.

    Attributes:
        at: The offset where what is wrong begins.
    """

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


_WORD = r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*"
_PATTERN = re.compile(
    rf"""
      (?P<space>[ \t\n\r\f\v]+|--[^\n\r]*)
    | (?P<comment>/\*)
    | (?P<escape>[eE]')
    | (?P<unicode_string>[uU]&')
    | (?P<unicode_name>[uU]&")
    | (?P<bits>[bBxX]')
    | (?P<national>[nN]')
    | (?P<string>')
    | (?P<name>")
    | (?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$)
    | (?P<parameter>\$[0-9]+)
    | (?P<word>{_WORD})
    | (?P<number>(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[A-Za-z0-9_]*)
    | (?P<symbol>::|:=|\.\.|[,()\[\].;:]|[-+*/<>=~!@\#%^&|`?]+)
    """,
    re.VERBOSE,
)
_CONTINUED = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*[\n\r])*'")
_UESCAPE = re.compile(
    r"(?:[ \t\n\r\f\v]|--[^\n\r]*[\n\r])*uescape(?:[ \t\n\r\f\v]|--[^\n\r]*[\n\r])*'(.)'", re.IGNORECASE
)
_C_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def tokenize(text: str) -> Iterator[Token]:
    """The tokens of a text, without comments; the last one is END.

    Raises:
        LexicalError: When it comes to what scan.l refuses, or to an identifier that it would cut off.
    """
    at = 0
    while at < len(text):
        found = _PATTERN.match(text, at)
        if found is None:
            raise LexicalError(f'syntax error at or near "{text[at]}"', at)
        kind = str(found.lastgroup)
        if kind == "space":
            at = found.end()
        elif kind == "comment":
            at = _comment_end(text, at)
        else:
            token = _token(text, kind, found)
            yield token
            at = token.end
    yield Token(Kind.END, "", "", len(text), len(text))


def _token(text: str, kind: str, found: re.Match[str]) -> Token:
    at, end = found.span()
    value = found[0]
    match kind:
        case "word":
            value, token_kind = _checked(_folded(value), at), Kind.WORD
        case "name" | "unicode_name":
            value, end = _quoted(text, end, '"', "unterminated quoted identifier", at)
            if kind == "unicode_name":
                value, end = _unicode(text, value, at, end)
            if not value:
                raise LexicalError("zero-length delimited identifier", at)
            value, token_kind = _checked(value, at), Kind.QUOTED
        case "dollar":
            close = text.find(value, end)
            if close < 0:
                raise LexicalError("unterminated dollar-quoted string", at)
            value, end, token_kind = text[end:close], close + len(value), Kind.STRING
        case "string" | "national" | "escape" | "unicode_string" | "bits":
            (value, end), token_kind = _string(text, kind, at, end), Kind.STRING
        case "number" | "parameter":
            token_kind = Kind.NUMBER
        case _:
            end = at + len(_operator(value))
            value, token_kind = text[at:end], Kind.SYMBOL
    return Token(token_kind, value, text[at:end], at, end)


def _operator(run: str) -> str:
    """An operator, up to where a comment begins in the run of operator characters."""
    return re.split(r"(?<=.)(?=--|/\*)", run, maxsplit=1, flags=re.DOTALL)[0]


def _comment_end(text: str, at: int) -> int:
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    raise LexicalError("unterminated /* comment", at)


def _quoted(
    text: str, at: int, quote: str, unterminated: str, start: int, *, backslash: bool = False
) -> tuple[str, int]:
    """What stands up to the closing quote, with doubled quotes made one, and where it ends."""
    parts = []
    while True:
        end = at
        while end < len(text) and text[end] != quote:
            end += 2 if backslash and text[end] == "\\" else 1
        if end >= len(text):
            raise LexicalError(unterminated, start)
        parts.append(text[at:end])
        if text[end + 1 : end + 2] != quote:
            return "".join(parts), end + 1
        parts.append(("\\" if backslash else "") + quote)
        at = end + 2


def _string(text: str, kind: str, start: int, at: int) -> tuple[str, int]:
    """A string's value, with the parts that continue it on further lines, and where it ends."""
    value = ""
    while True:
        part, at = _quoted(text, at, "'", "unterminated quoted string", start, backslash=kind == "escape")
        value += part
        more = _CONTINUED.match(text, at)
        if more is None:
            break
        at = more.end()
    if kind == "unicode_string":
        return _unicode(text, value, start, at)
    if kind == "escape":
        value = _C_ESCAPE.sub(_unescaped, value)
    return value, at


def _unescaped(found: re.Match[str]) -> str:
    octal, two, four, eight, other = found.groups()
    if octal:
        return chr(int(octal, 8) & 0xFF)
    code = two or four or eight
    return chr(int(code, 16)) if code and int(code, 16) <= 0x10FFFF else _LETTERS.get(other or "", other or "")


def _unicode(text: str, value: str, start: int, end: int) -> tuple[str, int]:
    r"""The value of U&"…" or U&'…', after the UESCAPE that may follow, and where that ends."""
    escape = "\\"
    if found := _UESCAPE.match(text, end):
        escape, end = found[1], found.end()
        if re.fullmatch(r"""[0-9A-Fa-f+'"\s]""", escape):
            raise LexicalError("invalid Unicode escape character", start)
    mark = re.escape(escape)

    def character(code: re.Match[str]) -> str:
        digits = code[1] or code[2]
        if digits is None:
            if code[0] == escape * 2:
                return escape
            raise LexicalError("invalid Unicode escape", start)
        if not 0 < int(digits, 16) <= 0x10FFFF:
            raise LexicalError("invalid Unicode escape value", start)
        return chr(int(digits, 16))

    value = re.sub(rf"{mark}(?:([0-9A-Fa-f]{{4}})|\+([0-9A-Fa-f]{{6}})|{mark})?", character, value)
    try:
        return value.encode("utf-16", "surrogatepass").decode("utf-16"), end
    except UnicodeDecodeError as error:
        raise LexicalError("invalid Unicode surrogate pair", start) from error


def _folded(word: str) -> str:
    """ASCII letters in lower case, all others as they are (downcase_identifier, in a multibyte encoding)."""
    return re.sub("[A-Z]+", lambda letters: letters[0].lower(), word)


def _checked(name: str, at: int) -> str:
    encoded = name.encode("utf-8", "replace")
    if len(encoded) > MAX_IDENTIFIER_BYTES:
        cut = encoded[:MAX_IDENTIFIER_BYTES].decode("utf-8", "ignore")
        raise LexicalError(
            f'identifier "{name}" will be truncated to "{cut}": write the name as it is on the server', at
        )
    return name


def quote_identifier(name: str) -> str:
    """A name as quote_ident() writes it: in quotes only where it would not be read back without."""
    if re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in RESERVED | COLUMN_NAMES:
        return name
    return '"' + name.replace('"', '""') + '"'
