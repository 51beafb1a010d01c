"""A row without a verdict is an error."""

from __future__ import annotations

import pytest

from bridge.rowfilter.functions.failure import failure


def test_failure_raises_for_a_row(spark):
    rows = spark.range(1).select(failure("division by zero"))
    with pytest.raises(Exception, match="row filter: division by zero"):
        rows.collect()
