"""Slots as the server has them, read in one query.

The forecast of a slot, and what an operator is told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot_status import SlotHealth, SlotHistory, SlotStatus, concern
from pgbridge.protocol.lsn import Lsn
from tests.bridge.configurations import altered
from tests.faults.standby import ForkedServer


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


def test_a_standby_has_no_commits_that_wait():
    """It has the primary's setting."""
    settings: dict[str, Any] = {"synchronous_standby_names": "*", "synchronous_commit": "local"}
    with ForkedServer(settings=settings) as server:
        server.save("copy")
        with Publisher(server.conninfo, application_name="test") as primary:
            assert primary.slots(["none"]).synchronous_standby_names == "*"
        server.switch_to("copy", promote=False)
        with Publisher(server.conninfo, application_name="test") as standby:
            assert standby.slots(["none"]).synchronous_standby_names == ""


def test_physical_slot(asked, publisher):
    name = f"{publisher.name}_physical"
    publisher.query("SELECT pg_create_physical_replication_slot(%s)", (name,))
    try:
        slot = asked.slot(name)
        assert (slot.slot_type, slot.database, slot.confirmed_flush_lsn) == ("physical", None, None)
    finally:
        publisher.query("SELECT pg_drop_replication_slot(%s)", (name,))


MIB, GIB = 1 << 20, 1 << 30
STATUS = SlotStatus(
    "pgoutput",
    "logical",
    "db",
    active=True,
    active_pid=1,
    confirmed_flush_lsn=Lsn(0x100),
    wal_status="reserved",
    restart_lsn=Lsn(GIB),
)
SHOP = Subscription(name="shop", connection="", publications=("p",), warehouse="/lake")
HEALTH = SlotHealth("reserved", 40 * GIB, GIB, Lsn(1), Lsn(2), active=True, invalidation_reason=None, seconds_left=None)


def forecast(*samples: tuple[float, int | None]) -> float | None:
    """Seconds left after samples of (time, safe_wal_size)."""
    history = SlotHistory()
    left = None
    for now_s, safe in samples:
        left = history.add(now_s, replace(STATUS, safe_wal_size_bytes=safe), Lsn(3 * GIB)).seconds_left
    return left


def test_a_rate_gives_a_forecast():
    """One GiB in 100 s, 9 GiB left."""
    assert forecast((0, 10 * GIB), (50, 9 * GIB + 512 * MIB), (100, 9 * GIB)) == pytest.approx(900)


@pytest.mark.parametrize(
    "samples",
    [
        [(0, GIB)],
        [(0, 10 * GIB), (30, GIB)],  # too short a time
        [(0, GIB), (300, GIB - 16 * MIB)],  # one segment
        [(0, GIB), (300, 2 * GIB)],  # it recovers
        [(0, GIB), (300, None)],  # the limit was taken away
        [(0, 10 * GIB), (1000, GIB)],  # what was before the window does not count
    ],
)
def test_no_forecast(samples):
    assert forecast(*samples) is None


def test_nothing_left():
    assert forecast((0, GIB), (100, 0)) == 0


def test_what_is_retained():
    assert SlotHistory().add(0, STATUS, Lsn(3 * GIB)).retained_bytes == 2 * GIB
    assert SlotHistory().add(0, replace(STATUS, restart_lsn=None), Lsn(3 * GIB)).retained_bytes is None


def test_a_slot_that_is_gone():
    health = SlotHistory().add(0, None, Lsn(GIB))
    assert health.lost
    assert health.wal_status is None


def told(health: SlotHealth, **limits: int) -> tuple[str, str, str] | None:
    found = concern(altered(SHOP, **{f"alerts__{name}": value for name, value in limits.items()}), health)
    return None if found is None else (found.kind, found.level, found.message)


def test_a_safe_slot():
    assert told(HEALTH) is None
    assert told(replace(HEALTH, wal_status="extended")) is None
    assert told(replace(HEALTH, seconds_left=4000.0)) is None
    assert told(replace(HEALTH, retained_bytes=None)) is None
    assert told(replace(HEALTH, retained_bytes=11 * GIB), retained_bytes=0) is None


def test_the_slot_runs_out_of_room():
    assert told(replace(HEALTH, seconds_left=2400.4)) == (
        "running out",
        "warning",
        'at this rate replication slot "shop" is lost in 0:40:00 (hours:minutes:seconds)',
    )
    found = told(replace(HEALTH, seconds_left=10.0, active=False))
    assert found is not None
    assert found[2].endswith("; nobody streams from it")


def test_much_wal_is_told_again_when_it_has_doubled():
    kinds = []
    for size in (10, 15, 19, 20, 39, 40):
        found = told(replace(HEALTH, retained_bytes=size * GIB))
        assert found is not None
        kinds.append(found[0])
    assert kinds == ["retained 1"] * 3 + ["retained 2"] * 2 + ["retained 3"]


@pytest.mark.parametrize(
    ("health", "kind"),
    [
        (replace(HEALTH, wal_status="unreserved"), "unreserved"),
        (replace(HEALTH, wal_status="lost"), "lost"),
        (replace(HEALTH, invalidation_reason="idle_timeout"), "lost"),
        (replace(HEALTH, wal_status=None), "missing"),
    ],
)
def test_what_cannot_wait(health, kind):
    found = told(health)
    assert found is not None
    assert found[:2] == (kind, "error")
