"""Divide SQL text into tokens by the rules of PostgreSQL 18's scan.l, with standard_conforming_strings = on.

The lexer refuses whatever scan.l refuses, or cuts off with a notice. A token whose meaning depends on the server's
version or encoding has a kind, or a difference between `value` and `source`, that shows it: the parser refuses it.

The keywords that are not names everywhere are here by the categories of kwlist.h; a test compares the lists with
pg_get_keywords(). Unreserved keywords, its category U, are names like any other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

RESERVED: Final = frozenset(
    {
        "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "both", "case", "cast",
        "check", "collate", "column", "constraint", "create", "current_catalog", "current_date", "current_role",
        "current_time", "current_timestamp", "current_user", "default", "deferrable", "desc", "distinct", "do",
        "else", "end", "except", "false", "fetch", "for", "foreign", "from", "grant", "group", "having", "in",
        "initially", "intersect", "into", "lateral", "leading", "limit", "localtime", "localtimestamp", "not", "null",
        "offset", "on", "only", "or", "order", "placing", "primary", "references", "returning", "select",
        "session_user", "some", "symmetric", "system_user", "table", "then", "to", "trailing", "true", "union",
        "unique", "user", "using", "variadic", "when", "where", "window", "with",
    }
)  # fmt: skip
"""Category R: names nothing but a column's label."""

TYPE_FUNC_NAMES: Final = frozenset(
    {
        "authorization", "binary", "collation", "concurrently", "cross", "current_schema", "freeze", "full", "ilike",
        "inner", "is", "isnull", "join", "left", "like", "natural", "notnull", "outer", "overlaps", "right",
        "similar", "tablesample", "verbose",
    }
)  # fmt: skip
"""Category T: names a type or a function, but no table or column."""

COL_NAMES: Final = frozenset(
    {
        "between", "bigint", "bit", "boolean", "char", "character", "coalesce", "dec", "decimal", "exists", "extract",
        "float", "greatest", "grouping", "inout", "int", "integer", "interval", "json", "json_array", "json_arrayagg",
        "json_exists", "json_object", "json_objectagg", "json_query", "json_scalar", "json_serialize", "json_table",
        "json_value", "least", "merge_action", "national", "nchar", "none", "normalize", "nullif", "numeric", "out",
        "overlay", "position", "precision", "real", "row", "setof", "smallint", "substring", "time", "timestamp",
        "treat", "trim", "values", "varchar", "xmlattributes", "xmlconcat", "xmlelement", "xmlexists", "xmlforest",
        "xmlnamespaces", "xmlparse", "xmlpi", "xmlroot", "xmlserialize", "xmltable",
    }
)  # fmt: skip
"""Category C: names a table or a column, but no type or function."""

_QUOTED: Final = RESERVED | TYPE_FUNC_NAMES | COL_NAMES


def quote_identifier(name: str) -> str:
    """Quote a name as quote_ident() does: only if the lexer would read another name, or a keyword, without quotes."""
    if re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _QUOTED:
        return name
    return '"' + name.replace('"', '""') + '"'


MAX_IDENTIFIER_BYTES: Final = 63


class Kind(Enum):
    """The kind of a token, which says what its `value` has."""

    WORD = "word"  # an unquoted identifier or keyword; in lower case
    QUOTED = "quoted"  # "…" and U&"…"; the name
    STRING = "string"  # '…', E'…', U&'…' and $$…$$; the text
    NATIONAL = "national"  # N'…'; the text
    BYTES = "bytes"  # E'…' with an octal or \x escape beyond ASCII; the text, each such byte as a character of LATIN1
    BITS = "bits"  # B'…' and X'…'; the digits
    INTEGER = "integer"  # the number in plain decimal digits
    DECIMAL = "decimal"  # a number with a point or an exponent, without underscores
    PARAMETER = "parameter"  # $1
    MARK = "mark"  # , ( ) [ ] ; . : :: .. := =>
    OPERATOR = "operator"  # the name; <> for !=
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text.

    Attributes:
        value: See `Kind`.
        source: text[start:end].
        start: Index of the token's first character.
        end: Index behind its last one.
    """

    kind: Kind
    value: str
    source: str
    start: int
    end: int

    @property
    def is_col_id(self) -> bool:
        """Whether it can name a table or a column: the grammar's ColId."""
        return self.kind is Kind.QUOTED or (
            self.kind is Kind.WORD and self.value not in RESERVED and self.value not in TYPE_FUNC_NAMES
        )

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these words, which are in lower case."""
        return self.kind is Kind.WORD and self.value in words

    def is_symbol(self, symbol: str) -> bool:
        """Whether it is this mark or operator."""
        return self.kind in {Kind.MARK, Kind.OPERATOR} and self.value == symbol

    def __str__(self) -> str:
        return "end of input" if self.kind is Kind.END else f'"{self.source}"'


_SPACE: Final = re.compile(r"(?:[ \t\n\r\f\v]|--[^\n\r]*+)++")
_START: Final = re.compile(
    r"""
      (?P<string>(?:[eEbBxXnN]|[uU]&)?')
    | (?P<quoted>(?:[uU]&)?")
    | (?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$)
    | (?P<parameter>\$[0-9](?:_?[0-9])*)
    | (?P<word>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
    | (?P<radix>0[xX](?:_?[0-9A-Fa-f])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+)
    | (?P<number>(?:[0-9](?:_?[0-9])*(?:\.(?!\.)(?:[0-9](?:_?[0-9])*)?)?|\.[0-9](?:_?[0-9])*)
                 (?:[eE][+-]?[0-9](?:_?[0-9])*)?)
    | (?P<mark>::|:=|\.\.|[,()\[\].;:])
    | (?P<operator>[-+*/<>=~!@\#%^&|`?]+)
    """,
    re.VERBOSE,
)
_JUNK: Final = re.compile(r"[A-Za-z0-9_\x80-\U0010ffff]")
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")
_BODY: Final = re.compile(r"((?:[^']++|'')*+)'")
_ESCAPED_BODY: Final = re.compile(r"((?:[^'\\]++|''|\\.)*+)'", re.DOTALL)
_NAME_BODY: Final = re.compile(r'((?:[^"]++|"")*+)"')
_CONTINUED: Final = re.compile(
    r"(?:[ \t\f\v]++|--[^\n\r]*+)*+[\n\r](?:[ \t\n\r\f\v]++|--[^\n\r]*+[\n\r])*+'"
)  # scan.l: quotecontinue
_ESCAPE: Final = re.compile(
    r"''|\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL
)
_UESCAPE: Final = re.compile(r"uescape(?![A-Za-z0-9_$\x80-\U0010ffff])", re.IGNORECASE | re.ASCII)
_SIMPLE_STRING: Final = re.compile(r"[eE]?'|\$")
_ESCAPE_CHARACTER: Final = re.compile(r"""[^0-9A-Fa-f+'" \t\n\r\f\v\x80-\U0010ffff]""")
_ESCAPED_CHARACTERS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LOWER: Final = {ord(upper): ord(upper.lower()) for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_NOT_IN_SQL: Final = frozenset("~!@#%^&|`?")
_LAST_ASCII: Final = 0x7F
_LAST_CHARACTER: Final = 0x10FFFF


def tokens(text: str) -> list[Token]:
    """The tokens of a text without its comments, the last one of kind END.

    Raises:
        Refused: PostgreSQL would not read the text, or would cut off an identifier; with the place.
    """
    read: list[Token] = []
    while not read or read[-1].kind is not Kind.END:
        read.append(_token(text, read[-1].end if read else 0))
    return read


def _token(text: str, at: int) -> Token:
    """The first token at this index or behind it."""
    at = _space_end(text, at)
    if at == len(text):
        return Token(Kind.END, "", "", at, at)
    match = _START.match(text, at)
    if match is None:
        raise Refused(f'syntax error at or near "{text[at]}"', at)
    return _READERS[str(match.lastgroup)](text, match)


def _space_end(text: str, at: int) -> int:
    """Return the index at which white space and comments end."""
    while True:
        if match := _SPACE.match(text, at):
            at = match.end()
        elif text.startswith("/*", at):
            at = _comment_end(text, at)
        else:
            return at


def _comment_end(text: str, at: int) -> int:
    depth = 0
    for mark in _COMMENT_MARK.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    raise Refused("unterminated /* comment", at)


def _made(kind: Kind, value: str, text: str, start: int, end: int) -> Token:
    if "\0" in value:
        raise Refused("a string or a name with the character U+0000", start)
    return Token(kind, value, text[start:end], start, end)


def _word(_text: str, match: re.Match[str]) -> Token:
    # downcase_identifier: in a multibyte encoding, only ASCII letters are folded
    name = _not_too_long(match[0].translate(_LOWER), match.start())
    return Token(Kind.WORD, name, match[0], *match.span())


def _not_too_long(name: str, at: int) -> str:
    encoded = name.encode("utf-8", "replace")
    if len(encoded) > MAX_IDENTIFIER_BYTES:
        cut = encoded[:MAX_IDENTIFIER_BYTES].decode("utf-8", "ignore")
        raise Refused(f'identifier "{name}" will be truncated to "{cut}": write the name as it is on the server', at)
    return name


def _quoted(text: str, match: re.Match[str]) -> Token:
    start = match.start()
    body = _NAME_BODY.match(text, match.end())
    if body is None:
        raise Refused("unterminated quoted identifier", start)
    name, end = body[1].replace('""', '"'), body.end()
    if match[0] != '"':
        name, end = _with_unicode_escapes(text, name, start, end)
    if not name:
        raise Refused("zero-length delimited identifier", start)
    return _made(Kind.QUOTED, _not_too_long(name, start), text, start, end)


def _string(text: str, match: re.Match[str]) -> Token:
    """A string in quotes, with its continuations on further lines."""
    start, end = match.span()
    prefix = match[0][0].upper()
    body = _ESCAPED_BODY if prefix == "E" else _BODY
    bodies = []
    while True:
        part = body.match(text, end)
        if part is None:
            raise Refused("unterminated quoted string", start)
        bodies.append(part[1])
        end = part.end()
        continued = _CONTINUED.match(text, end)
        if continued is None:
            break
        end = continued.end()
    kind = {"B": Kind.BITS, "X": Kind.BITS, "N": Kind.NATIONAL}.get(prefix, Kind.STRING)
    if prefix == "E":
        kind, value = _without_escapes(bodies, start)
    else:
        value = "".join(bodies).replace("''", "'")
    if prefix == "U":
        value, end = _with_unicode_escapes(text, value, start, end)
    return _made(kind, value, text, start, end)


def _without_escapes(bodies: list[str], at: int) -> tuple[Kind, str]:
    """The text of E'…', of kind BYTES where it depends on the server's encoding."""
    kind = Kind.STRING

    def character(escape: re.Match[str]) -> str:
        nonlocal kind
        octal, hexadecimal, short, long, other = escape.groups()
        if escape[0] == "''":
            return "'"
        if other is not None:
            if other in "uU":
                raise Refused("invalid Unicode escape", at)
            return _ESCAPED_CHARACTERS.get(other, other)
        if short or long:
            return _character(short or long, at)
        byte = int(octal, 8) & 0xFF if octal else int(hexadecimal, 16)
        if byte > _LAST_ASCII:
            kind = Kind.BYTES
        return chr(byte)

    value = "".join(_ESCAPE.sub(character, body) for body in bodies)
    return kind, _paired(value, at)


def _character(digits: str, at: int) -> str:
    code = int(digits, 16)
    if not 0 < code <= _LAST_CHARACTER:
        raise Refused("invalid Unicode escape value", at)
    return chr(code)


def _paired(value: str, at: int) -> str:
    """The value with surrogate pairs, each written as two escapes, joined."""
    try:
        return value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise Refused("invalid Unicode surrogate pair", at) from None


def _with_unicode_escapes(text: str, value: str, start: int, end: int) -> tuple[str, int]:
    r"""The value of U&'…' or U&"…" with a UESCAPE clause, if one follows, and where they end."""
    escape = "\\"
    if word := _UESCAPE.match(text, _space_end(text, end)):
        at = _space_end(text, word.end())
        if not _SIMPLE_STRING.match(text, at):
            raise Refused("UESCAPE must be followed by a simple string literal", at)
        given = _token(text, at)
        escape, end = given.value, given.end
        if not _ESCAPE_CHARACTER.fullmatch(escape):
            raise Refused("invalid Unicode escape character", at)

    def character(match: re.Match[str]) -> str:
        if match[0] == escape * 2:
            return escape
        if match[0] == escape:
            raise Refused("invalid Unicode escape", start)
        return _character(match[1] or match[2], start)

    mark = re.escape(escape)
    value = re.sub(rf"{mark}(?:([0-9A-Fa-f]{{4}})|\+([0-9A-Fa-f]{{6}})|{mark})?", character, value)
    return _paired(value, start), end


def _dollar(text: str, match: re.Match[str]) -> Token:
    start, end = match.span()
    close = text.find(match[0], end)
    if close < 0:
        raise Refused("unterminated dollar-quoted string", start)
    return _made(Kind.STRING, text[end:close], text, start, close + len(match[0]))


def _number(text: str, match: re.Match[str]) -> Token:
    value = match[0].replace("_", "")
    if _JUNK.match(text, match.end()):
        raise Refused("trailing junk after numeric literal", match.start())
    if match.lastgroup == "radix":
        value = str(int(value, 0))
    kind = Kind.INTEGER if value.isdigit() else Kind.DECIMAL
    return Token(kind, value, match[0], *match.span())


def _parameter(text: str, match: re.Match[str]) -> Token:
    if _JUNK.match(text, match.end()):
        raise Refused("trailing junk after parameter", match.start())
    return Token(Kind.PARAMETER, match[0], match[0], *match.span())


def _mark(_text: str, match: re.Match[str]) -> Token:
    return Token(Kind.MARK, match[0], match[0], *match.span())


def _operator(_text: str, match: re.Match[str]) -> Token:
    """The longest operator at the start of a run of operator characters."""
    run, start = match[0], match.start()
    if comment := re.search(r"--|/\*", run):
        run = run[: comment.start()]
    # a sign at the end is the next operand's, unless the operator has a character that SQL's operators do not have
    while len(run) > 1 and run[-1] in "+-" and _NOT_IN_SQL.isdisjoint(run[:-1]):
        run = run[:-1]
    if run == "=>":
        return Token(Kind.MARK, run, run, start, start + 2)
    return Token(Kind.OPERATOR, "<>" if run == "!=" else run, run, start, start + len(run))


_READERS: Final[dict[str, Callable[[str, re.Match[str]], Token]]] = {
    "string": _string,
    "quoted": _quoted,
    "dollar": _dollar,
    "parameter": _parameter,
    "word": _word,
    "radix": _number,
    "number": _number,
    "mark": _mark,
    "operator": _operator,
}
