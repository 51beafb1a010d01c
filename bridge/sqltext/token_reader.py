"""Reads tokens one after another, and what names and types are made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.rowfilter.type_names import type_name
from bridge.sqltext.lexer import END, INTEGER, MARK, NAME, QUOTED_NAME, Token
from bridge.sqltext.refusal import USER_DEFINED_TYPES, Refused

if TYPE_CHECKING:
    from bridge.sqltext import syntax

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
"""Words that are no names (gram.y, reserved_keyword)."""

_FOLLOWING: Final = {"character": ("varying",), "char": ("varying",), "double": ("precision",), "bit": ("varying",)}


class TokenReader:
    """A place in a list of tokens that moves on as they are taken."""

    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._next = 0

    # tokens

    @property
    def token(self) -> Token:
        """The token here."""
        return self._tokens[self._next]

    def peek(self, ahead: int = 1) -> Token:
        """One that comes later; the last if there are not so many."""
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def advance(self) -> Token:
        """Take the token here."""
        token = self.token
        self._next += token.kind != END
        return token

    def is_word(self, *words: str) -> bool:
        """Whether the token here is one of these words."""
        return self.token.kind == NAME and self.token.text in words

    def is_mark(self, mark: str) -> bool:
        """Whether the token here is this mark."""
        return self.token.kind == MARK and self.token.text == mark

    def take_word(self, *words: str) -> bool:
        """Take one of these words if it is here."""
        found = self.is_word(*words)
        self._next += found
        return found

    def take_mark(self, mark: str) -> bool:
        """Take this mark if it is here."""
        found = self.is_mark(mark)
        self._next += found
        return found

    def expect(self, kind: str, text: str = "") -> Token:
        """Take a token of this kind and text.

        Raises:
            Refused: Another is here.
        """
        if self.token.kind != kind or (text and self.token.text != text):
            raise self.error()
        return self.advance()

    def error(self) -> Refused:
        """That no token here could go on with what was read."""
        token = self.token
        return Refused("syntax error at end of input" if token.kind == END else "syntax error", token.at)

    def dotted(self) -> tuple[str, ...]:
        """Names with points between them.

        Raises:
            Refused: There are none.
        """
        parts: list[str] = []
        while True:
            if self.token.kind not in {NAME, QUOTED_NAME}:
                raise self.error()
            if not parts and self.token.kind == NAME and self.token.text in RESERVED:
                raise self.error()
            parts.append(self.advance().text)
            if not self.take_mark("."):
                return tuple(parts)

    # types

    def type(self, *, plain: bool = False) -> syntax.TypeName:
        """A type as written; with `plain` one that may stand before a literal, so no array.

        Raises:
            Refused: There is none, or none that comes with PostgreSQL.
        """
        at = self.token.at
        quoted = self.token.kind == QUOTED_NAME
        words = list(self._dotted_type())
        more = _FOLLOWING.get(words[-1], ()) if not quoted else ()
        if self.is_word(*more):
            words.append(self.advance().text)
        modifiers = self._modifiers()
        if not quoted and words[-1] in {"time", "timestamp"} and self.is_word("with", "without"):
            zone = self.advance().text
            self.expect(NAME, "time")
            self.expect(NAME, "zone")
            words[-1] += "tz" if zone == "with" else ""
        is_array = False
        while not plain and self.take_mark("["):
            if is_array:
                raise Refused("multidimensional arrays are not translated", at)
            is_array = True
            if self.token.kind == INTEGER:
                self.advance()
            self.expect(MARK, "]")
        return type_name(at, words, modifiers, is_array=is_array, quoted=quoted)

    def _dotted_type(self) -> tuple[str, ...]:
        parts = self.dotted()
        if len(parts) > 1 and parts[:-1] != ("pg_catalog",):
            raise Refused(USER_DEFINED_TYPES, self.token.at)
        return parts[-1:]

    def _modifiers(self) -> tuple[int, ...]:
        if not self.is_mark("(") or self.peek().kind != INTEGER:
            return ()
        self.advance()
        found = [int(self.expect(INTEGER).text)]
        while self.take_mark(","):
            found.append(int(self.expect(INTEGER).text))
        self.expect(MARK, ")")
        return tuple(found)
