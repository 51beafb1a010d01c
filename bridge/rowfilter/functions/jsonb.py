r"""Operators on jsonb: members of objects, existence of keys, containment of objects of scalars.

A column holds PostgreSQL's text of a jsonb: keys are unique, numbers have no exponent, strings are escaped as in JSON.
Spark's parser would read its numbers as doubles, and would not tell "1" from 1. So numbers, true, false and null are
first turned into strings, and all strings are marked: `{"a": 1, "b": "c"}` becomes `{"sa": "x1", "sb": "sc"}`.

Below, a value is then `s` and the characters of a string; `x` and a number, true, false or null; or the marked text of
an object or array. Text beyond the parser's limits (1000 levels) is an error, never another verdict.
"""

from __future__ import annotations

import functools
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, functions as F

from pgbridge.bridge.rowfilter.functions import numbers
from pgbridge.bridge.rowfilter.types.typed import Constant, Typed, failure, merged
from pgbridge.bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from pgbridge.bridge.rowfilter.types.pg_catalog import Signature

_STRICT: Final = {"mode": "FAILFAST"}

# Each pattern starts where the last match ended (\G) and never backtracks (*+), so long values need no stack.
_INSIDE: Final = r'[^"\\]*+(?:\\.[^"\\]*+)*+'
_STRING: Final = rf'\G([^"]*+)"({_INSIDE})"'
_WORD: Final = rf'\G((?:[^"0-9a-z-]|"{_INSIDE}")*+)(-?[0-9.]++|[a-z]++)'
_MARKED_WORD: Final = rf'\G((?:[^"]|"s{_INSIDE}")*+)"x([^"]*+)"'
_MARKED_STRING: Final = rf'\G([^"]*+)"s({_INSIDE})"'
_PUNCTUATION: Final = rf'\G((?:[^":,]|"{_INSIDE}")*+)([:,])'


class JsonValue(Typed):
    """A jsonb that an operator returns: its Spark column holds a value as above, not PostgreSQL's text."""


def operator(name: str, signature: Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate an operator whose left operand is jsonb; None for any other operator.

    Raises:
        Refused: The operator is not translated for this right operand.
    """
    if name not in {"->", "->>", "?", "?|", "?&", "@>"} or signature.arguments[0] != "jsonb":
        return None
    left, right = arguments
    if not isinstance(right, Constant) or right.value is None:
        raise Refused(f"the operator {name} is translated only with a literal as its right operand", right.at)
    wanted = right.value
    value = left if isinstance(left, JsonValue) else JsonValue("jsonb", left.at, _value, (left,))
    if name in {"->", "->>"}:
        if not isinstance(wanted, str):
            raise Refused("subscripts of jsonb arrays are not translated", right.at)
        if name == "->":
            return JsonValue("jsonb", at, lambda column: _member(column, wanted), (value,))
        return Typed("text", at, lambda column: _text(_member(column, wanted)), (value,), strength=merged(arguments))
    if name == "@>":
        document = _read(wanted, right.at)
        if not isinstance(document, dict):
            raise Refused("jsonb containment is translated only for objects", right.at)
        _check(document, right.at)
        return Typed("bool", at, lambda column: F.when(column.isNotNull(), _contains(column, document)), (value,))
    keys = [wanted] if name == "?" else [key for key in wanted if key is not None]
    return Typed("bool", at, lambda column: _exist(column, keys, every=name == "?&"), (value,))


def _read(text: str, at: int) -> Any:
    def refuse(word: str) -> Any:
        raise ValueError(word)

    try:
        return json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=refuse)
    except ValueError:
        raise Refused("invalid input syntax for type json", at) from None


def _check(document: dict[str, Any], at: int) -> None:
    for wanted in document.values():
        if isinstance(wanted, dict):
            _check(wanted, at)
        elif isinstance(wanted, list):
            raise Refused("jsonb containment of arrays is not translated", at)


def _value(column: Column) -> Column:
    """PostgreSQL's text of a jsonb as a value."""
    strings = F.regexp_replace(column, F.lit(_STRING), F.lit('$1"s$2"'))
    marked = F.regexp_replace(strings, F.lit(_WORD), F.lit('$1"x$2"'))
    scalar = F.from_json(F.concat(F.lit("["), marked, F.lit("]")), "array<string>", _STRICT)[0]
    return F.when(column.startswith("{") | column.startswith("["), marked).otherwise(scalar)


def _members(value: Column) -> Column:
    """An object's members under marked keys; NULL if the value is not an object."""
    return F.when(value.startswith("{"), F.from_json(value, "map<string,string>", _STRICT))


def _member(value: Column, key: str) -> Column:
    return _members(value)[f"s{key}"]


def _text(value: Column) -> Column:
    """The result of ->>: the characters of a string, NULL for JSON's null, PostgreSQL's text of any other value."""
    nested = value.startswith("{") | value.startswith("[")
    return F.when(nested, _restored(value)).when(value != "xnull", F.substring(value, 2, 1 << 30))


def _restored(value: Column) -> Column:
    """PostgreSQL's text of an object or array that Spark's parser has returned marked and without spaces."""
    words = F.regexp_replace(value, F.lit(_MARKED_WORD), F.lit("$1$2"))
    strings = F.regexp_replace(words, F.lit(_MARKED_STRING), F.lit('$1"$2"'))
    spaced = F.regexp_replace(strings, F.lit(_PUNCTUATION), F.lit("$1$2 "))
    # PostgreSQL writes the codes of control characters in lower case
    foreign = value.rlike(r"\\u00[01][A-F]")
    return F.when(foreign, failure("a nested jsonb value with a control character is not translated")).otherwise(spaced)


def _exist(value: Column, keys: list[str], *, every: bool) -> Column:
    """Whether these are keys of the object, string elements of the array, or the string itself: any, or every one."""
    elements = F.when(value.startswith("["), F.from_json(value, "array<string>", _STRICT))
    tests = [
        F.when(value.startswith("{"), F.map_contains_key(_members(value), f"s{key}"))
        .when(value.startswith("["), F.exists(elements, functools.partial(_equals, f"s{key}")))
        .otherwise(value == f"s{key}")
        for key in keys
    ]
    both = (lambda a, b: a & b) if every else (lambda a, b: a | b)
    return F.when(value.isNotNull(), functools.reduce(both, tests, F.lit(every)))


def _equals(wanted: str, element: Column) -> Column:
    return element == wanted


def _contains(value: Column, document: dict[str, Any]) -> Column:
    result = value.startswith("{")
    for key, wanted in document.items():
        result = result & F.coalesce(_is(_member(value, key), wanted), F.lit(False))
    return result


def _is(value: Column, wanted: Any) -> Column:
    """Whether a member contains the wanted object, or equals the wanted scalar."""
    if isinstance(wanted, dict):
        return _contains(value, wanted)
    if isinstance(wanted, Decimal):
        number = numbers.canonical(F.substring(value, 2, 1 << 30))
        # numeric has no negative zero
        return value.startswith("x") & (number == numbers.canonical(F.lit(format(wanted or Decimal(0), "f"))))
    return value == (f"s{wanted}" if isinstance(wanted, str) else f"x{json.dumps(wanted)}")
