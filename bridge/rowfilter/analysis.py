"""Turns the parse tree into a typed expression with the conversions, operators and functions that PostgreSQL calls.

The rules are those of parse_expr.c and parse_coerce.c. What `check_simple_rowfilter_expr_walker` (publicationcmds.c)
does not allow in a row filter is refused in PostgreSQL's words; what is not translated is refused with the reason.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, functions as F

from pgbridge.bridge.rowfilter.functions import arrays, casts, comparisons, numbers, translations
from pgbridge.bridge.rowfilter.resolution import choose, coerced, common_type, is_array, to_common
from pgbridge.bridge.rowfilter.types import literals, typed
from pgbridge.bridge.rowfilter.types.encodings import Encoding, check_operator
from pgbridge.bridge.rowfilter.types.pg_catalog import FUNCTIONS, OPERATORS, Signature, check_builtin, shown
from pgbridge.bridge.rowfilter.types.typed import (
    COLLATABLE,
    UNKNOWN,
    Collation,
    Constant,
    FilterColumn,
    Strength,
    Typed,
)
from pgbridge.bridge.sqltext import syntax
from pgbridge.bridge.sqltext.refusal import MUTABLE_FUNCTIONS, ONLY_SIMPLE, SYSTEM_COLUMNS, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SYSTEM_COLUMNS: Final = frozenset({"ctid", "xmin", "cmin", "xmax", "cmax", "tableoid"})
_BOOLEAN: Final = "bool"
_INT4: Final = 2**31
_INT8: Final = 2**63


class Analysis:
    """The analysis of row filters of one table.

    Args:
        columns: The table's columns by name.
        table: The table's schema and name, with which a column's name may be qualified; empty if it may not.
        default: The database's collation.
        encoding: The database's encoding.
    """

    def __init__(
        self, columns: Mapping[str, FilterColumn], table: tuple[str, str], default: Collation, encoding: Encoding
    ) -> None:
        self._columns = columns
        self._table = table
        self._default, self._encoding = default, encoding

    def condition(self, node: syntax.Node) -> Typed:
        """Type the expression that is the whole filter.

        Raises:
            Refused: The expression cannot be a row filter, or is not translated; with the place.
        """
        value = self._typed(node)
        if value.type not in {_BOOLEAN, UNKNOWN}:
            raise Refused(f"argument of PUBLICATION WHERE must be type boolean, not type {shown(value.type)}", node.at)
        return self._coerced(value, _BOOLEAN, node.at)

    def _typed(self, node: syntax.Node) -> Typed:
        try:
            return self._dispatch(node)
        except Refused as refused:
            if refused.at is None:
                raise Refused(refused.reason, node.at) from None
            raise

    @functools.singledispatchmethod
    def _dispatch(self, node: syntax.Node) -> Typed:
        raise Refused(ONLY_SIMPLE, node.at)

    @_dispatch.register
    def _(self, node: syntax.Row) -> Typed:
        raise Refused("a row of values is translated only where it is compared with another row", node.at)

    # leaves

    @_dispatch.register
    def _(self, node: syntax.Literal) -> Typed:
        if node.kind == "null":
            return typed.constant(UNKNOWN, None, node.at, self._default)
        if node.kind == "string":
            return typed.constant(UNKNOWN, node.text, node.at, self._default)
        if node.kind == "boolean":
            return typed.constant(_BOOLEAN, node.text == "true", node.at)
        if node.kind == "integer":
            value = int(node.text)
            for type_, size in (("int4", _INT4), ("int8", _INT8)):
                if -size <= value < size:
                    return typed.constant(type_, value, node.at)
        return typed.constant("numeric", literals.value_of("numeric", node.text, node.at), node.at)

    @_dispatch.register
    def _(self, node: syntax.ColumnName) -> Typed:
        name = self._unqualified(node)
        column = self._columns.get(name)
        if column is None:
            if name in _SYSTEM_COLUMNS:
                raise Refused(SYSTEM_COLUMNS, node.at)
            raise Refused(f'column "{name}" does not exist', node.at)
        return typed.reference(name, column, self._default, node.at)

    def _unqualified(self, node: syntax.ColumnName) -> str:
        *qualifiers, name = node.parts
        if qualifiers and tuple(qualifiers) not in {self._table, self._table[1:]}:
            raise Refused(f'missing FROM-clause entry for table "{".".join(qualifiers)}"', node.at)
        return name

    # conversions

    @_dispatch.register
    def _(self, node: syntax.TypeCast) -> Typed:
        check_builtin(node.type)
        target = f"_{node.type.name}" if node.type.is_array else node.type.name
        if isinstance(node.argument, syntax.ArrayItems) and is_array(target):
            return self._array(node.argument, target[1:])
        argument = self._typed(node.argument)
        converted = self._coerced(argument, target, node.at, contexts="iae")
        if is_array(target) and node.type.modifiers:
            raise Refused("modifiers of array types are not translated", node.at)
        return casts.with_modifiers(converted, node.type.modifiers, node.at, self._encoding)

    @_dispatch.register
    def _(self, node: syntax.Collate) -> Typed:
        argument = self._typed(node.argument)
        if argument.type not in COLLATABLE:
            raise Refused(f"collations are not supported by type {shown(argument.type)}", node.at)
        if argument.type == UNKNOWN:
            argument = self._coerced(argument, "text", node.at)
        if node.collation not in {"C", "POSIX"}:
            raise Refused(f'COLLATE "{node.collation}" is not translated; COLLATE "C" is', node.at)
        return replace(argument, strength=Strength(replace(typed.C_COLLATION, name=node.collation), explicit=True))

    def _coerced(self, node: Typed, target: str, at: int, *, contexts: str = "i") -> Typed:
        return coerced(node, target, at, contexts=contexts, default=self._default, encoding=self._encoding)

    def _alike(self, nodes: Sequence[syntax.Node], what: str, at: int) -> tuple[Typed, ...]:
        """Type values and convert them to their common type."""
        return to_common([self._typed(node) for node in nodes], what, at, self._default, self._encoding)

    def _same(
        self, result: tuple[Typed, ...], apply: Callable[..., Column], at: int, arguments: tuple[Typed, ...]
    ) -> Typed:
        """An expression whose value is the value of one of `result`."""
        first = result[0]
        if first.type == "jsonb":
            raise Refused("choosing between values of type jsonb is not translated", at)
        strength = typed.merged(result) if first.type in COLLATABLE else None
        return Typed(first.type, at, apply, arguments, first.digits, strength)

    # operators

    @_dispatch.register
    def _(self, node: syntax.Operator) -> Typed:
        if any(isinstance(argument, syntax.Row) for argument in node.arguments) and len(node.arguments) == 2:
            return comparisons.compare_rows(node.name, *node.arguments, self._operate_nodes, node.at)
        arguments = tuple(self._typed(argument) for argument in node.arguments)
        if len(arguments) == 1:
            return self._prefix(node.name, arguments[0], node.at)
        return self._operate(node.name, arguments, node.at)

    def _prefix(self, name: str, argument: Typed, at: int) -> Typed:
        signature = choose(OPERATORS[f"prefix {name}"], (argument.type,))
        if signature is None:
            raise Refused(f"operator does not exist: {name} {shown(argument.type)}", at)
        converted = self._coerced(argument, signature.arguments[0], at)
        return numbers.prefix_operator(name, converted, at)

    def _operate(self, name: str, arguments: tuple[Typed, ...], at: int) -> Typed:
        signature = self._operator(name, tuple(argument.type for argument in arguments), at)
        return translations.operator(name, signature, self._passed(signature, arguments, at), at, self._encoding)

    def _operate_nodes(self, name: str, left: syntax.Node, right: syntax.Node) -> Typed:
        return self._operate(name, (self._typed(left), self._typed(right)), left.at)

    def _operator(self, name: str, types: tuple[str, ...], at: int) -> Signature:
        if name not in OPERATORS:
            raise Refused(f"the operator {name} is not translated", at)
        signature = choose(OPERATORS[name], types, binary=True)
        if signature is None:
            raise Refused(f"operator does not exist: {shown(types[0])} {name} {shown(types[1])}", at)
        if not signature.immutable:
            raise Refused(MUTABLE_FUNCTIONS, at)
        return signature

    def _passed(self, signature: Signature, arguments: tuple[Typed, ...], at: int) -> tuple[Typed, ...]:
        """Convert the arguments to the types of the signature."""
        known = next((argument.type for argument in arguments if argument.type != UNKNOWN), UNKNOWN)
        passed = []
        for declared, argument in zip(signature.arguments, arguments, strict=True):
            target = declared
            if declared.startswith("any"):
                target = known if argument.type == UNKNOWN else argument.type
            passed.append(self._coerced(argument, target, at))
        return tuple(passed)

    @_dispatch.register
    def _(self, node: syntax.BooleanOperator) -> Typed:
        arguments = tuple(self._boolean(argument, node.name.upper()) for argument in node.arguments)
        if node.name == "not":
            return Typed(_BOOLEAN, node.at, lambda condition: ~condition, arguments)
        apply = (lambda a, b: a & b) if node.name == "and" else (lambda a, b: a | b)
        return Typed(_BOOLEAN, node.at, apply, arguments)

    def _boolean(self, node: syntax.Node, what: str) -> Typed:
        value = self._typed(node)
        if value.type not in {_BOOLEAN, UNKNOWN}:
            raise Refused(f"argument of {what} must be type boolean, not type {shown(value.type)}", node.at)
        return self._coerced(value, _BOOLEAN, node.at)

    @_dispatch.register
    def _(self, node: syntax.Test) -> Typed:
        if isinstance(node.argument, syntax.Row) and node.what == "null":
            items = [self._known(item) for item in node.argument.items]
            return comparisons.null_row(items, negated=node.negated, at=node.at)
        if node.what == "null":
            argument = self._known(node.argument)
            return Typed(_BOOLEAN, node.at, comparisons.test(node.what, negated=node.negated), (argument,))
        argument = self._boolean(node.argument, f"IS {node.what.upper()}")
        return Typed(_BOOLEAN, node.at, comparisons.test(node.what, negated=node.negated), (argument,))

    def _known(self, node: syntax.Node) -> Typed:
        """Type an expression of any type; a literal of unknown type becomes text."""
        value = self._typed(node)
        return self._coerced(value, "text", node.at) if value.type == UNKNOWN else value

    @_dispatch.register
    def _(self, node: syntax.Distinct) -> Typed:
        if isinstance(node.left, syntax.Row) or isinstance(node.right, syntax.Row):
            return comparisons.distinct_rows(node, self._operate_nodes)
        left, right = self._typed(node.left), self._typed(node.right)
        equal = self._operate("=", (left, right), node.at)

        def apply(left_column: Column, right_column: Column) -> Column:
            different = comparisons.distinct(left_column, right_column, equal.apply)
            return ~different if node.negated else different

        return Typed(_BOOLEAN, node.at, apply, equal.arguments)

    @_dispatch.register
    def _(self, node: syntax.In) -> Typed:
        """`transformAExprIn`: constants are converted to their common type, other items are compared one by one."""
        if isinstance(node.argument, syntax.Row):
            return comparisons.within_rows(node, self._operate_nodes)
        left = self._typed(node.argument)
        items = [self._typed(item) for item in node.items]
        fixed = [item for item in items if not item.columns()]
        name = "<>" if node.negated else "="
        parts = []
        if len(fixed) > 1:
            common = common_type([left.type, *(item.type for item in fixed)])
            if common:
                signature = self._operator(name, (left.type, common), node.at)
                if signature.arguments[1] != common:
                    raise Refused(ONLY_SIMPLE, node.at)  # the array would be converted
                fixed = [self._coerced(item, common, item.at) for item in fixed]
        else:
            fixed = []
        parts = [self._operate(name, (left, item), node.at) for item in fixed]
        parts += [self._operate(name, (left, item), node.at) for item in items if item.columns() or not fixed]
        both = (lambda a, b: a & b) if node.negated else (lambda a, b: a | b)
        return Typed(_BOOLEAN, node.at, lambda *columns: functools.reduce(both, columns), tuple(parts))

    @_dispatch.register
    def _(self, node: syntax.Quantified) -> Typed:
        """`make_scalar_array_op`."""
        left = self._typed(node.left)
        right = self._typed(node.right)
        if right.type == UNKNOWN:
            item = left.type if left.type != UNKNOWN else "text"
        elif is_array(right.type):
            item = right.type[1:]
        else:
            raise Refused("op ANY/ALL (array) requires array on right side", node.at)
        signature = self._operator(node.name, (left.type, item), node.at)
        if signature.result != _BOOLEAN:
            raise Refused("op ANY/ALL (array) requires operator to yield boolean", node.at)
        right = self._coerced(right, f"_{signature.arguments[1]}", node.at)
        left = self._coerced(left, signature.arguments[0], node.at)
        if node.name not in comparisons.COMPARISONS:
            raise Refused(f"the operator {node.name} with ANY or ALL is not translated", node.at)
        if right.type == "_numeric":
            left, right = numbers.with_array(left, right)
        check_operator(self._encoding, node.name, (left, right), node.at)
        element = Typed(right.type[1:], right.at, right.apply, (), right.digits, right.strength)
        compared = comparisons.compare(node.name, left, element, node.at)
        return arrays.quantified(left, right, compared.apply, every=node.every, at=node.at)

    # the rest

    @_dispatch.register
    def _(self, node: syntax.ArrayItems) -> Typed:
        if not node.items:
            raise Refused("cannot determine type of empty array", node.at)
        items = self._alike(node.items, "ARRAY", node.at)
        return self._array_of(items, items[0].type, node.at)

    def _array(self, node: syntax.ArrayItems, element: str) -> Typed:
        items = tuple(self._coerced(self._typed(item), element, item.at, contexts="iae") for item in node.items)
        return self._array_of(numbers.together(*items) if element == "numeric" and items else items, element, node.at)

    @staticmethod
    def _array_of(items: tuple[Typed, ...], element: str, at: int) -> Typed:
        if all(isinstance(item, Constant) for item in items):
            values = [item.value for item in items if isinstance(item, Constant)]
            made = typed.constant(f"_{element}", values, at)
            return replace(made, strength=typed.merged(items) if element in COLLATABLE else None)
        digits = items[0].digits if items else None
        type_ = typed.spark_type(f"_{element}", digits, at)
        strength = typed.merged(items) if element in COLLATABLE else None
        return Typed(f"_{element}", at, lambda *columns: F.array(*columns).cast(type_), items, digits, strength)

    @_dispatch.register
    def _(self, node: syntax.Case) -> Typed:
        conditions = []
        for condition, _ in node.branches:
            if node.operand is None:
                conditions.append(self._boolean(condition, "CASE/WHEN"))
            else:
                operand = self._typed(node.operand)
                if operand.type == UNKNOWN:
                    operand = self._coerced(operand, "text", node.at)
                conditions.append(self._operate("=", (operand, self._typed(condition)), condition.at))
        default = node.default or syntax.Literal(node.at, "null", "null")
        # select_common_type looks at the default first
        results = self._alike([default, *(result for _, result in node.branches)], "CASE", node.at)
        count = len(conditions)

        def apply(*columns: Column) -> Column:
            case = F.when(columns[0], columns[count + 1])
            for i in range(1, count):
                case = case.when(columns[i], columns[count + 1 + i])
            return case.otherwise(columns[count])

        return self._same(results, apply, node.at, (*conditions, *results))

    @_dispatch.register
    def _(self, node: syntax.Call) -> Typed:
        if node.name in {"coalesce", "greatest", "least"}:
            return self._choice(node)
        if node.name == "nullif":
            return self._nullif(node)
        arguments = tuple(self._typed(argument) for argument in node.arguments)
        candidates = [entry for entry in FUNCTIONS.get(node.name, ()) if len(entry.arguments) == len(arguments)]
        if node.name not in FUNCTIONS:
            if node.name in translations.MUTABLE:
                raise Refused(MUTABLE_FUNCTIONS, node.at)
            raise Refused(f"the function {node.name} is not translated", node.at)
        if not any(entry.immutable for entry in FUNCTIONS[node.name]):
            raise Refused(MUTABLE_FUNCTIONS, node.at)
        signature = choose(candidates, tuple(argument.type for argument in arguments))
        if signature is None:
            types = ", ".join(shown(argument.type) for argument in arguments)
            raise Refused(f"function {node.name}({types}) does not exist or is not unique", node.at)
        if not signature.immutable:
            raise Refused(MUTABLE_FUNCTIONS, node.at)
        passed = self._passed(signature, arguments, node.at)
        return translations.function(node.name, signature, passed, node.at, self._encoding)

    def _choice(self, node: syntax.Call) -> Typed:
        """COALESCE, GREATEST and LEAST; the latter two ignore NULL."""
        arguments = self._alike(node.arguments, node.name.upper(), node.at)
        if not arguments:
            raise Refused("syntax error", node.at)
        if node.name == "coalesce" or len(arguments) == 1:
            return self._same(arguments, F.coalesce, node.at, arguments)
        type_ = arguments[0].type
        if type_ in {"text", "varchar"}:
            comparisons.check_order(arguments, node.at, self._encoding)
        elif type_ not in comparisons.DIRECT | {"numeric"} or (type_ == "numeric" and not arguments[0].digits):
            raise Refused(f"{node.name.upper()} of values of type {shown(type_)} is not translated", node.at)
        return self._same(arguments, F.greatest if node.name == "greatest" else F.least, node.at, arguments)

    def _nullif(self, node: syntax.Call) -> Typed:
        if len(node.arguments) != 2:
            raise Refused("syntax error", node.at)
        left, right = (self._typed(argument) for argument in node.arguments)
        equal = self._operate("=", (left, right), node.at)
        # the value is the first argument as the operator gets it: transformAExprNullIf
        signature = self._operator("=", (left.type, right.type), node.at)
        value, _ = self._passed(signature, (left, right), node.at)
        apply = lambda value, same: F.when(F.coalesce(~same, F.lit(True)), value)  # noqa: E731
        return self._same((value,), apply, node.at, (value, equal))
