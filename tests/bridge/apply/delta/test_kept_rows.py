"""Rows of tables are kept within a budget, and those in use are never driven out."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from bridge.apply.delta import kept_rows
from bridge.apply.delta.kept_rows import Kept, KeptRows

ROWS = pa.table({"a": pa.array([1] * 1000)})
KEPT = Kept(1, (1, 1), ROWS)


@pytest.fixture
def now(monkeypatch):
    """A clock that tests set."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def kept(monkeypatch, now):
    """The rows of two tables, for which there is just room; `a` was used later."""
    monkeypatch.setattr(kept_rows, "_ALL_BYTES", 2 * ROWS.nbytes)
    rows = KeptRows()
    rows.put("a", KEPT)
    rows.put("b", KEPT)
    now[0] = 1.0
    assert rows.take("a") is KEPT
    assert rows.put("a", KEPT)
    return rows


def test_tables_in_use_stay(kept, now):
    now[0] = kept_rows.A_WHILE_S - 1
    assert not kept.has_room(1)
    assert kept.take("b") is KEPT
    assert kept.take("a") is KEPT


def test_a_table_that_nobody_used_for_a_while_makes_room(kept, now):
    now[0] = kept_rows.A_WHILE_S
    assert kept.has_room(1)
    assert kept.take("b") is None
    assert kept.take("a") is KEPT


def test_no_more_tables_than_needed_make_room(kept, now):
    now[0] = 10 * kept_rows.A_WHILE_S
    assert kept.has_room(ROWS.nbytes)
    assert kept.take("a") is KEPT


def test_later_rows_take_the_place_of_earlier_ones(kept):
    for _ in range(3):
        kept.put("a", Kept(2, (1, 2), ROWS))
    assert kept.take("b") is KEPT
    assert kept.take("b") is None
    assert kept.has_room(ROWS.nbytes)
    assert not kept.has_room(ROWS.nbytes + 1)
    assert kept.take("a").version == 2


def test_rows_for_which_there_is_no_room_are_not_kept(kept):
    assert not kept.put("c", KEPT)
    assert kept.take("c") is None
    assert not kept.put("a", Kept(2, (1, 2), pa.table({"a": pa.array([1] * 1001)})))
    assert kept.take("a") is None, "these are not the table's any more"
    assert kept.take("b") is KEPT


def test_rows_that_were_taken_need_no_room(kept):
    for path in "ab":
        kept.take(path)
    assert kept.take("a") is None
    assert kept.has_room(2 * ROWS.nbytes)
