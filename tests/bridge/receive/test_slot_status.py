"""Slots as the server has them, read in one query."""

from __future__ import annotations

from protocol.lsn import Lsn


def test_slot(asked, publisher):
    assert asked.slot(f"{publisher.name}_none") is None
    name = f"{publisher.name}_slot"
    query = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
    lsn = publisher.query(query, (name,))[0][0]
    slot = asked.slot(name)
    assert (slot.plugin, slot.slot_type, slot.database) == ("pgoutput", "logical", publisher.name)
    assert (slot.active, slot.active_pid, slot.wal_status) == (False, None, "reserved")
    assert slot.confirmed_flush_lsn == Lsn.parse(lsn)
    slots = asked.slots(["none", name])
    assert slots.by_name == {"none": None, name: slot}
    assert slots.flush_lsn >= Lsn.parse(lsn)
    assert (slots.password_left_s, slots.synchronous_standby_names) == (None, "")


def test_physical_slot(asked, publisher):
    name = f"{publisher.name}_physical"
    publisher.query("SELECT pg_create_physical_replication_slot(%s)", (name,))
    try:
        slot = asked.slot(name)
        assert (slot.slot_type, slot.database, slot.confirmed_flush_lsn) == ("physical", None, None)
    finally:
        publisher.query("SELECT pg_drop_replication_slot(%s)", (name,))
