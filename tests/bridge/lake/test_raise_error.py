"""A conflict that is raised in an expression comes back out of Spark's error, whatever the values hold."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from bridge.effects.conflicts import UPDATE_EXISTS, Conflict
from bridge.lake.raise_error import conflict_of, literal, raise_conflict

NASTY = 'a\'b"c\\d\\n\n\t{"pgbridge_conflict": 1} <errorMessage> ${x} $1 %s `é\u2028 😀'


def test_a_raised_conflict_is_read_back(spark):
    """In one job for all: the first row raises, the others are not reached."""
    relation, column = f"s {NASTY}.t", f"c {NASTY}"
    columns = [
        (column, "note", pa.string()),
        ("raw", "raw", pa.binary()),
        ("flag", "flag", pa.bool_()),
        ("long", "repeat('é', 500)", pa.string()),
    ]
    frame = spark.createDataFrame([(NASTY, b"\x00\xff", True)], "note string, raw binary, flag boolean")
    with pytest.raises(PySparkException) as caught:
        frame.selectExpr(raise_conflict(f"'{UPDATE_EXISTS}'", relation, columns)).collect()
    assert conflict_of(caught.value) == Conflict(
        relation, UPDATE_EXISTS, (column, "raw", "flag", "long"), (NASTY, "\\x00ff", "t", "é" * 200)
    )


@pytest.mark.parametrize("text", ["something else", '{"pgbridge_conflict": broken', '{"pgbridge_conflict": "x"}'])
def test_other_errors_are_none(text):
    assert conflict_of(Exception(text)) is None


def test_literals_hold_any_text(spark):
    assert spark.sql(f"SELECT {literal(NASTY)}").collect() == [(NASTY,)]
