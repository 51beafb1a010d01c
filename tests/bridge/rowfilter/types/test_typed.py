"""Collations are derived as in parse_collate.c.

Columns have PostgreSQL's type, the precision of their decimals and their collation.

A numeric constant has the least precision and scale that hold its value.

A row without a verdict is an error.
"""

from __future__ import annotations

from decimal import Decimal

import pytest

from pgbridge.bridge.rowfilter.row_filter import translate
from pgbridge.bridge.rowfilter.types.typed import (
    C_COLLATION,
    DATABASE_DEFAULT,
    Collation,
    Digits,
    FilterColumn,
    Strength,
    Typed,
    collation_of,
    common_digits,
    constant,
    digits_of,
    element,
    failure,
    reference,
    spark_type,
)
from pgbridge.bridge.sqltext.refusal import Refused, RowFilterError
from pgbridge.protocol.values.pg_type import TypeInfo
from pgbridge.protocol.values.types import resolve
from tests.bridge.rowfilter.compared import columns

GERMAN = Collation("de-x-icu", bytewise=False)
DEFAULT_IS_C = Collation("default", bytewise=True, default=True)


def text(collation: Collation | None, *, explicit: bool = False) -> Typed:
    strength = Strength(collation, explicit) if collation else None
    return Typed("text", 3, lambda: None, strength=strength)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ((text(C_COLLATION), text(DATABASE_DEFAULT)), C_COLLATION),
        ((text(DATABASE_DEFAULT), text(GERMAN)), GERMAN),
        ((text(DATABASE_DEFAULT), text(DEFAULT_IS_C)), DEFAULT_IS_C),
        ((text(GERMAN), text(C_COLLATION, explicit=True)), C_COLLATION),
        ((text(GERMAN), text(GERMAN)), GERMAN),
        ((text(None), text(C_COLLATION)), C_COLLATION),
        ((text(None),), DATABASE_DEFAULT),
    ],
)
def test_collation(nodes, expected):
    assert collation_of(nodes, 0) == expected


def test_contradictions():
    with pytest.raises(Refused, match="could not determine which collation to use"):
        collation_of((text(GERMAN), text(C_COLLATION)), 0)
    with pytest.raises(Refused, match="collation mismatch"):
        collation_of((text(GERMAN, explicit=True), text(C_COLLATION, explicit=True)), 0)


def test_types_and_digits():
    found = {name: reference(name, column, DATABASE_DEFAULT, 0) for name, column in columns().items()}
    assert {name: found[name].type for name in ("i4", "v", "c", "ia", "tz")} == {
        "i4": "int4", "v": "varchar", "c": "bpchar", "ia": "_int4", "tz": "timestamptz",
    }  # fmt: skip
    assert (found["n"].digits, found["m"].digits, found["u"].digits) == (Digits(12, 3), Digits(38, 10), None)


def test_collations():
    text = resolve(25, -1)
    assert reference("t", FilterColumn(text), DATABASE_DEFAULT, 0).strength == (DATABASE_DEFAULT, False, False)
    assert reference("t", FilterColumn(text, C_COLLATION), DATABASE_DEFAULT, 0).strength == (C_COLLATION, False, False)
    assert reference("i", FilterColumn(resolve(23, -1)), DATABASE_DEFAULT, 0).strength is None


def test_domains_are_user_defined():
    domain = resolve(70_000, -1, {70_000: TypeInfo(70_000, "price", "public", "d", basetype=23)})
    with pytest.raises(Refused, match="User-defined types are not allowed"):
        reference("d", FilterColumn(domain), DATABASE_DEFAULT, 0)


def test_collations_that_do_not_come_with_postgresql():
    """A filter cannot name a column that has one, not even in IS NULL."""
    own = FilterColumn(resolve(25, -1), Collation("own", bytewise=True, user_defined=True))
    for expression in ("t = 'x'", "t IS NULL", "t COLLATE \"C\" = 'x'"):
        with pytest.raises(RowFilterError, match="User-defined collations are not allowed"):
            translate(expression, {"t": own})


def test_columns_of_other_types_can_be_asked_for_null():
    net = {"net": FilterColumn(resolve(869, -1))}
    assert translate("net IS NOT NULL", net).columns == {"net"}
    with pytest.raises(RowFilterError, match="literals of type inet are not translated"):
        translate("net = '10.0.0.1'", net)


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("0", (1, 0)), ("0.00", (1, 0)), ("1.50", (2, 1)), ("100", (3, 0)), ("1e3", (4, 0)), ("-0.001", (3, 3)),
        ("12.34", (4, 2)), ("1e38", None), ("1e-39", None), ("9" * 38, (38, 0)), ("NaN", None), ("Infinity", None),
    ],
)  # fmt: skip
def test_digits_of(text, digits):
    assert digits_of(Decimal(text)) == (digits and Digits(*digits))


def test_common_digits():
    assert common_digits(Digits(5, 2), Digits(3, 3)) == Digits(6, 3)
    assert common_digits(Digits(38, 0), Digits(2, 1)) is None
    assert common_digits(Digits(5, 2), None) is None


def test_spark_types():
    assert spark_type("_numeric", Digits(5, 2), 0) == "array<decimal(5,2)>"
    assert spark_type("numeric", None, 0) == "string"
    assert element("_int4") == element("int4") == "int4"
    with pytest.raises(Refused, match="inet"):
        spark_type("inet", None, 0)


def test_array_of_numerics_has_the_digits_of_all():
    assert constant("_numeric", [Decimal("1.5"), None, Decimal(100)], 0).digits == Digits(4, 1)


def test_failure_raises_for_a_row(spark):
    rows = spark.range(1).select(failure("division by zero"))
    with pytest.raises(Exception, match="row filter: division by zero"):
        rows.collect()
