"""What a skipped transaction held can be read, whatever it was."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge.batch.batch import Batch, TableChanges
from bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, UPDATE
from bridge.runtime.errors import ApplyContext, ApplyError, StateError
from bridge.skipped.skipped_transactions import write
from bridge.targets.target import Target, TargetColumn
from protocol.bulk.message_array import ChunkedMessages
from protocol.lsn import Lsn
from protocol.stream.transactions import Transaction
from protocol.values.types import resolve

COLUMNS = (TargetColumn("id", resolve(20, -1)), TargetColumn("a note", resolve(25, -1)))
CHANGES = pa.table(
    {
        "seq": pa.array([0, 1, 5], pa.int64()),
        "op": pa.array([INSERT, UPDATE, DELETE], pa.int16()),
        "old": pa.array([NO_OLD, NO_OLD, KEY_TUPLE], pa.int16()),
        "new_0": pa.array([1, 1, None], pa.int64()),
        "new_1": pa.array(["x", None, None], pa.string()),
        "old_0": pa.array([None, None, 2], pa.int64()),
        "unchanged_1": pa.array([False, True, False]),
    }
)
READABLE = [
    {"seq": 0, "op": "INSERT", "old": None, "new": {"id": 1, "a note": "x"}, "unchanged": []},
    {"seq": 1, "op": "UPDATE", "old": None, "new": {"id": 1, "a note": None}, "unchanged": ["a note"]},
    {"seq": 5, "op": "DELETE", "old": {"id": 2}, "new": None, "unchanged": []},
]


def of(changes, *, truncated=False, error=None, items=()):
    """A batch of one transaction."""
    target = Target("public", "t/1", "/t", ())
    tables = [TableChanges(target, COLUMNS, (0,), changes, truncated)] if changes is not None else []
    return Batch(Lsn(0x10), Lsn(0x20), Lsn(0x18), 7, 1, 1, tables, items=items, error=error)


def test_changes_under_their_columns_names(tmp_path):
    """Written twice is written once."""
    for _ in range(2):
        path = write(of(CHANGES, truncated=True), tmp_path / "skipped", "sub")
    assert path == tmp_path / "skipped" / "0-18" / "sub"
    assert sorted(file.name for file in path.iterdir()) == ["public.t_1.parquet", "truncated.txt"]
    assert pq.read_table(path / "public.t_1.parquet").to_pylist() == READABLE
    assert (path / "truncated.txt").read_text() == "public.t/1\n"


def test_parts_of_a_tables_changes_are_files_of_their_own(tmp_path):
    batch = of(CHANGES, truncated=True)
    batch.tables += of(CHANGES).tables
    path = write(batch, tmp_path, "sub")
    assert sorted(file.name for file in path.iterdir()) == [
        *("public.t_1.2.parquet", "public.t_1.parquet", "truncated.txt")
    ]
    assert pq.read_table(path / "public.t_1.2.parquet").to_pylist() == READABLE
    assert (path / "truncated.txt").read_text() == "public.t/1\n"


def test_many_changes_are_written_a_part_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("bridge.skipped.replayable._ROWS_AT_ONCE", 2)
    path = write(of(CHANGES), tmp_path, "sub")
    assert pq.read_table(path / "public.t_1.parquet").to_pylist() == READABLE


def test_messages_that_could_not_be_decoded(tmp_path):
    """As they came, without what the walsender put around them."""
    rows = ChunkedMessages([b"w" + bytes(24) + b"I first", b"w" + bytes(24) + b"D"])
    error = ApplyError("no", ApplyContext("o", Lsn(0x18), 7))
    path = write(of(None, error=error, items=[Transaction(7, Lsn(0x18), 0, Lsn(0x20), rows=rows)]), tmp_path, "sub")
    assert pq.read_table(path / "messages.parquet").to_pylist() == [{"message": b"I first"}, {"message": b"D"}]
    assert "finished at 0/18" in (path / "error.txt").read_text()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "skipped").write_text("")
    with pytest.raises(StateError, match="cannot write the skipped transaction to"):
        write(of(CHANGES), tmp_path / "skipped", "sub")
