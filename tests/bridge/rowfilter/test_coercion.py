"""Values are converted as by pg_cast; conversions that a row filter cannot have are refused."""

from __future__ import annotations

import pytest

from bridge.rowfilter.coercion import coerced, to_common
from bridge.rowfilter.types.constants import constant
from bridge.rowfilter.types.typed import C_COLLATION, Constant, Digits
from bridge.sqltext.refusal import MUTABLE_FUNCTIONS, ONLY_SIMPLE, Refused


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
