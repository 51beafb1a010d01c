"""A conflict shows its rows as PostgreSQL 18 does: each value cut, and nothing of columns that are not replicated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgbridge.bridge.effects.conflicts import DELETE_MISSING, INSERT_EXISTS, UPDATE_MISSING, Conflict, Conflicts
from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.lake.changes.conflicting_rows import with_remote_rows, with_rows
from pgbridge.bridge.lake.writes import append_rows
from tests.bridge.apply.made_targets import changes

LONG = "é" * 300
CUT = "é" * 64 + "..."


def existing(key):
    return Conflict("public.t", INSERT_EXISTS, ("id",), (key,))


def test_both_rows(spark, target):
    append_rows(spark.createDataFrame([(1, LONG), (2, None)], "id long, note string"), target.path)
    made = changes(
        target, (DELETE, 1, None, None), (INSERT, None, 2, "x"), (INSERT, None, 1, LONG), (INSERT, None, 1, "y")
    )
    shown = with_rows(spark, existing("1"), made)
    assert (shown.existing, shown.remote) == (f"(1, {CUT})", f"(1, {CUT})")
    assert shown.detail.endswith(f"key (id)=(1); existing local row (1, {CUT}); remote row (1, {CUT}).")
    assert with_rows(spark, existing("2"), made).existing == "(2, null)"
    assert with_rows(spark, existing("3"), made) == existing("3"), "neither has such a row"


def test_a_key_whose_text_is_cut_is_not_looked_for(spark, target):
    """Another row may begin like it."""
    key = "é" * 200
    assert with_rows(spark, existing(key), changes(target)) == existing(key)


@pytest.mark.parametrize(
    ("rows", "remote"),
    [
        ([(UPDATE, None, 9, "lost")], "(9, lost)"),
        ([(UPDATE, 9, 10, "moved")], "(10, moved)"),
        ([(INSERT, None, 9, "begins"), (UPDATE, 8, 9, "comes")], None),
        ([(DELETE, 9, None, None)], None),
    ],
)
def test_the_new_row_of_an_update_that_finds_none(target, rows, remote):
    missing = Conflict("public.t", UPDATE_MISSING, ("id",), ("9",))
    other = Conflict("public.t", DELETE_MISSING, ("id",), ("9",))
    counts = {UPDATE_MISSING: 1, DELETE_MISSING: 1}
    told = Conflicts("public.t", counts, {UPDATE_MISSING: (missing,), DELETE_MISSING: (other,)})
    shown = with_remote_rows(told, changes(target, *rows))
    assert shown.kept == {UPDATE_MISSING: (replace(missing, remote=remote),), DELETE_MISSING: (other,)}
    without = Conflicts("public.t", {DELETE_MISSING: 1}, {DELETE_MISSING: (other,)})
    assert with_remote_rows(without, changes(target, *rows)) is without
