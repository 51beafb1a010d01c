"""Parses the text of an expression by the grammar of PostgreSQL's gram.y (`a_expr`, `c_expr`).

Operators have the precedence of gram.y. A general SQL parser will not do: it accepts what PostgreSQL refuses
(`a < b < c`), gives some operators another precedence, and loses places and the names of types.
"""

from __future__ import annotations

from typing import Final

from pgbridge.bridge.sqltext import syntax
from pgbridge.bridge.sqltext.lexer import RESERVED, Kind, Token, tokens
from pgbridge.bridge.sqltext.refusal import MUTABLE_FUNCTIONS, ONLY_SIMPLE, USER_DEFINED_COLLATIONS, Refused
from pgbridge.bridge.sqltext.token_reader import TokenReader

OR, AND, NOT, IS, COMPARISON, MATCH, OTHER, SUM, PRODUCT, POWER, AT, COLLATE, SIGN, CAST = range(1, 15)
"""The precedence of operators, the lowest first."""

_COMPARISONS: Final = frozenset({"<", ">", "=", "<=", ">=", "<>"})
_NOT_ASSOCIATIVE: Final = frozenset({IS, COMPARISON, MATCH})
_SQL_VALUES: Final = frozenset(
    {
        "current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp",
        "current_user", "localtime", "localtimestamp", "session_user", "system_user", "user",
    }
)  # fmt: skip
_NOT_TRANSLATED: Final = {"at": "AT TIME ZONE", "operator": "OPERATOR"}
_MATCHES: Final = {"like": "~~", "ilike": "~~*"}
_MAX_DEPTH: Final = 60
_BYTE_ESCAPE: Final = "what an escape beyond ASCII means depends on the encoding; write the character or \\u…"
_NEW_NUMBER: Final = "before version 16, PostgreSQL reads this number differently; write plain decimal digits"


def parse(text: str) -> syntax.Node:
    """Parse a text that is one expression.

    Raises:
        Refused: PostgreSQL would refuse the text, or it is not translated; with the place.
    """
    parser = _Parser(tokens(text))
    node = parser.expression(OR)
    parser.expect_end()
    return node


class _Parser(TokenReader):
    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self._depth = 0

    # operators

    def expression(self, least: int) -> syntax.Node:
        """Parse the longest expression whose operators have at least the precedence `least`."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Refused("the expression is nested too deeply", self.token.start)
        left = self._prefix()
        closed = 0  # the precedence of the last operator if it is not associative
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
        """The precedence of the next token as an infix operator; 0 if it is not one."""
        token = self.token
        if token.kind is Kind.OPERATOR:
            return _level_of(token.value)
        if token.kind is Kind.MARK:
            return {"::": CAST, "[": CAST}.get(token.value, 0)
        if token.kind is not Kind.WORD:
            return 0
        if token.value == "not":
            return MATCH if self.peek().is_word("between", "in", "like", "ilike", "similar") else 0
        return _WORD_LEVELS.get(token.value, 0)

    def _prefix(self) -> syntax.Node:
        token = self.token
        if self.take_word("not"):
            return syntax.BooleanOperator(token.start, "not", (self.expression(NOT),))
        if token.kind is Kind.OPERATOR:
            if token.value not in {"+", "-", "~"}:
                raise Refused(f"the prefix operator {token.value} is not translated", token.start)
            self.advance()
            argument = self.expression(OTHER + 1 if token.value == "~" else SIGN)
            if (
                token.value == "-"
                and isinstance(argument, syntax.Literal)
                and argument.kind in {"integer", "decimal"}
                and not argument.text.startswith("-")
            ):  # doNegate
                return syntax.Literal(token.start, argument.kind, f"-{argument.text}")
            return syntax.Operator(token.start, token.value, (argument,))
        return self._primary()

    def _infix(  # noqa: C901, PLR0911 - a line for each kind
        self, left: syntax.Node, level: int
    ) -> tuple[syntax.Node, int]:
        """Parse an operator and what follows it; also return its precedence if it is not associative, else 0."""
        token = self.advance()
        if level == CAST:
            if token.value == "::":
                return syntax.TypeCast(token.start, left, self.type()), 0
            raise Refused(ONLY_SIMPLE, left.at)
        if token.kind is Kind.OPERATOR:
            if self.token.is_word("any", "some", "all"):
                return self._quantified(left, token), 0
            right = self.expression(level + 1)
            return syntax.Operator(token.start, token.value, (left, right)), level if level in _NOT_ASSOCIATIVE else 0
        if token.value in {"and", "or"}:
            return syntax.BooleanOperator(token.start, token.value, (left, self.expression(level + 1))), 0
        if token.value in {"isnull", "notnull"}:
            return syntax.Test(token.start, left, "null", token.value == "notnull"), 0
        if token.value == "is":
            return self._is(left, token)
        if token.value == "collate":
            name = self.any_name()
            if len(name) > 1 and name[:-1] != ("pg_catalog",):
                raise Refused(USER_DEFINED_COLLATIONS, token.start)
            return syntax.Collate(token.start, left, name[-1]), 0
        if token.value in _NOT_TRANSLATED:
            raise Refused(f"{_NOT_TRANSLATED[token.value]} is not translated", token.start)
        return self._match(left, token)

    def _is(self, left: syntax.Node, token: Token) -> tuple[syntax.Node, int]:
        negated = self.take_word("not")
        if self.take_word("distinct"):
            self.expect_word("from")
            return syntax.Distinct(token.start, left, self.expression(IS + 1), negated), IS
        what = self.expect_word()
        if what not in {"null", "true", "false", "unknown"}:
            raise Refused(f"IS {what.upper()} is not translated", token.start)
        return syntax.Test(token.start, left, what, negated), 0

    def _match(self, left: syntax.Node, token: Token) -> tuple[syntax.Node, int]:
        """[NOT] LIKE, ILIKE, IN, BETWEEN."""
        negated = token.value == "not"
        word = self.advance().value if negated else token.value
        if word == "in":
            self.expect_symbol("(")
            items = self._items(")")
            return syntax.In(token.start, left, items, negated), 0
        if word == "between":
            return self._between(left, token.start, negated=negated), MATCH
        if word not in _MATCHES:
            raise Refused(f"{word.upper()} is not translated", token.start)
        pattern = self.expression(MATCH + 1)
        if self.token.is_word("escape"):
            at = self.advance().start
            pattern = syntax.Call(at, "like_escape", (pattern, self.expression(MATCH + 1)))
        name = ("!" if negated else "") + _MATCHES[word]
        return syntax.Operator(token.start, name, (left, pattern)), MATCH

    def _between(self, left: syntax.Node, at: int, *, negated: bool) -> syntax.Node:
        symmetric = self.take_word("symmetric")
        if not symmetric:
            self.take_word("asymmetric")
        # the grammar has a b_expr here, which may be a comparison, too; the next line refuses that
        low = self.expression(OTHER)
        self.expect_word("and")
        high = self.expression(MATCH + 1)

        def both(lower: syntax.Node, upper: syntax.Node) -> syntax.Node:
            names = ("<", ">", "or") if negated else (">=", "<=", "and")
            sides = (
                syntax.Operator(at, name, (left, bound)) for name, bound in zip(names, (lower, upper), strict=False)
            )
            return syntax.BooleanOperator(at, names[2], tuple(sides))

        if not symmetric:
            return both(low, high)
        return syntax.BooleanOperator(at, "and" if negated else "or", (both(low, high), both(high, low)))

    def _quantified(self, left: syntax.Node, operator: Token) -> syntax.Node:
        every = self.advance().value == "all"
        self.expect_symbol("(")
        self._refuse_subquery()
        right = self.expression(OR)
        self.expect_symbol(")")
        return syntax.Quantified(operator.start, operator.value, left, right, every)

    # operands

    def _primary(self) -> syntax.Node:
        token = self.token
        if token.kind is Kind.WORD:
            return self._word()
        if token.kind is Kind.QUOTED:
            return self._name()
        if token.is_symbol("("):
            return self._parenthesised()
        return self._literal()

    def _literal(self) -> syntax.Literal:
        """A number or a string that all versions of PostgreSQL read alike in databases of all encodings."""
        token = self.token
        match token.kind:
            case Kind.PARAMETER:
                raise Refused(f"there is no parameter {token.value}", token.start)
            case Kind.BITS | Kind.NATIONAL:
                raise Refused(f"{token.source[0].upper()}'…' literals are not translated", token.start)
            case Kind.BYTES:
                raise Refused(_BYTE_ESCAPE, token.start)
            case Kind.INTEGER | Kind.DECIMAL if token.value != token.source:
                raise Refused(_NEW_NUMBER, token.start)
            case Kind.STRING | Kind.INTEGER | Kind.DECIMAL:
                self.advance()
                return syntax.Literal(token.start, token.kind.value, token.value)
        raise self.error()

    def _parenthesised(self) -> syntax.Node:
        at = self.advance().start
        self._refuse_subquery()
        items = self._items(")")
        if self.token.is_symbol("."):
            raise Refused(ONLY_SIMPLE, at)
        if len(items) > 1:
            return syntax.Row(at, items)
        return items[0]

    def _word(self) -> syntax.Node:
        token = self.token
        if token.value in {"true", "false", "null"}:
            self.advance()
            return syntax.Literal(token.start, "null" if token.value == "null" else "boolean", token.value)
        if token.value == "case":
            return self._case()
        if token.value in _SQL_VALUES or (token.value == "exists" and self.peek().is_symbol("(")):
            raise Refused(ONLY_SIMPLE, token.start)
        special = getattr(self, f"_call_{token.value}", None) if self.peek().is_symbol("(") else None
        if special:
            self._next += 2
            node: syntax.Node = special(token.start)
            self.expect_symbol(")")
            return node
        if token.value == "array":
            return self._array()
        if token.value in RESERVED:
            raise self.error()
        return self._typed_literal() or self._name()

    def _typed_literal(self) -> syntax.Node | None:
        """Parse `type 'literal'`; None if the next tokens are something else."""
        before = self._next
        try:
            type_ = self.type(before_literal=True)
        except Refused:
            type_ = None
        if type_ and self.token.kind in {Kind.STRING, Kind.NATIONAL, Kind.BYTES, Kind.BITS}:
            literal = self._literal()
            if type_.name == "interval" and self.token.is_word(*_INTERVAL_FIELDS):
                raise Refused("interval fields are not translated", self.token.start)
            return syntax.TypeCast(type_.at, literal, type_)
        self._next = before
        return None

    def _name(self) -> syntax.Node:
        token = self.token
        parts = self.any_name() if self.peek().is_symbol("(") else self.column_name()
        if not self.token.is_symbol("("):
            return syntax.ColumnName(token.start, parts)
        if len(parts) > 1 and parts[:-1] != ("pg_catalog",):
            raise Refused(MUTABLE_FUNCTIONS, token.start)
        self.advance()
        if self.token.is_word("distinct", "all", "variadic"):
            raise self.error()
        arguments = () if self.token.is_symbol(")") else self._items(")", closing=False)
        self.expect_symbol(")")
        if self.token.is_word("over", "filter", "within"):
            raise Refused("aggregate and window functions are not allowed in WHERE", token.start)
        return syntax.Call(token.start, parts[-1], arguments)

    def _items(self, end: str, *, closing: bool = True) -> tuple[syntax.Node, ...]:
        self._refuse_subquery()
        items = [self.expression(OR)]
        while self.take_symbol(","):
            items.append(self.expression(OR))
        if closing:
            self.expect_symbol(end)
        return tuple(items)

    def _refuse_subquery(self) -> None:
        values = self.token.is_word("values") and self.peek().is_symbol("(")
        if values or self.token.is_word("select", "with", "table"):
            raise Refused(ONLY_SIMPLE, self.token.start)

    def _array(self) -> syntax.Node:
        at = self.advance().start
        if self.token.is_symbol("("):
            raise Refused(ONLY_SIMPLE, at)
        self.expect_symbol("[")
        if self.take_symbol("]"):
            return syntax.ArrayItems(at, ())
        if self.token.is_symbol("[") or self.token.is_word("array"):
            raise Refused("multidimensional arrays are not translated", self.token.start)
        return syntax.ArrayItems(at, self._items("]"))

    def _case(self) -> syntax.Node:
        at = self.advance().start
        operand = None if self.token.is_word("when") else self.expression(OR)
        branches = []
        while self.take_word("when"):
            condition = self.expression(OR)
            self.expect_word("then")
            branches.append((condition, self.expression(OR)))
        default = self.expression(OR) if self.take_word("else") else None
        self.expect_word("end")
        if not branches:
            raise self.error()
        return syntax.Case(at, operand, tuple(branches), default)

    # calls with a syntax of their own, from behind the opening parenthesis to before the closing one

    def _call_cast(self, at: int) -> syntax.Node:
        argument = self.expression(OR)
        self.expect_word("as")
        return syntax.TypeCast(at, argument, self.type())

    def _call_extract(self, at: int) -> syntax.Node:
        field = self.advance()
        if field.kind not in {Kind.WORD, Kind.QUOTED, Kind.STRING}:
            raise self.error()
        self.expect_word("from")
        return syntax.Call(at, "extract", (syntax.Literal(field.start, "string", field.value), self.expression(OR)))

    def _call_position(self, at: int) -> syntax.Node:
        part = self.expression(OTHER)
        self.expect_word("in")
        return syntax.Call(at, "position", (self.expression(OTHER), part))

    def _call_substring(self, at: int) -> syntax.Node:
        text = self.expression(OR)
        if self.take_symbol(","):
            return syntax.Call(at, "substring", (text, *self._items(")", closing=False)))
        if not self.token.is_word("from", "for"):
            raise Refused("SUBSTRING … SIMILAR is not translated", self.token.start)
        start: syntax.Node = syntax.Literal(at, "integer", "1")
        if self.take_word("from"):
            start = self.expression(OR)
        count = (self.expression(OR),) if self.take_word("for") else ()
        if count and self.token.is_word("from"):
            raise self.error()
        return syntax.Call(at, "substring", (text, start, *count))

    def _call_overlay(self, at: int) -> syntax.Node:
        arguments = [self.expression(OR)]
        for word in ("placing", "from"):
            self.expect_word(word)
            arguments.append(self.expression(OR))
        if self.take_word("for"):
            arguments.append(self.expression(OR))
        return syntax.Call(at, "overlay", tuple(arguments))

    def _call_trim(self, at: int) -> syntax.Node:
        name = {"leading": "ltrim", "trailing": "rtrim"}.get(self.token.value, "btrim")
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
