"""A numeric constant has the least precision and scale that hold its value.

A row without a verdict is an error.
"""

from __future__ import annotations

from decimal import Decimal

import pytest

from bridge.rowfilter.types.constants import common_digits, constant, digits_of, element, failure, spark_type
from bridge.rowfilter.types.typed import Digits
from bridge.sqltext.refusal import Refused


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
