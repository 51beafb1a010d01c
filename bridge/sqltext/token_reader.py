"""Read tokens one after another, and the names and types that they make.

Types are read as gram.y spells them: `character varying(3)` is pg_type's varchar(3). The catalog says which exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgbridge.bridge.sqltext.lexer import COL_NAMES, RESERVED, TYPE_FUNC_NAMES, Kind, Token
from pgbridge.bridge.sqltext.refusal import USER_DEFINED_TYPES, Refused
from pgbridge.bridge.sqltext.syntax import TypeName

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYWORDS: Final = frozenset(
    {
        "bigint", "bit", "boolean", "char", "character", "dec", "decimal", "float", "int", "integer", "interval",
        "json", "numeric", "real", "smallint", "time", "timestamp", "varchar",
    }
)  # fmt: skip
"""The keywords of category C that are read as types."""

FOLLOWING: Final = {"character": "varying", "char": "varying", "bit": "varying", "double": "precision"}
"""A type's first word -> the second one that it may have."""

_CATALOG_NAMES: Final = {
    "boolean": "bool", "smallint": "int2", "int": "int4", "integer": "int4", "bigint": "int8", "real": "float4",
    "double precision": "float8", "decimal": "numeric", "dec": "numeric", "character": "bpchar", "char": "bpchar",
    "character varying": "varchar", "char varying": "varchar", "bit varying": "varbit",
    "time without time zone": "time", "time with time zone": "timetz",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
}  # fmt: skip

_MAX_FLOAT4_BITS: Final = 24
_MAX_FLOAT8_BITS: Final = 53


def type_name(at: int, words: Sequence[str], modifiers: tuple[int, ...], *, is_array: bool) -> TypeName:
    """The type that these keywords, or this unquoted name, mean.

    Raises:
        Refused: The precision of a float is out of range.
    """
    spelling = " ".join(words)
    if spelling == "float":
        bits = modifiers[0] if modifiers else _MAX_FLOAT8_BITS
        if not 1 <= bits <= _MAX_FLOAT8_BITS:
            raise Refused("precision for type float must be between 1 and 53 bits", at)
        return TypeName(at, "float4" if bits <= _MAX_FLOAT4_BITS else "float8", (), is_array)
    if spelling in {"char", "character"} and not modifiers:
        modifiers = (1,)
    return TypeName(at, _CATALOG_NAMES.get(spelling, spelling), modifiers, is_array)


class TokenReader:
    """A position in a list of tokens, the last of which is of kind END."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._next = 0

    # tokens

    @property
    def token(self) -> Token:
        """The next token."""
        return self._tokens[self._next]

    def peek(self) -> Token:
        """The token after the next one, or the last one."""
        return self._tokens[min(self._next + 1, len(self._tokens) - 1)]

    def advance(self) -> Token:
        """Take the next token."""
        token = self.token
        self._next += token.kind is not Kind.END
        return token

    def take_word(self, *words: str) -> bool:
        """Take the next token if it is one of these words."""
        taken = self.token.is_word(*words)
        self._next += taken
        return taken

    def take_symbol(self, symbol: str) -> bool:
        """Take the next token if it is this mark or operator."""
        taken = self.token.is_symbol(symbol)
        self._next += taken
        return taken

    def expect_word(self, *words: str) -> str:
        """Take one of these words, or any word if none is given.

        Raises:
            Refused: The next token is another.
        """
        if self.token.kind is not Kind.WORD or (words and self.token.value not in words):
            raise self.error()
        return self.advance().value

    def expect_symbol(self, symbol: str) -> None:
        """Take this mark or operator.

        Raises:
            Refused: The next token is another.
        """
        if not self.take_symbol(symbol):
            raise self.error()

    def expect_end(self) -> None:
        """Make sure that all tokens have been taken.

        Raises:
            Refused: There is one more.
        """
        if self.token.kind is not Kind.END:
            raise self.error()

    def error(self) -> Refused:
        """A syntax error at the next token."""
        token = self.token
        return Refused("syntax error at end of input" if token.kind is Kind.END else "syntax error", token.start)

    def integer(self) -> int:
        """Take an integer in plain decimal digits.

        Raises:
            Refused: The next token is another.
        """
        if self.token.kind is not Kind.INTEGER or self.token.value != self.token.source:
            raise self.error()
        return int(self.advance().value)

    # names

    def column_name(self) -> tuple[str, ...]:
        """Take the name of a column, qualified or not.

        Raises:
            Refused: A keyword stands here that does not name tables or columns, or no name at all.
        """
        if not self.token.is_col_id:
            raise self.error()
        return self._dotted()

    def any_name(self) -> tuple[str, ...]:
        """Take the name of a function, type or collation, qualified or not.

        Raises:
            Refused: No name stands here.
        """
        if self.token.is_word(*RESERVED) or (self.token.is_word(*TYPE_FUNC_NAMES) and self.peek().is_symbol(".")):
            raise self.error()
        return self._dotted()

    def _dotted(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            if self.token.kind not in {Kind.WORD, Kind.QUOTED}:
                raise self.error()
            parts.append(self.advance().value)
            if not self.take_symbol("."):
                return tuple(parts)

    # types

    def type(self, *, before_literal: bool = False) -> TypeName:
        """Take a type's name with its modifiers.

        Args:
            before_literal: Whether it may only be a type of `type 'literal'`, which is no array.

        Raises:
            Refused: No type's name stands here, or one of a schema other than pg_catalog.
        """
        at = self.token.start
        spelled = self.token.kind is Kind.WORD and not self.peek().is_symbol(".")
        if spelled and self.token.value in COL_NAMES - KEYWORDS:
            raise self.error()
        *schema, name = self.any_name()
        if schema not in ([], ["pg_catalog"]):
            raise Refused(USER_DEFINED_TYPES, at)
        words = [name]
        if spelled and name in FOLLOWING and self.take_word(FOLLOWING[name]):
            words.append(FOLLOWING[name])
        modifiers = self._modifiers()
        if spelled and name in {"time", "timestamp"} and self.token.is_word("with", "without"):
            words += [self.expect_word(), self.expect_word("time"), self.expect_word("zone")]
        is_array = not before_literal and self._array_bounds(at)
        if spelled:
            return type_name(at, words, modifiers, is_array=is_array)
        return TypeName(at, name, modifiers, is_array)

    def _array_bounds(self, at: int) -> bool:
        is_array = False
        while self.take_symbol("["):
            if is_array:
                raise Refused("multidimensional arrays are not translated", at)
            is_array = True
            if self.token.kind is Kind.INTEGER:
                self.integer()
            self.expect_symbol("]")
        return is_array

    def _modifiers(self) -> tuple[int, ...]:
        if not self.token.is_symbol("(") or self.peek().kind is not Kind.INTEGER:
            return ()
        self.advance()
        modifiers = [self.integer()]
        while self.take_symbol(","):
            modifiers.append(self.integer())
        self.expect_symbol(")")
        return tuple(modifiers)
