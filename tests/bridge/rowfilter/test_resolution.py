"""Operators and functions are chosen as in parse_oper.c and parse_func.c.

Values are converted as by pg_cast; conversions that a row filter cannot have are refused.
"""

from __future__ import annotations

import pytest

from pgbridge.bridge.rowfilter.resolution import accepts, castable, choose, coerced, common_type, to_common
from pgbridge.bridge.rowfilter.types.pg_catalog import FUNCTIONS, OPERATORS
from pgbridge.bridge.rowfilter.types.typed import C_COLLATION, Constant, Digits, constant
from pgbridge.bridge.sqltext.refusal import MUTABLE_FUNCTIONS, ONLY_SIMPLE, Refused


@pytest.mark.parametrize(
    ("name", "given", "chosen"),
    [
        ("=", ("int4", "int8"), ("int4", "int8")),
        (">", ("float4", "numeric"), ("float4", "float8")),  # the preferred type, not the column's
        ("=", ("int2", "numeric"), ("numeric", "numeric")),
        ("=", ("varchar", "unknown"), ("text", "text")),
        ("=", ("unknown", "bpchar"), ("bpchar", "bpchar")),
        ("=", ("bpchar", "varchar"), ("bpchar", "bpchar")),
        ("=", ("bpchar", "text"), ("text", "text")),
        ("=", ("unknown", "unknown"), ("text", "text")),
        ("<", ("date", "timestamp"), ("date", "timestamp")),
        ("-", ("date", "unknown"), ("date", "date")),
        ("->>", ("jsonb", "unknown"), ("jsonb", "text")),
        ("@>", ("_int4", "unknown"), ("anyarray", "anyarray")),
        ("||", ("text", "int4"), ("text", "anynonarray")),
    ],
)
def test_operator(name, given, chosen):
    signature = choose(OPERATORS[name], given, binary=True)
    assert signature is not None
    assert signature.arguments == chosen


@pytest.mark.parametrize(
    ("name", "given", "chosen"),
    [
        ("date_trunc", ("unknown", "date"), ("text", "timestamptz")),
        ("round", ("int4",), ("float8",)),
        ("length", ("varchar",), ("text",)),
    ],
)
def test_function(name, given, chosen):
    candidates = [one for one in FUNCTIONS[name] if len(one.arguments) == len(given)]
    signature = choose(candidates, given)
    assert signature is not None
    assert signature.arguments == chosen


def test_nothing_to_choose():
    assert choose(OPERATORS["="], ("int4", "text"), binary=True) is None
    assert choose(OPERATORS["@>"], ("_int4", "_text"), binary=True) is None
    assert not accepts(("int4",), ("int4", "int4"))


def test_common_type():
    assert common_type(["int4", "numeric", "unknown"]) == "numeric"
    assert common_type(["float4", "numeric"]) == "float4"  # numeric becomes one without asking
    assert common_type(["unknown", "unknown"]) == "text"
    assert common_type(["date", "timestamp"]) == "timestamp"
    assert common_type(["int4", "text"]) is None


def test_castable():
    assert castable("int4", "numeric")
    assert not castable("numeric", "int4")
    assert castable("numeric", "int4", contexts="iae")
    assert castable("_int4", "_int8")
    assert not castable("_int8", "_int4")


def test_literals_are_read_as_the_target():
    node = coerced(constant("unknown", " 12 ", 4), "int8", 0, default=C_COLLATION)
    assert isinstance(node, Constant)
    assert (node.type, node.value, node.strength) == ("int8", 12, None)
    node = coerced(constant("unknown", "x", 4), "text", 0, default=C_COLLATION)
    assert node.strength is not None
    assert node.strength.collation is C_COLLATION


@pytest.mark.parametrize(
    ("source", "target", "contexts", "reason"),
    [
        ("int4", "text", "iae", ONLY_SIMPLE),  # by way of its text
        ("text", "int4", "iae", ONLY_SIMPLE),
        ("_int4", "_int8", "iae", ONLY_SIMPLE),
        ("date", "timestamptz", "iae", MUTABLE_FUNCTIONS),
        ("int4", "date", "iae", "cannot cast type integer to date"),
        ("numeric", "int4", "i", "there is no implicit cast from type numeric to integer"),
        ("float8", "numeric", "iae", "the cast from double precision to numeric is not translated"),
    ],
)
def test_what_is_not_converted(source, target, contexts, reason):
    with pytest.raises(Refused) as caught:
        coerced(constant(source, None, 0), target, 9, contexts=contexts)
    assert (caught.value.reason, caught.value.at) == (reason, 9)


def test_common_type_of_numbers_has_their_digits():
    found = to_common((constant("int4", 1, 0), constant("numeric", None, 0)), "CASE", 0, C_COLLATION)
    assert [node.type for node in found] == ["numeric", "numeric"]
    assert {node.digits for node in found} == {Digits(10, 0)}
    with pytest.raises(Refused, match="CASE types boolean and integer cannot be matched"):
        to_common((constant("int4", 1, 0), constant("bool", True, 0)), "CASE", 0, C_COLLATION)
