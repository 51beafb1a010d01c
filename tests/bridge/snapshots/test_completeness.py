"""Up to where tables are complete: what the daemon writes each minute, and what readers make of it."""

from __future__ import annotations

import datetime as dt
from collections import deque
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.catalog.catalog import Catalog
from pgbridge.bridge.catalog.commits import CommitRecord
from pgbridge.bridge.catalog.verified import VerifiedRow, put
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot_status import Moment, sent_up_to
from pgbridge.bridge.receive.slot_watch import SlotWatch
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.snapshots import commits_table
from pgbridge.bridge.snapshots.commits_table import CommitRows
from pgbridge.bridge.snapshots.completeness import Completeness, complete_until
from pgbridge.bridge.snapshots.point_in_time import point_of
from pgbridge.protocol.lsn import Lsn

ORIGIN = "pgbridge/1/sub/inc"
T0 = dt.datetime(2026, 5, 1, 12, 0, tzinfo=dt.UTC)


def at(seconds: float) -> dt.datetime:
    return T0 + dt.timedelta(seconds=seconds)


def us(seconds: float) -> int:
    return round((at(seconds) - dt.datetime(2000, 1, 1, tzinfo=dt.UTC)).total_seconds() * 1_000_000)


class Kept:
    """The tables of commits of all warehouses, as what was appended to them."""

    def __init__(self) -> None:
        self.appended: list[Any] = []
        self.fails = False

    def of(self, warehouse):
        return SimpleNamespace(ensure=lambda: False, append_now=partial(self._append, warehouse))

    def _append(self, warehouse, rows):
        if self.fails:
            raise TargetError("no")
        told = [(row["subscription"], row["kind"], row["end_lsn"], row["complete_until"]) for row in rows]
        self.appended.append((warehouse, told))


class World:
    """Two subscriptions of one warehouse, and one of another; the moments of their servers."""

    def __init__(self, catalog) -> None:
        self.catalog, self.kept = catalog, Kept()
        self.moments: dict[str, deque[Moment]] = {name: deque() for name in ("a", "b", "c")}
        self.subscriptions = [
            Subscription(name=name, connection="", publications=("p",), warehouse=lake)
            for name, lake in (("a", "/lake"), ("b", "/lake"), ("c", "/other"))
        ]
        for each in self.subscriptions:
            catalog.register(each.name, enabled=True)
        with capture_logs():
            self.completeness = Completeness(
                catalog, lambda: self.subscriptions, self.complete, self.kept.of, log.get()
            )

    def complete(self, name, lsn):
        return max((moment for moment in self.moments[name] if moment.lsn <= lsn), default=None)

    def begin(self, name, lsn):
        self.catalog.set_slot(name, slot_name=name, slot_state="ready", system_identifier="1")
        self.catalog.create_origin(name, Lsn(lsn), "inc", (), None)

    def turn(self):
        self.kept.appended.clear()
        self.completeness.turn()
        return self.kept.appended

    def close(self) -> None:
        self.completeness.close()


@pytest.fixture
def world(tmp_path):
    with closing(Catalog(tmp_path / "catalog.sqlite")) as catalog, closing(World(catalog)) as made:
        yield made


# --- written ----------------------------------------------------------------------------------------------------------


def test_a_commit_has_the_rows_of_all_subscriptions_of_a_warehouse(world):
    for name, lsn in (("a", 0x20), ("b", 0x30), ("c", 0x40)):
        world.begin(name, lsn)
        world.moments[name] += [Moment(Lsn(0x10), at(0)), Moment(Lsn(0x30), at(30))]
    assert world.turn() == [
        ("/lake", [("a", "complete", "0/10", at(0)), ("b", "complete", "0/30", at(30))]),
        ("/other", [("c", "complete", "0/30", at(30))]),
    ]
    assert world.turn() == [], "nothing is known since"
    world.catalog.advance_origin("a", Lsn(0x30))
    assert world.turn() == [("/lake", [("a", "complete", "0/30", at(30))])]


def found_equal(catalog, subscription, tables, lsn, until):
    for namespace, name, path in tables:
        row = VerifiedRow(namespace, name, path, Lsn(1), until.timestamp(), lsn=Lsn(lsn), at_s=until.timestamp())
        put(catalog, subscription, row)


def test_while_nothing_changes_the_time_goes_on(world):
    world.begin("a", 0x20)
    world.moments["a"].append(Moment(Lsn(0x20), at(0)))
    world.turn()
    world.moments["a"].append(Moment(Lsn(0x20), at(30)))
    assert world.turn() == [("/lake", [("a", "complete", "0/20", at(30))])]


def test_what_was_found_equal_is_written_once(world):
    world.begin("a", 0x20)
    tables = (("public", "t", "/lake/public/t"), ("public", "u", "/lake/public/u"))
    found_equal(world.catalog, "a", tables, 0x18, at(5))
    assert world.turn() == [("/lake", [("a", "verified", "0/18", at(5))])]
    assert world.turn() == []
    found_equal(world.catalog, "a", tables[:1], 0x20, at(9))
    assert world.turn() == [("/lake", [("a", "verified", "0/20", at(9))])]


def test_what_could_not_be_written_is_written_later(world):
    world.begin("a", 0x20)
    world.moments["a"].append(Moment(Lsn(0x20), at(0)))
    found_equal(world.catalog, "a", [("public", "t", "/t")], 0x18, at(5))
    world.kept.fails = True
    assert world.completeness._again() == 300
    world.kept.fails = False
    assert world.completeness._again() == 60
    assert [kind for _, kind, *_ in world.kept.appended[0][1]] == ["complete", "verified"]


def test_one_that_has_not_begun_is_left_out(world):
    world.moments["a"].append(Moment(Lsn(0x20), at(0)))
    assert world.turn() == []


# --- a server's moments -----------------------------------------------------------------------------------------------


slots = Publisher.slots


def streamed_from(self, names):
    """What the server says of slots while somebody streams from them."""
    told = slots(self, names)
    return replace(
        told, by_name={name: status and replace(status, active=True) for name, status in told.by_name.items()}
    )


def test_the_server_tells_a_time_and_its_lsn(publisher, monkeypatch):
    """What is committed after it has a later time; and what was before ends at or before the LSN.

    A server that the subscription does not stream from tells nothing: its LSNs may be those of another timeline.
    """
    slot = f"{publisher.name}_slot"
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    shop = Subscription(
        name="shop", connection=publisher.conninfo, publications=("p",), warehouse="/lake", slot_name=slot
    )
    ((before,),) = publisher.query("SELECT pg_current_wal_insert_lsn()::text")
    with closing(SlotWatch(lambda: [shop])) as watch, capture_logs():
        watch.look()
        assert watch.complete("shop", Lsn((1 << 63) - 1)) is None
        monkeypatch.setattr(Publisher, "slots", streamed_from)
        watch.look()
        assert watch.complete("shop", Lsn(1)) is None
        moment = watch.complete("shop", Lsn((1 << 63) - 1))
        assert moment is not None
        assert moment.lsn >= sent_up_to(Lsn.parse(before))
        ((now,),) = publisher.query("SELECT clock_timestamp()")
        assert dt.timedelta(seconds=1) <= now - moment.at < dt.timedelta(seconds=30)
        watch.look()
        later = watch.complete("shop", Lsn((1 << 63) - 1))
        assert later is not None
        assert later > moment


# --- read -------------------------------------------------------------------------------------------------------------


def record(number, kind, end_lsn, *names, last_s=None, start_lsn=0):
    tables = tuple(("public", name, f"/lake/{name}") for name in names)
    last_us = None if last_s is None else us(last_s)
    return CommitRecord(number, kind, None, Lsn(start_lsn), Lsn(end_lsn), last_us, last_us, 1, tables, 1e9 + number)


def rows_of(spark, warehouse, **options):
    rows = complete_until(spark, str(warehouse), **options).collect()
    return {
        row.name: (
            row.follows,
            row.lsn,
            *(None if time is None else time.astimezone(dt.UTC) for time in (row.complete_until,)),
            row.verified_lsn,
            *(None if time is None else time.astimezone(dt.UTC) for time in (row.verified_until,)),
        )
        for row in rows
    }


def test_up_to_where_each_table_is_complete(spark, tmp_path):
    table = CommitRows(spark, commits_table.path_in(str(tmp_path)), LocalTables())
    with pytest.raises(TargetError, match="no commits are recorded"):
        complete_until(spark, str(tmp_path))
    table.ensure()
    records = [
        record(1, "joined", 0x10, "a", "b", "gone"),
        record(2, "batch", 0x20, "a", last_s=20),
        record(3, "left", 0x20, "gone"),
        record(4, "batch", 0x30, "b", last_s=30),
    ]
    table._append([commits_table.row_of("sub", ORIGIN, each, {}) for each in records], ORIGIN, 4)
    assert rows_of(spark, tmp_path) == {
        "a": (True, "0/30", at(29), None, None),
        "b": (True, "0/30", at(29), None, None),
        "gone": (False, "0/20", at(19), None, None),
    }
    point = point_of(spark, str(tmp_path), "now")
    with closing(Catalog(tmp_path / "catalog.sqlite")) as catalog, closing(World(catalog)) as world:
        world.subscriptions = [world.subscriptions[0].model_copy(update={"name": "sub", "warehouse": str(tmp_path)})]
        catalog.register("sub", enabled=True)
        world.begin("sub", 0x40)
        world.moments["sub"] = deque([Moment(Lsn(0x38), at(90))])
        equal = (("public", "a", "/lake/a"), ("public", "gone", "/lake/gone"))
        found_equal(catalog, "sub", equal, 0x20, at(25))
        world.completeness._table = lambda _: table
        world.completeness.turn()
    expected = {
        "a": (True, "0/38", at(90), "0/20", at(25)),
        "b": (True, "0/38", at(90), None, None),
        "gone": (False, "0/20", at(19), "0/20", at(25)),
    }
    assert rows_of(spark, tmp_path) == expected
    assert rows_of(spark, tmp_path, subscription="sub") == expected
    assert rows_of(spark, tmp_path, subscription="another") == {}
    assert point_of(spark, str(tmp_path), "now") == point, "a snapshot is of a batch"
    # once it begins afresh, what was said of its earlier life does not count
    again = [
        record(1, "joined", 0x90, "a"),
    ]
    table._append(
        [
            commits_table.row_of("sub", f"{ORIGIN}2", each, {}) | {"recorded_at": dt.datetime.now(dt.UTC)}
            for each in again
        ],
        f"{ORIGIN}2",
        1,
    )
    assert rows_of(spark, tmp_path) == {"a": (True, None, None, None, None)}


def test_a_table_of_an_earlier_version_gets_the_column(spark, tmp_path):
    table = CommitRows(spark, commits_table.path_in(str(tmp_path)), LocalTables())
    table.ensure()
    made = commits_table.row_of("sub", ORIGIN, record(1, "batch", 0x20, "a", last_s=20), {})
    table._append([made], ORIGIN, 1)
    old = spark.read.format("delta").load(table.path).drop("complete_until").localCheckpoint()
    old.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(table.path)
    assert not table.ensure()
    table._append([made | {"number": 2}], ORIGIN, 2)
    rows = spark.read.format("delta").load(table.path).orderBy("number").collect()
    assert [row.complete_until is None for row in rows] == [True, False]


def test_what_was_said_is_kept_for_a_day(spark, tmp_path):
    table = CommitRows(spark, commits_table.path_in(str(tmp_path)), LocalTables())
    table.ensure()
    made = commits_table.row_of("sub", ORIGIN, record(1, "batch", 0x20, "a", last_s=20), {}) | {"kind": "complete"}
    now = dt.datetime.now(dt.UTC)
    table.append_now([made | {"recorded_at": now - dt.timedelta(hours=hours)} for hours in (1, 25)])
    table.append_now([made | {"origin": "another", "recorded_at": now - dt.timedelta(hours=25)}])
    table.prune(ORIGIN, 0.0)
    assert spark.read.format("delta").load(table.path).filter(f"origin = '{ORIGIN}'").count() == 1
    assert spark.read.format("delta").load(table.path).count() == 2
