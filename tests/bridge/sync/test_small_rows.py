"""The rows of a small table are kept, and those of another one are not."""

import pyarrow as pa
import pytest

from bridge.sync import small_rows
from bridge.sync.small_rows import SmallRows

SCHEMA = pa.schema([("id", pa.int64())])


def batches(*sizes):
    return [pa.RecordBatch.from_pydict({"id": [*range(size)]}, SCHEMA) for size in sizes]


def test_rows_that_have_not_passed_are_not_kept():
    small = SmallRows()
    assert small.table(SCHEMA) is None
    passing = small.passing(batches(3, 2))
    next(passing)
    assert small.table(SCHEMA) is None, "not before all have"
    assert [len(batch) for batch in passing] == [2]
    kept = small.table(SCHEMA)
    assert kept is not None
    assert kept["id"].to_pylist() == [0, 1, 2, 0, 1]


def test_an_empty_table_is_small():
    small = SmallRows()
    assert [*small.passing([])] == []
    kept = small.table(SCHEMA)
    assert kept is not None
    assert (len(kept), kept.schema) == (0, SCHEMA)


@pytest.mark.parametrize("sizes", [(11,), (5, 6), (11, 1)])
def test_many_rows_pass_and_are_not_kept(monkeypatch, sizes):
    monkeypatch.setattr(small_rows, "_MOST_BYTES", 80)
    small = SmallRows()
    assert [len(batch) for batch in small.passing(batches(*sizes))] == [*sizes]
    assert small.table(SCHEMA) is None
    assert sum(map(len, small.passing(batches(10)))) == 10, "another attempt"
    assert small.table(SCHEMA) is not None
