"""What is folded part by part comes to what is folded at once; and files go when nobody holds their tables."""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from pgbridge.bridge.effects import divided
from pgbridge.bridge.effects.divided import ScratchTable, key_hashes
from pgbridge.bridge.effects.events import key_codes
from pgbridge.bridge.effects.net_effect import net_effect
from pgbridge.bridge.runtime.errors import StateError
from tests.bridge.apply.made_changes import KEY, after_all, before_all, changes_table, merged, random_case, rows_of
from tests.bridge.batch.collected import spill_in


def in_order(effects):
    """Without the values of rows that ended, which have no meaning."""
    rows = effects.table.to_pylist()
    meant = [
        {name: value for name, value in row.items() if not (row["ended"] and name.startswith(("new_", "unchanged_")))}
        for row in rows
    ]
    return sorted(meant, key=repr)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), gaps=st.booleans(), parts=st.integers(1, 9))
def test_parts_come_to_the_whole(tmp_path_factory, seed, gaps, parts):
    """Key changes connect keys, of which all changes are in one part."""
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=True) for number in range(12)]
    for case in cases:
        case.changes = [change for change in case.changes if not gaps or rng.random() < 0.7]
    changes = changes_table(cases, rng)
    if not len(changes):
        return
    whole = net_effect(changes, KEY)
    found = spill_in(tmp_path_factory.mktemp("parts"), max(1, changes.nbytes // parts)).net_effect(changes, KEY)
    assert found.shape == whole.shape
    assert in_order(found) == in_order(whole)
    if not gaps:
        assert merged(before_all(cases), rows_of(found.table)) == after_all(cases)


def test_a_part_of_more_text_than_32_bits_count(tmp_path_factory, monkeypatch):
    """It is folded with wider offsets; the effects have the columns' own types."""
    monkeypatch.setattr(divided, "_LARGE_BYTES", 0)
    monkeypatch.setattr(divided, "_PIECE_BYTES", 100)
    test_parts_come_to_the_whole(tmp_path_factory)
    changes = changes_table([random_case(0, random.Random(3), moves_keep_toast=True)], random.Random(3))
    parted = spill_in(tmp_path_factory.mktemp("types"), 1).net_effect(changes, KEY)
    assert parted.table.schema.types == net_effect(changes, KEY).table.schema.types


def test_many_parts(tmp_path, monkeypatch):
    """Of changes in several chunks, as they were written; nothing is left in the folder."""
    monkeypatch.setattr(divided, "_CHUNK_ROWS", 7)
    rng = random.Random(1)
    cases = [random_case(number, rng, moves_keep_toast=True) for number in range(30)]
    changes = changes_table(cases, rng)
    spill = spill_in(tmp_path, 1)
    table = spill.table(changes.slice(at, 11) for at in range(0, len(changes), 11))
    assert table.equals(changes)
    found = spill.net_effect(table, KEY)
    assert merged(before_all(cases), rows_of(found.table)) == after_all(cases)
    assert list(tmp_path.iterdir()) == []


def test_a_chain_of_key_changes_is_in_one_part(tmp_path):
    """Each row moves to the next one's key, from the last to the first."""
    number = 500
    changes = pa.table(
        {
            "seq": range(number), "op": pa.array([ord("U")] * number, pa.int16()),
            "old": pa.array([ord("K")] * number, pa.int16()),
            "new_0": range(number, 0, -1), "old_0": range(number - 1, -1, -1),
        }
    )  # fmt: skip
    found = spill_in(tmp_path, 1).net_effect(changes, (0,))
    assert not found.shape.unclear
    assert in_order(found) == in_order(net_effect(changes, (0,)))


KEYS = {
    "int32": pa.array([1, -1, 0, 1], pa.int32()),
    "date": pa.array([1, -1, 0, 1], pa.date32()),
    "timestamp": pa.array([1, -1, 0, 1], pa.timestamp("us", "UTC")),
    "text": pa.array(["a", "ä", "", "a"]),
    "bytes": pa.array([b"a", b"a\0", b"", b"a"]),
    "decimal": pa.array([1, 2, None, 1], pa.decimal128(10, 2)),
    "bool": pa.array([True, False, True, True]),
    "double": pa.array([0.0, float("nan"), float("nan"), -0.0]),
    "list": pa.array([[0.0, None], [float("nan")], [float("nan")], [-0.0, None]]),
}


@pytest.mark.parametrize("name", KEYS)
def test_equal_keys_have_equal_hashes_in_any_table(name):
    column = pa.chunked_array([KEYS[name].slice(0, 1), KEYS[name].slice(1)])
    codes, hashes = key_codes([column]), key_hashes([column])
    assert ((codes[:, None] == codes[None, :]) == (hashes[:, None] == hashes[None, :])).all()
    for row in range(len(column)):
        assert key_hashes([column.slice(row, 1)])[0] == hashes[row]


def test_hashes_of_two_columns_spread():
    ids = pa.chunked_array([np.arange(10_000)])
    texts = ids.cast(pa.string())
    for columns in ([ids], [texts], [ids, texts], [texts, ids]):
        hashes = key_hashes(columns)
        assert len(np.unique(hashes)) == 10_000
        counts = np.bincount((hashes >> np.uint64(32)).astype(np.int64) % 16, minlength=16)
        assert counts.min() > 300


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    spill = spill_in(tmp_path / "missing")
    with pytest.raises(StateError, match="temporary file(.|\n)*set TMPDIR") as raised:
        spill.table([pa.table({"a": [1]})])
    assert raised.value.retry


def test_a_table_is_gone_with_an_error(tmp_path):
    spill = spill_in(tmp_path)
    with suppress(ZeroDivisionError), ScratchTable(spill.scratch) as table:
        table.write(pa.table({"a": [1]}))
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
