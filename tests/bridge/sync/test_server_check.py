"""What a look at the server does to the catalog, and when a stream may not begin. Real servers: `test_start.py`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import pytest
import structlog
from structlog.testing import capture_logs

from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, RelRow, sync_name
from pgbridge.bridge.catalog.held import held, note_timeline
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.slot import refused_by
from pgbridge.bridge.receive.slot_status import SlotStatus
from pgbridge.bridge.runtime.errors import PublisherError, PublisherWentBack, SlotAdvanced
from pgbridge.bridge.sync.server_check import ServerCheck
from pgbridge.bridge.track.position import Position, ServerHistory
from pgbridge.protocol.lsn import Lsn
from tests.bridge.skipped.kept import NO_SPARK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgbridge.bridge.track.position import Held

A = RelRow("public", "a", "r", Lsn(0x80), "/lake/a", position=Lsn(0x100), timeline=1)
B = RelRow("public", "b", "s", Lsn(0x80), "/lake/b", position=Lsn(0x180), timeline=1)

SERVER = ServerHistory("7", 1, Lsn(0x900))
PROMOTED = ServerHistory("7", 2, Lsn(0x900), left={1: Lsn(0x140)})


class Replication:
    """Stands for a walsender's connection to the server."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def history(self) -> ServerHistory:
        assert not self.closed
        return replace(self._world.server, started_us=self._world.started_us)

    def set_failover(self, slot_name: str) -> None:
        self._world.failover.append(slot_name)

    def close(self) -> None:
        self.closed = True


class World:
    """A server with a slot, a catalog with an origin at 0/100 of timeline 1, and the check of one against the other."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.server = SERVER
        self.started_us = 1
        self.standby_names = ""
        self.status: SlotStatus | None = status()
        self.failover: list[str] = []
        self.opened: list[Replication] = []
        self.catalog = Catalog(catalog_path(folder))
        self.catalog.register("shop", enabled=True)
        self.catalog.set_slot("shop", slot_name="shop", slot_state="creating", system_identifier="7")
        publisher: Any = SimpleNamespace(
            slot=lambda _: self.status,
            database="db",
            started_us=lambda: 1,
            setting=lambda _: self.standby_names,
        )
        subscription = Subscription(
            name="shop", connection="", publications=("p",), warehouse="/lake", slot_name="shop", **options
        )
        self.check = ServerCheck(Context(subscription, NO_SPARK, self.catalog, structlog.get_logger()), publisher)
        monkeypatch.setattr(self.check, "connection", self.connect)

    def begin(self) -> None:
        self.catalog.create_origin("shop", Lsn(0x100), "abc", [A, B], 1)
        note_timeline(self.catalog, "shop", SERVER)

    def connect(self) -> Any:
        self.opened.append(Replication(self))
        return self.opened[-1]

    def admit(self) -> None:
        self.check.admit(self.connect())

    @property
    def held(self) -> Held:
        positions = held(self.catalog, "shop")
        assert positions is not None
        return positions


def status(confirmed: int = 0x100, **others: Any) -> SlotStatus:
    return SlotStatus("pgoutput", "logical", "db", False, None, Lsn(confirmed), "reserved", **others)


@pytest.fixture
def world(tmp_path, monkeypatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    made.begin()
    with closing(made.catalog):
        yield made


def test_before_there_is_an_origin_nothing_is_compared(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.status = None
    with closing(world.catalog):
        assert world.check.look() == replace(SERVER, started_us=1)
    assert [connection.closed for connection in world.opened] == [True]


def test_a_server_that_has_all_changes_nothing(world):
    before = world.held
    with capture_logs() as logs:
        assert world.check.look() == replace(SERVER, started_us=1)
        world.admit()
        world.check.admitted()
    assert (world.held, world.catalog.rels("shop"), logs) == (before, [A, B], [])


def test_its_timeline_is_noted(world):
    """It has all, so whatever is recorded from now on is on its own timeline; what the tables have stays on theirs."""
    world.server = replace(PROMOTED, left={1: Lsn(0x180)})
    with capture_logs() as logs:
        world.check.look()
    assert world.held.origin == Position("7", 2, Lsn(0x100), Lsn(0x180))
    assert {position.timeline for position in world.held.tables.values()} == {1}
    (logged,) = logs
    assert (logged["log_level"], logged["timeline"], logged["before"]) == ("info", 2, 1)
    world.admit()


def test_the_server_lost_what_only_a_table_and_a_batch_have(world):
    """The table is copied afresh beside the others, the batch is taken back; the subscription goes on."""
    world.server = PROMOTED
    world.catalog.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x160)))
    world.catalog.set_skip_lsn("shop", Lsn(0x158))
    with capture_logs() as logs:
        world.check.look()
    batch = world.catalog.batch("shop")
    assert batch is not None
    assert batch.undoing
    assert world.catalog.rels("shop") == [A]
    assert world.catalog.rels(sync_name("shop")) == [RelRow("public", "b", "d", Lsn(0), "/lake/b")]
    assert world.catalog.skip_lsn("shop") is None
    assert world.held.origin == Position("7", 2, Lsn(0x100), Lsn(0x140))
    warnings = [log for log in logs if log["log_level"] == "warning"]
    assert [log["event"].split(":")[-1].strip() for log in warnings] == [
        "the publisher lost its transactions",
        "it has transactions that the publisher lost",
        "the publisher lost its transaction",
    ]
    assert warnings[1]["relation"] == "public.b"
    assert "left timeline 1 at 0/140" in warnings[1]["reason"]
    with pytest.raises(PublisherError, match="does not have all"):
        world.admit()  # the batch has to be taken back first
    world.catalog.drop_batch("shop")
    world.admit()


@pytest.mark.parametrize(
    ("server", "kind", "words"),
    [
        (ServerHistory("8", 1, Lsn(0x900)), PublisherError, "the publisher is another server"),
        (ServerHistory("7", 1, Lsn(0xFF)), PublisherWentBack, "the publisher went back: it has WAL up to 0/FF"),
        (replace(PROMOTED, left={1: Lsn(0xFF)}), PublisherWentBack, "its timeline 2 left timeline 1 at 0/FF"),
    ],
)
def test_a_server_that_lost_what_the_origin_has_is_refused(world, server, kind, words):
    """With both positions; nothing is copied, taken back or noted."""
    world.server = server
    before = world.held
    with pytest.raises(kind, match=words) as caught:
        world.check.look()
    assert not caught.value.retry
    assert (world.held, world.catalog.rels("shop")) == (before, [A, B])
    if kind is PublisherWentBack:
        assert "but changes up to 0/100 of timeline 1 are durable here" in caught.value.message
        assert "to copy all tables again, run: pgbridge resync shop" in caught.value.hint
    error = refused_by(before, server, "shop")
    assert error is not None
    assert error.message == caught.value.message


def test_another_timeline_of_the_same_number_is_refused(world):
    """Two standbys were promoted, and neither knew of the other; changes were streamed from the first one."""
    world.server = replace(PROMOTED, left={1: Lsn(0x180)})
    world.check.look()
    world.catalog.advance_origin("shop", Lsn(0x300))
    for begin in (0x120, 0x1F0):
        world.server = replace(PROMOTED, left={1: Lsn(begin)})
        with pytest.raises(PublisherWentBack, match=f"its timeline 2 began at 0/{begin:X}, .* here at 0/180"):
            world.check.look()
    world.server = replace(PROMOTED, timeline=3, left={1: Lsn(0x180), 2: Lsn(0x300)})
    world.check.look()
    assert world.held.origin.timeline == 3


def test_a_standby_that_lags_is_waited_for(world):
    """For a table's sake, too: it is not copied afresh."""
    world.server = replace(SERVER, in_recovery=True, flush_lsn=Lsn(0x17F))
    with pytest.raises(PublisherError, match="the standby lags: .* but changes up to 0/180 of timeline 1") as caught:
        world.check.look()
    assert caught.value.retry
    assert world.catalog.rels("shop") == [A, B]


def test_a_tablesync_worker_names_its_subscription(world):
    name = sync_name("shop")
    world.catalog.register(name, enabled=True)
    world.catalog.create_origin(name, Lsn(0x100), "abc", [], 1)
    world.server = ServerHistory("7", 1, Lsn(0))
    world.check._subscription = world.check._subscription.model_copy(update={"name": name})
    with pytest.raises(PublisherWentBack) as caught:
        world.check.look()
    assert "pgbridge resync shop" in caught.value.hint
    assert name not in caught.value.hint


def test_the_slot_is_checked(world):
    world.status = status(0x101)
    with pytest.raises(SlotAdvanced):
        world.check.look()
    world.status = None
    with pytest.raises(PublisherError, match='replication slot "shop" does not exist'):
        world.check.look()


def test_a_slot_that_was_moved_before_the_stream_began_is_noticed(world):
    """The server would go on silently from where the slot is."""
    world.check.look()
    world.admit()
    world.status = status(0x101)
    with pytest.raises(SlotAdvanced):
        world.check.admitted()


def test_a_server_that_changed_since_the_look_is_not_admitted(world):
    """All begins again, with the look."""
    world.check.look()
    world.server = PROMOTED
    with pytest.raises(
        PublisherError, match="the publisher changed before the stream began: it is on timeline 2 now"
    ) as caught:
        world.admit()
    assert caught.value.retry
    assert world.held.origin.timeline == 1
    assert world.catalog.rels("shop") == [A, B]


def test_another_server_in_its_place_is_not_admitted(world):
    """The slot was looked at there: here it may be another one."""
    world.check.look()
    world.started_us = 2
    with pytest.raises(PublisherError, match="another server took its place") as caught:
        world.admit()
    assert caught.value.retry


def test_a_primarys_timeline_is_certain_as_long_as_it_runs(world):
    world.check.look()
    world.admit()
    opened = len(world.opened)
    world.check.certify()
    assert len(world.opened) == opened
    world.check.close()


def test_a_standby_is_asked_for_its_timeline(world):
    """It may be promoted while it sends: what it sent by then is in its own history, whatever that is."""
    world.server = replace(SERVER, in_recovery=True)
    world.check.look()
    world.admit()
    for timeline in (1, 2, 2, 3):
        world.server = replace(SERVER, timeline=timeline, in_recovery=timeline == 1)
        world.check.certify()
        assert world.held.origin.timeline == timeline
    world.check.close()
    world.check.close()
    assert world.opened[-1].closed
    note_timeline(world.catalog, "shop", SERVER)
    world.check.certify()
    assert world.held.origin.timeline == 1, "the stream has ended"


@pytest.mark.parametrize(
    ("failover", "before", "in_recovery", "after"),
    [(True, False, False, ["shop"]), (True, True, False, []), (False, False, False, []), (True, False, True, [])],
)
def test_the_slot_gets_failover_if_that_is_asked_for(tmp_path, monkeypatch, failover, before, in_recovery, after):
    world = World(tmp_path, monkeypatch, failover=failover)
    world.begin()
    world.server = replace(SERVER, in_recovery=in_recovery)
    world.status = status(failover=before)
    with closing(world.catalog):
        world.check.look()
    assert world.failover == after


def test_two_phase_that_has_no_effect_is_told(world):
    world.status = status(two_phase=True)
    with capture_logs() as logs:
        world.check.look()
    assert [log["event"].split(":")[0] for log in logs] == ["two_phase = false has no effect"]


@pytest.mark.parametrize(("names", "told"), [("*", True), ("ANY 1 (Shop, other)", True), ("other", False)])
def test_commits_that_wait_for_the_subscription_are_told_at_the_start(world, names, told):
    world.standby_names = names
    with capture_logs() as logs:
        world.check.admitted()
    assert [log["synchronous_standby_names"] for log in logs] == [names] * told


def test_a_standby_has_no_commits_that_wait(world):
    world.standby_names = "*"
    world.server = replace(SERVER, in_recovery=True)
    world.admit()
    with capture_logs() as logs:
        world.check.admitted()
    assert logs == []
    world.check.close()
