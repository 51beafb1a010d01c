"""Tokens -> the expression they mean, by the grammar of PostgreSQL's gram.y (`a_expr`, `c_expr`).

Operators bind as gram.y's table of precedence says. A general SQL parser will not do: it takes what PostgreSQL
refuses (`a < b < c`), binds some operators otherwise, and has lost places, subscripts' base and types' names
when it is done.
"""

from __future__ import annotations

from typing import Final

from bridge.sqltext import syntax
from bridge.sqltext.lexer import DECIMAL, END, INTEGER, MARK, NAME, OPERATOR, QUOTED_NAME, STRING, Token, tokens
from bridge.sqltext.refusal import MUTABLE_FUNCTIONS, ONLY_SIMPLE, USER_DEFINED_COLLATIONS, Refused
from bridge.sqltext.token_reader import RESERVED, TokenReader

OR, AND, NOT, IS, COMPARISON, MATCH, OTHER, SUM, PRODUCT, POWER, AT, COLLATE, SIGN, CAST = range(1, 15)
"""How strongly operators bind, the weakest first."""

_COMPARISONS: Final = frozenset({"<", ">", "=", "<=", ">=", "<>"})
_NOT_ASSOCIATIVE: Final = frozenset({IS, COMPARISON, MATCH})
_NOT_COLUMNS: Final = frozenset(
    {
        "between", "bigint", "bit", "boolean", "char", "character", "coalesce", "dec", "decimal", "exists", "extract",
        "float", "greatest", "grouping", "inout", "int", "integer", "interval", "least", "national", "nchar", "none",
        "normalize", "nullif", "numeric", "out", "overlay", "position", "precision", "real", "row", "setof",
        "smallint", "substring", "time", "timestamp", "treat", "trim", "values", "varchar", "authorization", "binary",
        "collation", "concurrently", "cross", "current_schema", "freeze", "full", "ilike", "inner", "is", "isnull",
        "join", "left", "like", "natural", "notnull", "outer", "overlaps", "right", "similar", "tablesample",
        "verbose",
    }
)  # fmt: skip
_SQL_VALUES: Final = frozenset(
    {
        "current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp",
        "current_user", "localtime", "localtimestamp", "session_user", "system_user", "user",
    }
)  # fmt: skip
_MATCHES: Final = {"like": "~~", "ilike": "~~*"}
_MAX_DEPTH: Final = 60


def parse(text: str) -> syntax.Node:
    """The expression that is all of the text.

    Raises:
        Refused: It is none, or one that is not taken; with the place.
    """
    parser = _Parser(tokens(text))
    node = parser.expression(OR)
    parser.expect(END)
    return node


class _Parser(TokenReader):
    def __init__(self, found: list[Token]) -> None:
        super().__init__(found)
        self._depth = 0

    # operators

    def expression(self, least: int) -> syntax.Node:
        """The longest expression whose operators bind at least as strongly as `least`."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Refused("the expression is nested too deeply", self.token.at)
        left = self._prefix()
        closed = 0  # the level of an operator that cannot be followed by another of its level
        while level := self._level():
            if level < least:
                break
            if level == closed:
                raise self.error()
            before = self._next
            left, closed = self._infix(left, level)
            assert self._next > before  # noqa: S101 - or the loop would not end
        self._depth -= 1
        return left

    def _level(self) -> int:
        """How strongly the operator here binds; 0 if there is none."""
        token = self.token
        if token.kind == OPERATOR:
            return _level_of(token.text)
        if token.kind == MARK:
            return {"::": CAST, "[": CAST}.get(token.text, 0)
        if token.kind != NAME:
            return 0
        if token.text == "not":
            after = self.peek()
            return MATCH if after.kind == NAME and after.text in {"between", "in", "like", "ilike", "similar"} else 0
        return _WORD_LEVELS.get(token.text, 0)

    def _prefix(self) -> syntax.Node:
        token = self.token
        if self.take_word("not"):
            return syntax.BooleanOperator(token.at, "not", (self.expression(NOT),))
        if token.kind == OPERATOR:
            if token.text not in {"+", "-", "~"}:
                raise Refused(f"the prefix operator {token.text} is not translated", token.at)
            self.advance()
            argument = self.expression(OTHER + 1 if token.text == "~" else SIGN)
            if (
                token.text == "-"
                and isinstance(argument, syntax.Literal)
                and argument.kind in {INTEGER, DECIMAL}
                and not argument.text.startswith("-")
            ):  # doNegate
                return syntax.Literal(token.at, argument.kind, f"-{argument.text}")
            return syntax.Operator(token.at, token.text, (argument,))
        return self._primary()

    def _infix(  # noqa: C901, PLR0911 - a line for each kind
        self, left: syntax.Node, level: int
    ) -> tuple[syntax.Node, int]:
        """The operator here with its left side -> the whole, and the level that is closed by it."""
        token = self.advance()
        if level == CAST:
            if token.text == "::":
                return syntax.TypeCast(token.at, left, self.type()), 0
            raise Refused(ONLY_SIMPLE, left.at)
        if token.kind == OPERATOR:
            if self.is_word("any", "some", "all"):
                return self._quantified(left, token), 0
            right = self.expression(level + 1)
            return syntax.Operator(token.at, token.text, (left, right)), level if level in _NOT_ASSOCIATIVE else 0
        if token.text in {"and", "or"}:
            return syntax.BooleanOperator(token.at, token.text, (left, self.expression(level + 1))), 0
        if token.text in {"isnull", "notnull"}:
            return syntax.Test(token.at, left, "null", token.text == "notnull"), 0
        if token.text == "is":
            return self._is(left, token)
        if token.text == "collate":
            name = self.dotted()
            if len(name) > 1 and name[:-1] != ("pg_catalog",):
                raise Refused(USER_DEFINED_COLLATIONS, token.at)
            return syntax.Collate(token.at, left, name[-1]), 0
        if token.text in {"at", "operator", "overlaps"}:
            raise Refused(f"{token.text.upper()} is not translated", token.at)
        return self._match(left, token)

    def _is(self, left: syntax.Node, token: Token) -> tuple[syntax.Node, int]:
        negated = self.take_word("not")
        if self.take_word("distinct"):
            self.expect(NAME, "from")
            return syntax.Distinct(token.at, left, self.expression(IS + 1), negated), IS
        what = self.expect(NAME).text
        if what not in {"null", "true", "false", "unknown"}:
            raise Refused(f"IS {what.upper()} is not translated", token.at)
        return syntax.Test(token.at, left, what, negated), 0

    def _match(self, left: syntax.Node, token: Token) -> tuple[syntax.Node, int]:
        """[NOT] LIKE, ILIKE, IN, BETWEEN."""
        negated = token.text == "not"
        word = self.advance().text if negated else token.text
        if word == "in":
            self.expect(MARK, "(")
            items = self._items(")")
            return syntax.In(token.at, left, items, negated), 0
        if word == "between":
            return self._between(left, token.at, negated=negated), MATCH
        if word not in _MATCHES:
            raise Refused(f"{word.upper()} is not translated", token.at)
        pattern = self.expression(MATCH + 1)
        if self.is_word("escape"):
            at = self.advance().at
            pattern = syntax.Call(at, "like_escape", (pattern, self.expression(MATCH + 1)))
        name = ("!" if negated else "") + _MATCHES[word]
        return syntax.Operator(token.at, name, (left, pattern)), MATCH

    def _between(self, left: syntax.Node, at: int, *, negated: bool) -> syntax.Node:
        symmetric = self.take_word("symmetric")
        if not symmetric:
            self.take_word("asymmetric")
        # The grammar has a b_expr here, which is rarely more than this; a comparison is refused by the next line.
        low = self.expression(OTHER)
        self.expect(NAME, "and")
        high = self.expression(MATCH + 1)

        def both(one: syntax.Node, other: syntax.Node) -> syntax.Node:
            names = ("<", ">", "or") if negated else (">=", "<=", "and")
            sides = (syntax.Operator(at, name, (left, bound)) for name, bound in zip(names, (one, other), strict=False))
            return syntax.BooleanOperator(at, names[2], tuple(sides))

        if not symmetric:
            return both(low, high)
        return syntax.BooleanOperator(at, "and" if negated else "or", (both(low, high), both(high, low)))

    def _quantified(self, left: syntax.Node, operator: Token) -> syntax.Node:
        every = self.advance().text == "all"
        self.expect(MARK, "(")
        self._refuse_subquery()
        right = self.expression(OR)
        self.expect(MARK, ")")
        return syntax.Quantified(operator.at, operator.text, left, right, every)

    # what operators connect

    def _primary(self) -> syntax.Node:
        token = self.token
        if token.kind in {STRING, INTEGER, DECIMAL}:
            self.advance()
            return syntax.Literal(token.at, token.kind, token.text)
        if token.kind == MARK and token.text == "(":
            return self._parenthesised()
        if token.kind == NAME:
            return self._word()
        if token.kind == QUOTED_NAME:
            return self._name()
        raise self.error()

    def _parenthesised(self) -> syntax.Node:
        at = self.advance().at
        self._refuse_subquery()
        items = self._items(")")
        if self.is_mark("."):
            raise Refused(ONLY_SIMPLE, at)
        if len(items) > 1:
            return syntax.Row(at, items)
        return items[0]

    def _word(self) -> syntax.Node:
        token = self.token
        if token.text in {"true", "false", "null"}:
            self.advance()
            return syntax.Literal(token.at, "null" if token.text == "null" else "boolean", token.text)
        if token.text == "case":
            return self._case()
        if token.text in _SQL_VALUES or (token.text == "exists" and self.peek().text == "("):
            raise Refused(ONLY_SIMPLE, token.at)
        calling = self.peek().kind == MARK and self.peek().text == "("
        special = getattr(self, f"_call_{token.text}", None) if calling else None
        if special:
            self._next += 2
            node: syntax.Node = special(token.at)
            self.expect(MARK, ")")
            return node
        if token.text == "array":
            return self._array()
        if token.text in RESERVED:
            raise self.error()
        return self._typed_literal() or self._name()

    def _typed_literal(self) -> syntax.Node | None:
        """`type 'literal'`, or None if something else stands here."""
        before = self._next
        try:
            type_ = self.type(plain=True)
        except Refused:
            type_ = None
        if type_ and self.token.kind == STRING:
            string = self.advance()
            if type_.name == "interval" and self.token.kind == NAME and self.token.text in _INTERVAL_FIELDS:
                raise Refused("interval fields are not translated", self.token.at)
            return syntax.TypeCast(type_.at, syntax.Literal(string.at, STRING, string.text), type_)
        self._next = before
        return None

    def _name(self) -> syntax.Node:
        token = self.token
        if token.kind == NAME and token.text in _NOT_COLUMNS and self.peek().text not in {"(", "."}:
            raise self.error()
        parts = self.dotted()
        if not self.is_mark("("):
            return syntax.ColumnName(token.at, parts)
        if len(parts) > 1 and parts[:-1] != ("pg_catalog",):
            raise Refused(MUTABLE_FUNCTIONS, token.at)
        self.advance()
        if self.is_word("distinct", "all", "variadic"):
            raise self.error()
        arguments = () if self.is_mark(")") else self._items(")", closing=False)
        self.expect(MARK, ")")
        if self.is_word("over", "filter", "within"):
            raise Refused("aggregate and window functions are not allowed in WHERE", token.at)
        return syntax.Call(token.at, parts[-1], arguments)

    def _items(self, end: str, *, closing: bool = True) -> tuple[syntax.Node, ...]:
        self._refuse_subquery()
        items = [self.expression(OR)]
        while self.take_mark(","):
            items.append(self.expression(OR))
        if closing:
            self.expect(MARK, end)
        return tuple(items)

    def _refuse_subquery(self) -> None:
        if self.is_word("select", "values", "with", "table"):
            raise Refused(ONLY_SIMPLE, self.token.at)

    def _array(self) -> syntax.Node:
        at = self.advance().at
        if self.is_mark("("):
            raise Refused(ONLY_SIMPLE, at)
        self.expect(MARK, "[")
        if self.take_mark("]"):
            return syntax.ArrayItems(at, ())
        if self.is_mark("[") or self.is_word("array"):
            raise Refused("multidimensional arrays are not translated", self.token.at)
        return syntax.ArrayItems(at, self._items("]"))

    def _case(self) -> syntax.Node:
        at = self.advance().at
        operand = None if self.is_word("when") else self.expression(OR)
        branches = []
        while self.take_word("when"):
            condition = self.expression(OR)
            self.expect(NAME, "then")
            branches.append((condition, self.expression(OR)))
        default = self.expression(OR) if self.take_word("else") else None
        self.expect(NAME, "end")
        if not branches:
            raise self.error()
        return syntax.Case(at, operand, tuple(branches), default)

    # calls with a syntax of their own; each stands behind its opening parenthesis and leaves the closing one

    def _call_cast(self, at: int) -> syntax.Node:
        argument = self.expression(OR)
        self.expect(NAME, "as")
        return syntax.TypeCast(at, argument, self.type())

    def _call_extract(self, at: int) -> syntax.Node:
        field = self.advance()
        if field.kind not in {NAME, QUOTED_NAME, STRING}:
            raise self.error()
        self.expect(NAME, "from")
        return syntax.Call(at, "extract", (syntax.Literal(field.at, STRING, field.text), self.expression(OR)))

    def _call_position(self, at: int) -> syntax.Node:
        part = self.expression(OTHER)
        self.expect(NAME, "in")
        return syntax.Call(at, "position", (self.expression(OTHER), part))

    def _call_substring(self, at: int) -> syntax.Node:
        text = self.expression(OR)
        if self.take_mark(","):
            return syntax.Call(at, "substring", (text, *self._items(")", closing=False)))
        if not self.is_word("from", "for"):
            raise Refused("SUBSTRING … SIMILAR is not translated", self.token.at)
        start: syntax.Node = syntax.Literal(at, INTEGER, "1")
        if self.take_word("from"):
            start = self.expression(OR)
        count = (self.expression(OR),) if self.take_word("for") else ()
        if count and self.is_word("from"):
            raise self.error()
        return syntax.Call(at, "substring", (text, start, *count))

    def _call_overlay(self, at: int) -> syntax.Node:
        arguments = [self.expression(OR)]
        for word in ("placing", "from"):
            self.expect(NAME, word)
            arguments.append(self.expression(OR))
        if self.take_word("for"):
            arguments.append(self.expression(OR))
        return syntax.Call(at, "overlay", tuple(arguments))

    def _call_trim(self, at: int) -> syntax.Node:
        name = {"leading": "ltrim", "trailing": "rtrim"}.get(self.token.text, "btrim")
        self.take_word("leading", "trailing", "both")
        if self.take_word("from"):
            return syntax.Call(at, name, self._items(")", closing=False))
        items = self._items(")", closing=False)
        return (
            syntax.Call(at, name, (self.expression(OR), *items))
            if self.take_word("from")
            else syntax.Call(at, name, items)
        )

    def _call_row(self, at: int) -> syntax.Node:
        return syntax.Row(at, self._items(")", closing=False))


_INTERVAL_FIELDS: Final = frozenset({"year", "month", "day", "hour", "minute", "second"})
_WORD_LEVELS: Final = {
    "or": OR, "and": AND, "is": IS, "isnull": IS, "notnull": IS, "between": MATCH, "in": MATCH, "like": MATCH,
    "ilike": MATCH, "similar": MATCH, "operator": OTHER, "at": AT, "collate": COLLATE,
}  # fmt: skip


def _level_of(operator: str) -> int:
    if operator in _COMPARISONS:
        return COMPARISON
    return {"+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "%": PRODUCT, "^": POWER}.get(operator, OTHER)
