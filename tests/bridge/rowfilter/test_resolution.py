"""Operators and functions are chosen as in parse_oper.c and parse_func.c."""

from __future__ import annotations

import pytest

from bridge.rowfilter.resolution import accepts, castable, choose, common_type
from bridge.rowfilter.types.pg_catalog import FUNCTIONS, OPERATORS


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
