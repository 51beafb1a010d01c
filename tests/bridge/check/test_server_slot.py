"""A slot that the stream would refuse fails, in the words that the stream would have."""

from __future__ import annotations

from dataclasses import replace

from pgbridge.bridge.check.finding import Level
from pgbridge.bridge.check.server import Expected, check_slot_state
from pgbridge.bridge.receive.slot_status import SlotStatus
from pgbridge.protocol.lsn import Lsn

NEW = Expected("shop", "shop", create_slot=True, durable_lsn=None, being_created=False, streams=False)
OLD = replace(NEW, durable_lsn=Lsn(0x100))
SOUND = SlotStatus(
    "pgoutput", "logical", "db", active=False, active_pid=None, confirmed_flush_lsn=Lsn(0x100), wal_status="reserved"
)


def look(status, expected):
    found = list(check_slot_state(status, expected, database="db"))
    return [(one.level, one.message) for one in found]


def test_a_slot_that_will_be_created():
    assert look(None, NEW) == [(Level.PASS, '"shop" is created at the first start')]


def test_a_slot_of_somebody_else():
    ((level, message),) = look(SOUND, NEW)
    assert level is Level.FAILURE
    assert "already exists on the publisher" in message


def test_a_slot_that_an_earlier_start_was_creating():
    assert look(SOUND, replace(NEW, being_created=True)) == []


def test_an_existing_slot_to_be_used():
    assert look(SOUND, replace(NEW, create_slot=False))[0][0] is Level.PASS
    ((level, message),) = look(None, replace(NEW, create_slot=False))
    assert (level, message) == (Level.FAILURE, 'replication slot "shop" does not exist on the publisher')


def test_a_sound_slot():
    assert look(SOUND, OLD) == [(Level.PASS, '"shop" is sound, confirmed up to 0/100')]


def test_lost_and_moved_slots():
    for status in (
        None,
        replace(SOUND, wal_status="lost"),
        replace(SOUND, confirmed_flush_lsn=Lsn(0x200)),
        replace(SOUND, database="other"),
        replace(SOUND, plugin="test_decoding"),
    ):
        assert [level for level, _ in look(status, OLD)] == [Level.FAILURE]


def test_a_standbys_copy_of_a_slot():
    copy = replace(SOUND, synced=True, slotsync_skip_reason="wal_not_flushed")
    ((level, message),) = look(copy, OLD)
    assert level is Level.FAILURE
    assert "after a promotion only; its last synchronization was skipped (wal_not_flushed)" in message
    assert "skipped" not in look(replace(copy, slotsync_skip_reason=None), OLD)[0][1]


def test_a_slot_about_to_be_lost():
    ((level, message),) = look(replace(SOUND, wal_status="unreserved"), OLD)
    assert level is Level.WARNING
    assert "the next checkpoint may remove it" in message


def test_a_slot_that_another_process_reads():
    active = replace(SOUND, active=True, active_pid=77)
    ((level, message),) = look(active, OLD)
    assert (level, "process 77" in message) == (Level.FAILURE, True)
    assert look(active, replace(OLD, streams=True))[0][0] is Level.PASS
