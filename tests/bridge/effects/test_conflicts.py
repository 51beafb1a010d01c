"""Conflicts have PostgreSQL's messages and details."""

from __future__ import annotations

import datetime as dt

import pytest

from pgbridge.bridge.effects.conflicts import (
    DELETE_MISSING,
    INSERT_EXISTS,
    KEPT_KEYS,
    UPDATE_MISSING,
    Conflict,
    Conflicts,
    Tally,
    as_text,
)


def test_messages_are_postgresqls():
    conflict = Conflict("public.t", INSERT_EXISTS, ("a", "b"), ("1", None))
    assert str(conflict) == (
        'conflict detected on relation "public.t": conflict=insert_exists\n'
        "DETAIL:  Key already exists in the target: key (a, b)=(1, null)."
    )
    assert Conflict("t", UPDATE_MISSING, ("a",), ("1",)).detail == (
        "Could not find the row to be updated: replica identity (a)=(1)."
    )
    assert Conflict("t", DELETE_MISSING, ("a",), ("1",), full=True).detail == (
        "Could not find the row to be deleted: replica identity full (a)=(1)."
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "t"),
        (b"\x01", "\\x01"),
        (dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC), "2024-01-02 03:04:05+00:00"),
        ([1, None], "{1,NULL}"),
        (7, "7"),
        ("x" * 300, "x" * 200),
    ],
)
def test_values_as_text(value, text):
    assert as_text(value) == text


def test_a_tally_reports_counts_and_some_keys():
    tally, reports = Tally(), list[Conflicts]()
    tally.report("public.t", ["id"], reports.append)
    assert reports == []
    for key in range(KEPT_KEYS + 5):
        tally.add(UPDATE_MISSING, (key,), 2)
    tally.add(DELETE_MISSING, (1,))
    tally.report("public.t", ["id"], reports.append)
    (report,) = reports
    assert report.counts == {UPDATE_MISSING: 2 * KEPT_KEYS + 10, DELETE_MISSING: 1}
    assert len(report.kept[UPDATE_MISSING]) == KEPT_KEYS
    assert report.kept[DELETE_MISSING] == (Conflict("public.t", DELETE_MISSING, ("id",), ("1",)),)
