"""SQL text -> tokens, by the rules of PostgreSQL's scan.l (standard_conforming_strings on).

What it does not read, it refuses; nothing is read in another sense than PostgreSQL's.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from bridge.sqltext.refusal import Refused

NAME, QUOTED_NAME, STRING, INTEGER, DECIMAL, OPERATOR, MARK, END = (
    "name", "quoted name", "string", "integer", "decimal", "operator", "mark", "end"
)  # fmt: skip


class Token(NamedTuple):
    """A piece of the text.

    Attributes:
        kind: One of the constants above.
        text: A name folded to lower case (as it stands if quoted), a string's value, else what is written.
        at: Index of its first character.
    """

    kind: str
    text: str
    at: int


_SPACE: Final = re.compile(r"(?:[ \t\n\r\f\v]|--[^\n\r]*)+")
_NAME: Final = re.compile(r"[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*")
_NUMBER: Final = re.compile(r"(?:\d+(?:\.(?!\.)\d*)?|\.\d+)(?:[Ee][+-]?\d+)?")
_OPERATOR: Final = re.compile(r"[+\-*/<>=~!@#%^&|`?]+")
_MARKS: Final = "()[],.;:"
_DOLLAR: Final = re.compile(r"\$(?:[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)?\$")
_CONTINUED: Final = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*)*'")
_ESCAPE: Final = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL
)
_SIMPLE_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FOLDING: Final = {ord(upper): ord(upper.lower()) for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_MAX_NAME_BYTES: Final = 63
_LAST_ASCII: Final = 0x7F


def tokens(text: str) -> list[Token]:
    """Cut the text into tokens, `END` the last.

    Raises:
        Refused: With the place.
    """
    found: list[Token] = []
    at = 0
    while True:
        at = _skip_space(text, at)
        if at >= len(text):
            return [*found, Token(END, "", at)]
        token, at = _token(text, at)
        found.append(token)


def _skip_space(text: str, at: int) -> int:
    while True:
        space = _SPACE.match(text, at)
        if space:
            at = space.end()
        elif text.startswith("/*", at):
            at = _skip_comment(text, at)
        else:
            return at


def _skip_comment(text: str, start: int) -> int:
    depth, at = 1, start + 2
    while depth:
        mark = re.compile(r"/\*|\*/").search(text, at)
        if not mark:
            raise Refused("unterminated /* comment", start)
        depth += 1 if mark[0] == "/*" else -1
        at = mark.end()
    return at


def _token(text: str, at: int) -> tuple[Token, int]:  # noqa: PLR0911 - a line for each kind
    character = text[at]
    if character == "'":
        return _string(text, at, at, escapes=False)
    if character == '"':
        return _quoted_name(text, at)
    if character == "$":
        return _dollar_quoted(text, at)
    if name := _NAME.match(text, at):
        return _name(text, at, name)
    if number := _NUMBER.match(text, at):
        if _NAME.match(text, number.end()):
            raise Refused("trailing junk after numeric literal (only plain decimal digits are read)", at)
        kind = INTEGER if number[0].isdigit() else DECIMAL
        return Token(kind, number[0], at), number.end()
    if text.startswith("::", at):
        return Token(MARK, "::", at), at + 2
    if character in _MARKS:
        return Token(MARK, character, at), at + 1
    if run := _OPERATOR.match(text, at):
        return _operator(run[0], at)
    raise Refused(f"syntax error at {character!r}", at)


def _name(text: str, at: int, name: re.Match[str]) -> tuple[Token, int]:
    follows = text[name.end() : name.end() + 1]
    prefix = name[0].upper()
    if follows == "'" and prefix == "E":
        return _string(text, at, name.end(), escapes=True)
    if follows == "'" and prefix in {"B", "X", "N"}:
        raise Refused(f"{prefix}'…' literals are not translated", at)
    if prefix == "U" and text[name.end() : name.end() + 2] in {"&'", '&"'}:
        raise Refused("U& literals are not translated; write the characters or E'\\u…'", at)
    # downcase_identifier: beyond ASCII, a multibyte encoding's characters stay as they are
    return Token(NAME, _fitting(name[0].translate(_FOLDING), at), at), name.end()


def _fitting(name: str, at: int) -> str:
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise Refused(f"a name of more than {_MAX_NAME_BYTES} bytes", at)
    return name


def _quoted_name(text: str, at: int) -> tuple[Token, int]:
    found = re.compile(r'"((?:[^"]|"")*)"').match(text, at)
    if not found:
        raise Refused("unterminated quoted identifier", at)
    if not found[1]:
        raise Refused("zero-length delimited identifier", at)
    return Token(QUOTED_NAME, _fitting(found[1].replace('""', '"'), at), at), found.end()


def _string(text: str, at: int, quote: int, *, escapes: bool) -> tuple[Token, int]:
    """A string in quotes, and its continuations on further lines."""
    body = re.compile(r"'((?:[^'\\]|''|\\.)*)'" if escapes else r"'((?:[^']|'')*)'", re.DOTALL)
    value = ""
    while True:
        found = body.match(text, quote)
        if not found:
            raise Refused("unterminated quoted string", at)
        piece = found[1]
        value += _unescaped(piece, at) if escapes else piece.replace("''", "'")
        continued = _CONTINUED.match(text, found.end())
        if not continued:
            break
        quote = continued.end() - 1
    if "\0" in value:
        raise Refused("a string with a zero character", at)
    return Token(STRING, value, at), found.end()


def _unescaped(piece: str, at: int) -> str:
    def character(found: re.Match[str]) -> str:
        octal, hexadecimal, short, long, other = found.groups()
        if other is not None:
            if other in "uU":
                raise Refused("invalid Unicode escape", at)
            return _SIMPLE_ESCAPES.get(other, other)
        code = int(octal, 8) & 0xFF if octal else int(hexadecimal or short or long, 16)
        if (octal or hexadecimal) and code > _LAST_ASCII:
            raise Refused("an escape for a byte of a longer character; write the character or \\u…", at)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise Refused("an escape for half of a character, or for none; write \\U…", at)
        return chr(code)

    return _ESCAPE.sub(character, re.sub(r"\\.|''", lambda f: "'" if f[0] == "''" else f[0], piece, flags=re.DOTALL))


def _dollar_quoted(text: str, at: int) -> tuple[Token, int]:
    mark = _DOLLAR.match(text, at)
    if not mark:
        raise Refused("there is no parameter", at)
    end = text.find(mark[0], mark.end())
    if end < 0:
        raise Refused("unterminated dollar-quoted string", at)
    return Token(STRING, text[mark.end() : end], at), end + len(mark[0])


def _operator(run: str, at: int) -> tuple[Token, int]:
    """The longest operator at the start of a run of operator characters."""
    for comment in ("--", "/*"):
        if comment in run:
            run = run[: run.index(comment)]
    # A sign at the end is the next operand's, unless the operator has a character that SQL's operators do not.
    while len(run) > 1 and run[-1] in "+-" and not any(one in "~!@#%^&|`?" for one in run[:-1]):
        run = run[:-1]
    return Token(OPERATOR, "<>" if run == "!=" else run, at), at + len(run)
