"""Conflicts are told where the configuration says; those of a table that cannot be written are in the log."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.apply.conflict_log import ConflictLog
from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.apply.stream_events import StreamEvents
from pgbridge.bridge.catalog.catalog_rows import ErrorRow
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.config.tables import TargetTables
from pgbridge.bridge.effects.conflicts import DELETE_MISSING, INSERT_EXISTS, Conflict, Conflicts
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.errors import StateError, TargetBusy
from pgbridge.protocol.lsn import Lsn

BATCH = SimpleNamespace(xid=None, finish_lsn=Lsn(0x18), commit_time_us=0)
ONE = SimpleNamespace(xid=7, finish_lsn=Lsn(0x18), commit_time_us=5_000_000)
MISSING = Conflict("public.t", DELETE_MISSING, ("a", "b"), ("1", None))
EXISTS = Conflict("public.t", INSERT_EXISTS, ("a",), ("ü",), existing="(ü, old)", remote="(ü, new)")
PASSED = Conflicts("public.t", {DELETE_MISSING: 5}, {DELETE_MISSING: (MISSING,)})
STOPPED = Conflicts("public.t", {INSERT_EXISTS: 1}, {INSERT_EXISTS: (EXISTS,)}, stopped=True)


class Table:
    """The Delta table, in memory."""

    path = "/lake/pgbridge/conflicts"

    def __init__(self, error=None):
        self.error, self.rows = error, []

    def append(self, rows):
        if self.error:
            raise self.error
        self.rows += rows


def told(conflicts, batch=BATCH, *, destination="all", given=None, last_error=None):
    """What the log and the table have."""
    table: Any = given or Table()
    target = TargetTables(conflict_log_destination=destination)
    options = Subscription(name="shop", connection="", publications=("pub",), warehouse="/lake", target=target)
    catalog: Any = SimpleNamespace(last_error=lambda _: last_error)
    spark: Any = None
    context = Context(options, spark, catalog, log.get())
    with capture_logs() as events:
        conflict_log = ConflictLog(context, StreamEvents(log.get()), table if destination != "log" else None)
        conflict_log(conflicts, batch)
    return events, table.rows


def test_where_it_is_told():
    events, rows = told(PASSED, destination="log")
    assert ([event["keys"] for event in events], rows) == ([["(a, b)=(1, null)"]], [])
    events, rows = told(PASSED, destination="table")
    assert [(event["table"], event["rows"], event.get("keys")) for event in events] == [(Table.path, 5, None)]
    assert len(rows) == 2
    events, again = told(PASSED, destination="all")
    assert [event["keys"] for event in events] == [["(a, b)=(1, null)"]]
    assert [row.get("key") for row in again] == [row.get("key") for row in rows]


def test_the_rows():
    """The key of each, and how many changes there were beside these."""
    _, rows = told(PASSED)
    told_of = ("conflict_type", "key", "changes", "stopped", "remote_xid", "finish_lsn", "position", "last_commit_time")
    assert [tuple(row.get(name) for name in told_of) for row in rows] == [
        (DELETE_MISSING, '{"a": "1", "b": null}', 1, False, None, "0/18", 0x18, None),
        (DELETE_MISSING, None, 4, False, None, "0/18", 0x18, None),
    ]
    events, (row,) = told(STOPPED, ONE)
    assert events == [], "the error tells of it"
    assert (row["key"], row["existing_row"], row["remote_row"]) == ('{"a": "ü"}', "(ü, old)", "(ü, new)")
    assert (row["stopped"], row["remote_xid"], row["subscription"]) == (True, 7, "shop")
    assert row["last_commit_time"].isoformat() == "2000-01-01T00:00:05+00:00"


@pytest.mark.parametrize(
    ("error", "rows"),
    [
        (ErrorRow(str(EXISTS), Lsn(0x18), "public.t", 0.0), 0),
        (ErrorRow(str(EXISTS), Lsn(0x20), "public.t", 0.0), 1),
        (ErrorRow(str(EXISTS), Lsn(0x18), "public.u", 0.0), 1),
        (ErrorRow("another error", Lsn(0x18), "public.t", 0.0), 1),
        (ErrorRow(str(replace(EXISTS, values=("u",))), Lsn(0x18), "public.t", 0.0), 1),
        (None, 1),
    ],
)
def test_what_stops_again_is_one_row(error, rows):
    assert len(told(STOPPED, ONE, last_error=error)[1]) == rows
    assert len(told(PASSED, last_error=error)[1]) == 2


def test_a_table_that_cannot_be_written_leaves_them_to_the_log():
    events, _ = told(PASSED, destination="table", given=Table(TargetBusy("busy")))
    assert [event["event"].partition(" ")[0] for event in events] == ["conflicts", "conflict"]
    assert (events[0]["error"], events[1]["keys"]) == ("busy", ["(a, b)=(1, null)"])
    for conflicts in (PASSED, STOPPED):
        events, _ = told(conflicts, ONE, given=Table(StateError("the disk")))
        assert events[0]["error"] == "the disk"


def test_a_spark_that_is_lost_is_told_before_the_batch_is_durable():
    lost = Table(ConnectionError("refused"))
    with pytest.raises(ConnectionError):
        told(STOPPED, ONE, given=lost)
    events, _ = told(PASSED, given=lost)
    assert events[0]["error"] == "refused"
