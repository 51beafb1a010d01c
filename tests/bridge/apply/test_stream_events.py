"""Each event is logged once, with what an operator needs to act on it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.apply.stream_events import StreamEvents
from pgbridge.bridge.effects.conflicts import EXAMPLES, Conflict, Conflicts
from pgbridge.bridge.runtime import log
from pgbridge.protocol.codec.messages import LogicalMessage
from pgbridge.protocol.lsn import Lsn


@pytest.fixture
def logged():
    """The events of a stream, and a list of what it logs."""
    with capture_logs() as found:
        yield StreamEvents(log.get("shop")), found


def test_a_notice_is_logged_once(logged):
    """Its context has another LSN each time."""
    events, found = logged
    for lsn in ("0/1", "0/2"):
        events.publisher_notice(f'WARNING:  skipped loading publication "p"\nCONTEXT:  LSN {lsn}')
    assert [event["notice"] for event in found] == ['WARNING:  skipped loading publication "p"\nCONTEXT:  LSN 0/1']


@pytest.mark.parametrize(("content", "shown"), [(b"caf\xe9", "caf\\xe9"), (b"x" * 1001, "x" * 1000 + "…")])
def test_logical_message(logged, content, shown):
    events, found = logged
    transaction: Any = SimpleNamespace(xid=7)
    events.logical_messages([(transaction, LogicalMessage(True, Lsn(0x10), "app", content))])
    (event,) = found
    assert (event["prefix"], event["content"], event["content_bytes"]) == ("app", shown, len(content))
    assert (event["lsn"], event["transactional"], event["xid"]) == ("0/10", True, 7)


def test_messages_and_notices_cannot_fill_the_log():
    """So many a minute; then the number of the others, and as many again."""
    now_s = 0.0
    transaction: Any = SimpleNamespace(xid=7)
    message = LogicalMessage(True, Lsn(0x10), "app", b"x")
    with capture_logs() as found:
        events = StreamEvents(log.get("shop"), lambda: now_s)
        for minute in range(2):
            now_s = 60.0 * minute
            events.logical_messages([(transaction, message)] * 1000)
            for i in range(1000):
                events.publisher_notice(f"WARNING:  {minute} {i}")
    counted = [(event["event"], event["not_logged"]) for event in found if "not_logged" in event]
    assert counted == [("more logical messages came than are logged", 940), ("more notices came than are logged", 940)]
    assert len(found) == 2 * 2 * 60 + 2


def test_a_hint_has_the_command(logged):
    events, found = logged
    events.schema_differs("public.t", "column a stays an int", "pgbridge refresh shop --resync public.t")
    (event,) = found
    assert event["hint"] == "to copy the table afresh, run: pgbridge refresh shop --resync public.t"


def test_conflicts(logged):
    """An event for each kind, in PostgreSQL's words."""
    events, found = logged
    example = Conflict("public.t", "update_missing", ("a",), ("1",), remote="(1, x)")
    events.conflicts(Conflicts("public.t", {"update_missing": 3}, {"update_missing": (example,)}), Lsn(0x10))
    (event,) = found
    assert event["event"] == 'conflict detected on relation "public.t": conflict=update_missing'
    assert (event["rows"], event["finish_lsn"], event["keys"]) == (3, "0/10", ["(a)=(1)"])
    assert event["remote_rows"] == ["(1, x)"]
    found.clear()
    more = tuple(replace(example, values=(str(number),)) for number in range(25))
    events.conflicts(Conflicts("public.t", {"update_missing": 25}, {"update_missing": more}), Lsn(0x10))
    events.conflicts(Conflicts("public.t", {"update_missing": 25}, {"update_missing": more}), Lsn(0x10), "/lake/c")
    assert [len(event.get("keys", ())) for event in found] == [EXAMPLES, 0]
    assert (found[1]["table"], found[1]["rows"]) == ("/lake/c", 25)


def test_toast_lost(logged):
    events, found = logged
    events.toast_lost("public.t", 2)
    (event,) = found
    assert (event["log_level"], event["relation"], event["rows"]) == ("warning", "public.t", 2)
