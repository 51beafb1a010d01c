"""jsonb: members of objects, existence of keys, containment of objects of scalars.

A value is PostgreSQL's text of it: keys are unique, numbers have no exponent, strings are escaped as JSON asks.
Spark's parser gives a string's characters, and any other member as it is written; what is beyond its limits
(numbers of more than 1000 digits, deeper than 1000 levels) is an error, never another verdict.
"""

from __future__ import annotations

import functools
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.filter import numerics
from bridge.filter.refusal import Refused
from bridge.filter.typed import Constant, Typed, merged

if TYPE_CHECKING:
    from pyspark.sql import Column

_STRICT: Final = {"mode": "FAILFAST"}


def implement(name: str, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """An operator whose left side is jsonb; None if it is none of these.

    Raises:
        Refused: It is not translated for this right side.
    """
    right = arguments[1]
    if name not in {"->", "->>", "?", "?|", "?&", "@>"}:
        return None
    if not isinstance(right, Constant) or right.value is None:
        raise Refused(f"the operator {name} is translated for a literal on its right", right.at)
    value = right.value
    if name in {"->", "->>"}:
        if not isinstance(value, str):
            raise Refused("subscripts of jsonb arrays are not translated", right.at)
        if name == "->":
            return Typed("jsonb", at, lambda column: _member(column, value), arguments[:1])
        return Typed("text", at, lambda column: _members(column)[value], arguments[:1], strength=merged(arguments))
    if name == "@>":
        wanted = _read(value, right.at)
        if not isinstance(wanted, dict):
            raise Refused("jsonb containment is translated for objects", right.at)
        _check(wanted, right.at)
        return Typed("bool", at, lambda column: F.when(column.isNotNull(), _contains(column, wanted)), arguments[:1])
    keys = [value] if name == "?" else [key for key in value if key is not None]
    every = name == "?&"

    def apply(column: Column) -> Column:
        found = [_exists(column, key) for key in keys]
        both = (lambda a, b: a & b) if every else (lambda a, b: a | b)
        return F.when(column.isNotNull(), functools.reduce(both, found, F.lit(every)))

    return Typed("bool", at, apply, arguments[:1])


def _read(text: str, at: int) -> Any:
    def refuse(word: str) -> Any:
        raise ValueError(word)

    try:
        return json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=refuse)
    except ValueError:
        raise Refused("invalid input syntax for type json", at) from None


def _check(wanted: dict[str, Any], at: int) -> None:
    for value in wanted.values():
        if isinstance(value, dict):
            _check(value, at)
        elif isinstance(value, list):
            raise Refused("jsonb containment of arrays is not translated", at)


def _members(column: Column) -> Column:
    """An object's members: strings unescaped, JSON's null as NULL, others as written; NULL for what is no object."""
    return F.when(column.startswith("{"), F.from_json(column, "map<string,string>", _STRICT))


def _is_string(column: Column, key: str) -> Column:
    """Whether an object's member is a string."""
    values = F.when(column.startswith("{"), F.from_json(column, "map<string,variant>", _STRICT))
    return F.coalesce(F.schema_of_variant(values[key]) == "STRING", F.lit(False))


def _member(column: Column, key: str) -> Column:
    """A member as jsonb; of a string nothing is read but that it is one."""
    members = _members(column)
    # Only whether it is an object can matter from here on, so any string does for a string.
    value = F.when(_is_string(column, key), F.lit('""')).otherwise(F.coalesce(members[key], F.lit("null")))
    return F.when(F.map_contains_key(members, key), value)


def _exists(column: Column, key: str) -> Column:
    """Whether a string is a key of the object, an element of the array, or the value itself."""
    elements = F.from_json(column, "array<variant>", _STRICT)

    def is_key(element: Column) -> Column:
        string = F.schema_of_variant(element) == "STRING"
        return F.coalesce(string & (F.variant_get(element, "$", "string") == key), F.lit(False))

    whole = F.from_json(F.concat(F.lit("["), column, F.lit("]")), "array<string>", _STRICT)
    return (
        F.when(column.startswith("{"), F.map_contains_key(_members(column), key))
        .when(column.startswith("["), F.exists(elements, is_key))
        .when(column.startswith('"'), whole[0] == key)
        .otherwise(F.lit(False))
    )


def _contains(column: Column, wanted: dict[str, Any]) -> Column:
    result = column.startswith("{")
    for key, value in wanted.items():
        result = result & F.coalesce(_member_is(column, key, value), F.lit(False))
    return result


def _member_is(column: Column, key: str, value: Any) -> Column:
    text = _members(column)[key]
    if value is None:
        return F.map_contains_key(_members(column), key) & text.isNull()
    if isinstance(value, str):
        return _is_string(column, key) & (text == value)
    plain = ~_is_string(column, key)
    if isinstance(value, bool):
        return plain & (text == ("true" if value else "false"))
    if isinstance(value, Decimal):
        return plain & (numerics.canonical(text) == numerics.canonical(F.lit(format(value, "f"))))
    return plain & _contains(text, value)
