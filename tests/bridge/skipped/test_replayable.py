"""What is kept of a skipped transaction comes back as it was, or says why it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from bridge.batch.batch import TableChanges
from bridge.effects.events import INSERT
from bridge.runtime.errors import ApplyContext, ApplyError, SkipError, StateError, TargetError
from bridge.skipped import replayable
from bridge.skipped.replayable import Skipper, read, write
from bridge.targets.target import Target, TargetColumn, target_schema
from protocol.lsn import Lsn
from protocol.values.pg_type import TypeInfo
from protocol.values.types import resolve
from tests.bridge.batch.collected import spill_in
from tests.bridge.skipped.test_skipped_transactions import CHANGES, COLUMNS, of

DOMAIN = TypeInfo(20_000, "positive", "public", "d", basetype=1700, typmod=(10 << 16 | 2) + 4)
TYPES = {
    "int4": resolve(23, -1), "text": resolve(25, -1), "numeric": resolve(1700, (12 << 16 | 3) + 4),
    "timestamptz": resolve(1184, -1), "int8[]": resolve(1016, -1), "int4range": resolve(3904, -1),
    "a domain": resolve(20_000, -1, {20_000: DOMAIN}),
}  # fmt: skip
SKIPPER = Skipper("pgbridge/1/sub/x", {("public", "t/1"): 700})
NO_SPILL: Any = None
TARGET = Target("public", "t/1", "/t", target_schema((column.name, column.type.arrow) for column in COLUMNS))


def written(tmp_path, batch):
    """The folder of the skipped transaction."""
    folder = tmp_path / "0-18" / "sub"
    folder.mkdir(parents=True)
    write(batch, folder, SKIPPER)
    return folder


def test_changes_come_back(tmp_path):
    batch = of(CHANGES, truncated=True)
    batch.tables[0].fills = {"added": pa.scalar(7, pa.int32())}
    batch.tables += of(CHANGES.slice(2)).tables
    one, two = read(written(tmp_path, batch))
    changes = one.changes(TARGET, NO_SPILL)
    assert changes.changes == CHANGES
    assert (one.qualified_name, one.rows, two.rows) == ("public.t/1", 3, 1)
    assert (changes.columns, changes.key, changes.truncated) == (COLUMNS, (0,), True)
    assert changes.fills == {"added": pa.scalar(7, pa.int32())}
    assert (two.truncated, two.fills) == (False, {})
    assert (two.origin, two.relid, two.lost) == (SKIPPER.origin, 700, 0)


def test_a_truncate_alone_comes_back(tmp_path):
    (file,) = read(written(tmp_path, of(CHANGES.slice(0, 0), truncated=True)))
    changes = file.changes(TARGET, NO_SPILL)
    assert (changes.empty, changes.truncated, file.rows) == (True, True, 0)


@pytest.mark.parametrize("name", TYPES)
def test_types_come_back(tmp_path, name):
    columns = (TargetColumn("v", TYPES[name]),)
    table = pa.table(
        {
            "seq": pa.array([0], pa.int64()), "op": pa.array([INSERT], pa.int16()), "old": pa.array([0], pa.int16()),
            "new_0": pa.nulls(1, TYPES[name].arrow),
        }
    )  # fmt: skip
    batch = of(CHANGES)
    batch.tables = [TableChanges(TARGET, columns, (), table)]
    (file,) = read(written(tmp_path, batch))
    assert file.columns == columns
    there = replace(TARGET, schema=target_schema([("v", TYPES[name].arrow)]))
    assert file.changes(there, NO_SPILL).changes == table


def test_values_are_widened_as_the_stream_widens_them(tmp_path):
    """A real becomes the double of its text, as for a subscriber whose column is a double."""
    real = resolve(700, -1)
    table = pa.table(
        {
            "seq": pa.array([0, 1], pa.int64()), "op": pa.array([INSERT] * 2, pa.int16()),
            "old": pa.array([0, 0], pa.int16()), "new_0": pa.array([0.1, None], pa.float32()),
        }
    )  # fmt: skip
    batch = of(CHANGES)
    batch.tables = [TableChanges(TARGET, (TargetColumn("v", real),), (), table)]
    (file,) = read(written(tmp_path, batch))
    there = replace(TARGET, schema=target_schema([("v", pa.float64())]))
    changes = file.changes(there, NO_SPILL).changes
    assert changes["new_0"].to_pylist() == [0.1, None]


def test_the_target_has_changed_since(tmp_path):
    """Wider types hold the values; a column that is gone is told."""
    narrow = (TargetColumn("id", resolve(23, -1)), COLUMNS[1])
    table = CHANGES.set_column(3, "new_0", CHANGES["new_0"].cast(pa.int32()))
    table = table.set_column(5, "old_0", table["old_0"].cast(pa.int32()))
    batch = of(table)
    batch.tables[0].columns = narrow
    (file,) = read(written(tmp_path, batch))
    assert file.changes(TARGET, NO_SPILL).changes == CHANGES
    gone = replace(TARGET, schema=target_schema([("id", pa.int64())]))
    with pytest.raises(TargetError, match='is missing replicated column: "a note"'):
        file.changes(gone, NO_SPILL)


def test_large_values_that_the_stream_did_not_carry_are_counted(tmp_path):
    """Of UPDATEs that the filter made INSERTs."""
    batch = of(CHANGES)
    batch.tables[0].lost = 2
    (file,) = read(written(tmp_path, batch))
    assert file.lost == 2


def test_many_changes_are_in_files_again(tmp_path, monkeypatch):
    monkeypatch.setattr(replayable, "_ROWS_AT_ONCE", 2)
    (file,) = read(written(tmp_path, of(CHANGES)))
    (tmp_path / "scratch").mkdir()
    spill = spill_in(tmp_path / "scratch")
    changes = file.changes(TARGET, spill)
    assert (changes.spill, changes.changes.num_rows) == (spill, 3)
    assert changes.changes.to_pylist() == CHANGES.to_pylist()


def test_what_was_not_decoded_is_told(tmp_path):
    batch = of(None, error=ApplyError("bad value", ApplyContext("o", Lsn(0x18), 7)))
    with pytest.raises(SkipError, match="could not be decoded: bad value"):
        read(written(tmp_path, batch))


def test_what_an_earlier_version_kept_is_told(tmp_path):
    with pytest.raises(SkipError, match="has nothing for a replay: it was written for a handler, or by an earlier"):
        read(tmp_path)


def test_another_format_is_told(tmp_path, monkeypatch):
    """An earlier version kept what its row filters looked at, too."""
    monkeypatch.setattr(replayable, "_FORMAT", 1)
    folder = written(tmp_path, of(CHANGES))
    monkeypatch.undo()
    with pytest.raises(SkipError, match="format 1 is not known to this version(.|\n)*copy the tables again"):
        read(folder)


@pytest.mark.parametrize("content", [b"", b"no Arrow file"])
def test_a_broken_file_is_told(tmp_path, content):
    folder = written(tmp_path, of(CHANGES))
    (folder / "replay" / "0000.arrow").write_bytes(content)
    with pytest.raises(SkipError, match="cannot be read"):
        read(folder)


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(StateError, match="cannot write the skipped transaction"):
        write(of(CHANGES), tmp_path / "missing", SKIPPER)
