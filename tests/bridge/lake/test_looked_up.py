"""A commit fails if the rows that it relies on are others by then, and only then."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from bridge.lake.looked_up import have_changed, unless_changed

LOOKED_UP = [(1, "a"), (1, "a"), (2, None)]


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (LOOKED_UP[::-1], True),
        (LOOKED_UP[1:], False),
        ([*LOOKED_UP, (2, None)], False),
        ([*LOOKED_UP[:2], (2, "b")], False),
        ([], False),
    ],
)
def test_equal_rows_count(spark, now, same):
    source = spark.createDataFrame([(7, [1])], "`a.b` int, rest array<int>")
    schema = "`k.x` int, v string"
    rows = unless_changed(source, spark.createDataFrame(LOOKED_UP, schema), spark.createDataFrame(now, schema))
    if same:
        assert list(map(tuple, rows.collect())) == [(7, [1])]
    else:
        with pytest.raises((PySparkException, Py4JError)) as error:
            rows.collect()
        assert have_changed(error.value)


def test_other_errors_are_told_apart():
    assert not have_changed(ValueError("pgbridge_changed"))
