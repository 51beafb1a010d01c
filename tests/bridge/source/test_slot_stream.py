"""What a stream tells the server, and what it does when more waits than it may hold.

Offsets go through a checkpoint and come back; what is none is refused.
"""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from pgbridge.bridge.runtime.errors import AnotherServer, PublisherError, PublisherWentBack, StateError
from pgbridge.bridge.source.options import SourceOptions
from pgbridge.bridge.source.slot_stream import Offset, Server, _LeavingQueue, _Unconfirmed, check_server, waited
from pgbridge.bridge.track.position import ServerHistory
from pgbridge.protocol.codec.messages import LogicalMessage
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.stream.transactions import Transaction


def test_a_position_is_told_once():
    progress = _Unconfirmed(Lsn(100))
    assert progress.durable_lsn == INVALID
    progress.keepalive(Lsn(500), in_transaction=False)
    progress.transaction(Lsn(600))
    assert (progress.durable_lsn, progress.passed_lsn) == (INVALID, Lsn(600))
    progress.confirm(Lsn(300))
    assert (progress.durable_lsn, progress.durable_lsn) == (Lsn(300), INVALID)


def test_a_full_queue_leaves_once():
    left = []
    queue = _LeavingQueue(1000, lambda: left.append(1))
    assert queue.wait_for_room(0.01)
    queue.put(Transaction.of_message(LogicalMessage(False, Lsn(7), "p", bytes(2000))))
    assert not queue.wait_for_room(0.01)
    assert not queue.wait_for_room(0.01)
    assert (left, queue.full) == ([1], True)


class _InUse(Exception):
    sqlstate = "55006"


def test_only_a_slot_in_use_is_waited_for():
    tries = []

    def begin() -> None:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise PublisherError("slot is active for PID 7") from _InUse()

    waited(begin, 10)
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(PublisherError, match="active for PID 7; waited for 0 s"):
        waited(begin, 0)

    def refuse() -> None:
        raise PublisherError("no")

    with pytest.raises(PublisherError, match="no"):
        waited(refuse, 10)


@pytest.fixture
def check():
    """`check_server` on a server of timeline 3, which left timeline 1 at 0/300, and timeline 2 at 0/500."""

    def checked(*offsets, replayed=None, another=False, upgraded_from=None):
        flush_lsn = Lsn.parse(replayed or "0/900")
        left = {1: Lsn(0x300), 2: Lsn(0x500)}
        server = ServerHistory("7", 3, flush_lsn, replayed is not None, left, started_us=5)
        replication: Any = SimpleNamespace(history=lambda: server)
        publisher: Any = SimpleNamespace(started_us=lambda: 6 if another else 5)
        options = SourceOptions("", ("pub",), upgraded_from=upgraded_from)
        return check_server(options, publisher, replication, *offsets)

    return checked


def at(lsn, timeline=None, timeline_lsn=None):
    return Offset(Lsn(lsn), "7", timeline, None if timeline_lsn is None else Lsn(timeline_lsn))


@pytest.mark.parametrize(
    "offsets",
    [
        (at(0x300, 1), at(0x500, 2)),
        (at(0x300, 1), at(0x900, 3)),
        (at(0x400), at(0x900)),  # of an earlier version, on a standby
        (at(0x400, 1, 0x300), at(0x800, 2, 0x500)),  # of a standby, which went over with the primary
        (at(0x400, 2), at(0x300, 1)),  # batch 0: its start is what the slot says today
    ],
)
def test_a_server_that_has_start_and_end(check, offsets):
    assert check(*offsets) == Server("7", 3, None)


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ((at(0x300, 1), at(0x301, 1)), "changes up to 0/301 of timeline 1"),
        ((at(0x301, 1), at(0x500, 2)), "changes up to 0/301 of timeline 1"),
        ((at(0x500, 3), at(0x300, 1), at(0x501, 2)), "its timeline 3 left timeline 2 at 0/500"),
        ((at(0x300, 1), at(0x400, 1, 0x301)), "changes up to 0/301 of timeline 1"),
        ((at(0x300, 1), at(0x901, 3)), "it has WAL up to 0/900"),
        ((at(0x300, 1), at(0x901, 2, 0x400)), "it has WAL up to 0/900"),
        ((at(0x300, 1), at(0x901)), "it has WAL up to 0/900"),
        ((at(0x300, 1), at(0x400, 4)), "is on timeline 3"),
    ],
)
def test_a_server_that_lost_start_or_end(check, offsets, words):
    with pytest.raises(PublisherWentBack) as caught:
        check(*offsets)
    assert words in caught.value.message
    assert "docs/spark-source.md#beginning-again" in caught.value.hint


def test_what_a_standby_has_is_what_it_has_replayed(check):
    """WAL that it has only received may yet be replaced by that of another timeline."""
    assert check(at(0x300, 1), at(0x800, 3), replayed="0/800") == Server("7", 3, Lsn(0x800))
    with pytest.raises(PublisherError, match="the standby lags: it has WAL up to 0/800") as caught:
        check(at(0x300, 1), at(0x801, 3), replayed="0/800")
    assert caught.value.retry
    assert not isinstance(caught.value, PublisherWentBack)


def test_offsets_of_the_server_before_pg_upgrade(check):
    former = Offset(Lsn(0x800), "6", 9)
    with pytest.raises(AnotherServer, match="the query began with 6"):
        check(former)
    assert check(former, at(0x300, 3), upgraded_from="6").system_identifier == "7"
    with pytest.raises(PublisherWentBack):
        check(former, at(0x301, 1), upgraded_from="6")
    with pytest.raises(PublisherWentBack, match="timeline 1"):
        check(at(0x301, 1), upgraded_from="7")


def test_two_servers_are_not_taken_for_one(check):
    """The slot is looked at on one connection, and streamed from on another."""
    with pytest.raises(PublisherError, match="two servers") as caught:
        check(at(0x300, 1), another=True)
    assert caught.value.retry


@pytest.mark.parametrize(("timeline", "timeline_lsn"), [(None, None), (3, None), (3, Lsn.parse("16/B0000000"))])
def test_round_trip(timeline, timeline_lsn):
    offset = Offset(Lsn.parse("16/B374D848"), "7300000000000000001", timeline, timeline_lsn)
    assert Offset.of(json.loads(json.dumps(offset.to_json()))) == offset


@pytest.mark.parametrize(
    ("found", "timeline"),
    [({}, None), ({"timeline": None}, None), ({"timeline": 2}, 2)],
)
def test_offsets_of_earlier_versions(found, timeline):
    """They had the timeline of a primary for the offset itself, and none of a standby."""
    offset = Offset(Lsn.parse("0/3000110"), "1", timeline)
    assert Offset.of({"lsn": "0/3000110", "system_identifier": "1", **found}) == offset


@pytest.mark.parametrize(
    ("replayed", "certain"),
    [(None, None), ("0/2FFFFFF", "0/2FFFFFF"), ("0/3000110", None), ("0/4000000", None)],
)
def test_the_timeline_is_certain_up_to_what_a_standby_had_replayed(replayed, certain):
    """A primary keeps its timeline; a standby may follow another one from where it is."""
    server = Server("1", 2, None if replayed is None else Lsn.parse(replayed))
    expected = Offset(Lsn.parse("0/3000110"), "1", 2, None if certain is None else Lsn.parse(certain))
    assert server.offset(Lsn.parse("0/3000110")) == expected


@pytest.mark.parametrize("found", [{}, {"lsn": "x", "system_identifier": "1"}, {"lsn": 5, "system_identifier": "1"}])
def test_what_is_no_offset(found):
    with pytest.raises(StateError, match="did not write") as caught:
        Offset.of(found)
    assert "checkpointLocation" in caught.value.hint
