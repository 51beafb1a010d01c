"""Operators and functions that are translated, by the signature that PostgreSQL would call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.rowfilter.constants import constant
from bridge.rowfilter.encodings import UTF8, Encoding, check_function, check_operator
from bridge.rowfilter.functions import (
    arithmetic,
    arrays,
    comparisons,
    dates,
    jsonb,
    numbers,
    text,
)
from bridge.rowfilter.functions.patterns import like, like_escaped, regular_expression
from bridge.rowfilter.type_names import shown
from bridge.rowfilter.typed import STRINGS, Constant, Typed, collation_of, merged
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from pyspark.sql import Column

    from bridge.rowfilter.pg_catalog import Signature
    from bridge.rowfilter.typed import Apply

MUTABLE: Final = frozenset(
    {
        "age", "clock_timestamp", "current_database", "current_schema", "current_setting", "format",
        "gen_random_uuid", "localtimestamp", "nextval", "pg_sleep", "pg_typeof", "quote_literal",
        "statement_timestamp", "timeofday", "to_char", "to_date", "to_json", "to_jsonb", "to_number", "to_timestamp",
        "transaction_timestamp", "txid_current", "uuidv4", "uuidv7", "version",
    }
)  # fmt: skip
"""Built-in functions that are not translated, and that no row filter may call."""

_LIKES: Final = frozenset({"~~", "!~~", "~~*", "!~~*"})
_REGULAR: Final = frozenset({"~", "!~", "~*", "!~*"})


def operator(
    name: str, signature: Signature, arguments: tuple[Typed, ...], at: int, encoding: Encoding = UTF8
) -> Typed:
    """An operator on arguments of its signature's types, in a database of the encoding.

    Raises:
        Refused: It is not translated.
    """
    check_operator(encoding, name, arguments, at)
    found: Typed | None = None
    if name in comparisons.COMPARISONS:
        found = comparisons.compare(name, arguments[0], arguments[1], at)
    elif name in _LIKES | _REGULAR and signature.arguments[0] in STRINGS:
        found = _match(name, arguments, at)
    elif name == "||" and signature.arguments in {("text", "text"), ("bytea", "bytea")}:
        found = Typed(signature.result, at, text.concatenate, arguments, strength=merged(arguments))
    elif name == "^@":
        found = Typed("bool", at, F.startswith, arguments)
    elif signature.arguments[0] == "jsonb":
        found = jsonb.implement(name, arguments, at)
    elif "anyarray" in signature.arguments:
        found = arrays.implement(name, arguments, at)
    else:
        found = arithmetic.implement(name, signature, arguments, at)
    if found is None:
        types = [shown(argument.type) for argument in arguments]
        raise Refused(f"the operator {types[0]} {name} {types[-1]} is not translated", at)
    return found


def function(
    name: str, signature: Signature, arguments: tuple[Typed, ...], at: int, encoding: Encoding = UTF8
) -> Typed:
    """A function of arguments of its signature's types, in a database of the encoding.

    Raises:
        Refused: It is not translated.
    """
    check_function(encoding, name, arguments, at)
    if name == "like_escape" and all(isinstance(argument, Constant) for argument in arguments):
        return _escaped(arguments, at)
    if name in {"array_length", "array_lower", "array_ndims", "array_upper", "cardinality"}:
        return arrays.function(name, arguments, at)
    found = numbers.implement(name, signature, arguments, at) or dates.implement(name, signature, arguments, at)
    if found is None:
        apply = text.implement(name, signature, arguments, at)
        if apply is not None:
            strength = merged(arguments) if signature.result == "text" else None
            found = Typed(signature.result, at, apply, arguments, strength=strength)
    if found is None:
        types = ", ".join(shown(argument.type) for argument in arguments)
        raise Refused(f"the function {name}({types}) is not translated", at)
    return found


def _escaped(arguments: tuple[Typed, ...], at: int) -> Typed:
    pattern, escape = (argument.value for argument in arguments if isinstance(argument, Constant))
    collation = collation_of(arguments, at)
    if pattern is None or escape is None:
        return constant("text", None, at, collation)
    return constant("text", like_escaped(pattern, escape), at, collation)


def _match(name: str, arguments: tuple[Typed, ...], at: int) -> Typed:
    """LIKE, ILIKE and regular expressions; `char` values are matched with their blanks."""
    text, pattern = arguments
    if not isinstance(pattern, Constant):
        raise Refused("a pattern that is not a literal is not translated", pattern.at)
    collation = collation_of(arguments, at)
    if not collation.deterministic:
        raise Refused(f'matching by the nondeterministic collation "{collation.name}" is not translated', at)
    if pattern.value is None:
        return Typed("bool", at, lambda _: F.lit(None).cast("boolean"), (text,))
    any_case = name.endswith("*")
    if name in _REGULAR:
        java = regular_expression(pattern.value, any_case=any_case, ascii_types=collation.ascii_case)
        apply = _matches(java)
    elif any_case and not collation.ascii_case:
        raise Refused(
            f'case by collation "{collation.name}" is the server\'s alone; ILIKE … COLLATE "C" can be had', at
        )
    else:
        apply = _like(pattern.value, any_case=any_case)
    negated: Apply = lambda column: ~apply(column)  # noqa: E731
    return Typed("bool", at, negated if name.startswith("!") else apply, (text,))


def _like(pattern: str, *, any_case: bool) -> Apply:
    kind, text = like(pattern)
    if any_case:
        if kind != "matches":
            java = {"equals": rf"\A{_quoted(text)}\z", "starts": rf"\A{_quoted(text)}"}.get(kind)
            java = java or (rf"{_quoted(text)}\z" if kind == "ends" else _quoted(text))
            return _matches(f"(?is){java}")
        return _matches(f"(?i){text}")
    simple = {
        "equals": lambda column: column == F.lit(text),
        "starts": lambda column: F.startswith(column, F.lit(text)),
        "ends": lambda column: F.endswith(column, F.lit(text)),
        "contains": lambda column: F.contains(column, F.lit(text)),
    }
    return simple.get(kind) or _matches(text)


def _quoted(text: str) -> str:
    return "".join(one if one.isascii() and one.isalnum() else f"\\x{{{ord(one):x}}}" for one in text)


def _matches(java: str) -> Apply:
    def apply(column: Column) -> Column:
        return column.rlike(java)

    return apply
