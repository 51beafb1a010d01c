"""A table follows from where its own log says that it is; it is refused behind the catalog, and ahead of the server."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import structlog
from structlog.testing import capture_logs

from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import RelRow, sync_name
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.publication.shape import AS_PUBLISHED
from pgbridge.bridge.runtime.errors import TableAhead, TargetError
from pgbridge.bridge.spark import session
from pgbridge.bridge.sync.tablesync import TableSync
from pgbridge.bridge.track.position import ServerHistory
from pgbridge.protocol.lsn import Lsn
from tests.oracle.memory_tables import MemoryTables

SERVER = ServerHistory("7", 2, Lsn(0x900), left={1: Lsn(0x500)})
FAMILY = "pgbridge/7/shop/inc"


class World:
    """A subscription whose origin is at 0/30, with one table that was copied at 0/10 and committed to at 0/20, 0/30."""

    def __init__(self, spark, folder, name="shop", former=None):
        self.session, self.path, self.name = session.fork(spark), str(folder / "t"), name
        if isinstance(spark, MemoryTables):
            spark.put_foreign(self.path, {"id": pa.int32()})
        else:
            self.frame = self.session.createDataFrame([(1,)], "id int")
            create_table(self.session, self.path, self.frame.schema)
        self.catalog = Catalog(catalog_path(folder / "state"))
        for each in {"shop", name}:
            self.catalog.register(each, enabled=True)
        self.catalog.set_slot(name, slot_name="s", slot_state="creating", system_identifier="7")
        rel = RelRow("public", "t", "r", Lsn(0x10), self.path, 5, position=Lsn(0x30), timeline=1)
        self.catalog.create_origin(name, Lsn(0x30), "inc", [rel], 1)
        subscription = Subscription(name="shop", connection="", publications=("p",), warehouse=str(folder))
        subscription = subscription.model_copy(update={"name": name})
        self.sync = TableSync(Context(subscription, self.session, self.catalog, structlog.get_logger()))
        if former is not None:
            self.commit(former, life="former")
            return
        self.commit(0x10, "copy", copy_number=1)
        self.commit(0x20)
        self.commit(0x30)

    def commit(self, lsn, mark="0", *, timeline=1, life="inc", **others):
        stamp = CommitStamp(f"pgbridge/7/{self.name}/{life}/{mark}", Lsn(0), Lsn(lsn), timeline=timeline, **others)
        with stamped(self.session, stamp):
            if isinstance(self.session, MemoryTables):
                rows = self.session.arrow(self.path).to_pylist()
                self.session.put(self.path, self.session.schema(self.path), [*rows, {"id": 1}])
            else:
                append_rows(self.frame, self.path)

    def restore(self, version):
        self.session.sql(f"RESTORE TABLE delta.`{self.path}` TO VERSION AS OF {version}").collect()

    def put(self, **others):
        self.catalog.put_rel(self.name, replace(self.rel, **others))

    @property
    def rel(self):
        (rel,) = self.catalog.rels(self.name)
        return rel

    def follow(self, server=SERVER):
        publisher: Any = None
        return self.sync.follow({}, publisher, server)

    @property
    def epoch(self):
        row = self.catalog.subscription(self.name)
        assert row is not None
        return row.epoch


@pytest.fixture
def world(request, tmp_path):
    """Its table is Delta's for a test that has `spark`."""
    made = World(request.getfixturevalue("spark" if "spark" in request.fixturenames else "tables"), tmp_path)
    with closing(made.catalog):
        yield made


def test_a_table_that_is_where_the_catalog_knows_it(world):
    before = replace(world.rel, shape=AS_PUBLISHED.description)
    (subscribed,) = world.follow().values()
    assert (subscribed.lsn, subscribed.relid, world.rel) == (0x30, 5, before)


def test_what_an_earlier_versions_catalog_does_not_know_is_read(world):
    """The origin's LSN was all that it had."""
    world.put(position=Lsn(0), timeline=None)
    world.follow()
    assert (world.rel.position, world.rel.timeline, world.rel.state) == (0x30, 1, "r")


def test_a_table_that_joined_later_keeps_its_timeline(world):
    """It was handed over where no commit tells: what its log has is of before, and of the timeline of before."""
    server = ServerHistory("7", 2, Lsn(0x900), left={1: Lsn(0x38)})
    world.put(lsn=Lsn(0x40), position=Lsn(0), timeline=None)
    world.follow(server)
    assert (world.rel.lsn, world.rel.position, world.rel.timeline) == (0x40, 0x30, None)


@pytest.mark.parametrize("lsn", [0x20, 0x30, 0x40])
def test_what_a_former_life_has_committed_is_no_position(tables, tmp_path, lsn):
    """The table was put back to before this life's copy; the server has written as much again."""
    world = World(tables, tmp_path, former=lsn)
    with closing(world.catalog), pytest.raises(TargetError, match=r"of a former life|its log ends at 0/20") as caught:
        world.follow()
    assert "pgbridge refresh shop --resync public.t" in (caught.value.hint or "")


@pytest.mark.parametrize("state", ["r", "s", "f"])
def test_a_table_keeps_what_it_has_beyond_the_origin(world, state):
    """It has the LSN that the transactions are left out before; it is not ready until the origin has passed it."""
    world.put(state=state)
    world.commit(0x40, timeline=2)
    with capture_logs() as logs:
        (subscribed,) = world.follow().values()
    assert subscribed.lsn == 0x40
    assert (world.rel.state, world.rel.lsn, world.rel.position, world.rel.timeline) == ("s", 0x10, 0x40, 2)
    assert ["beyond the origin" in log["event"] for log in logs] == [True]
    world.catalog.finish_batch(world.name, Lsn(0x40))
    assert world.rel.state == "r"


@pytest.mark.parametrize(
    ("lsn", "timeline", "words"),
    [
        (0x501, 1, "left timeline 1 at 0/500"),
        (0x901, 2, "it has WAL up to 0/900"),
        (0x40, 3, "it is on timeline 2"),
    ],
)
def test_a_table_with_more_than_the_server_is_copied_afresh(world, lsn, timeline, words):
    """Beside the others, at the next try: the error ends this one before anything is streamed."""
    world.commit(lsn, timeline=timeline)
    with pytest.raises(TableAhead, match="has changes up to .*, which the publisher does not have") as caught:
        world.follow()
    assert words in str(caught.value)
    assert "copied afresh" in caught.value.hint
    assert world.catalog.rels(world.name) == []
    (rel,) = world.catalog.rels(sync_name(world.name))
    assert (rel.state, rel.since_lsn, rel.timeline) == ("d", 0, None)
    assert world.sync.needs_copy(rel)
    assert world.follow() == {}


@pytest.mark.parametrize(("to", "has"), [(2, "its log ends at 0/20"), (1, "its log ends at 0/10")])
def test_a_table_that_was_restored_by_hand_is_behind(world, to, has):
    """Both positions are told; what the hint says helps."""
    world.restore(to)
    with pytest.raises(TargetError, match="is behind: changes up to 0/30 were durable in it") as caught:
        world.follow()
    assert has in str(caught.value)
    assert f"RESTORE TABLE delta.`{world.path}` TO VERSION AS OF 3; or" in caught.value.hint
    assert "pgbridge refresh shop --resync public.t" in caught.value.hint
    world.restore(3)
    (subscribed,) = world.follow().values()
    assert subscribed.lsn == 0x30


def test_a_table_that_was_restored_to_before_its_copy_is_behind(world):
    world.restore(0)
    with pytest.raises(TargetError, match="its log has no commit of the subscription"):
        world.follow()


def test_a_table_that_was_put_back_from_a_backup_is_behind(spark, world, tmp_path):
    """Its log does not have the version to restore, so the hint does not name one."""
    backup = tmp_path / "backup"
    shutil.copytree(world.path, backup)
    world.commit(0x40)
    world.catalog.finish_batch(world.name, Lsn(0x40))
    world.put(position=Lsn(0x40))
    shutil.rmtree(world.path)
    shutil.copytree(backup, world.path)
    with pytest.raises(TargetError, match="its log ends at 0/30") as caught:
        world.follow()
    assert "RESTORE" not in caught.value.hint
    assert world.rel.position == 0x40


def test_a_later_epoch_in_a_tables_log_is_gone_on_with(world):
    """The catalog was put back from a backup: with an epoch that was given up, Delta would leave commits out."""
    world.commit(0x30, "4", fences=True)
    world.follow()
    assert world.epoch == 5
    world.commit(0x40, "7")
    world.follow()
    assert world.epoch == 7
    assert world.rel.position == 0x40


def test_a_restore_to_a_time_is_refused(spark, world):
    history = world.session.sql(f"DESCRIBE HISTORY delta.`{world.path}`").collect()
    world.session.sql(f"RESTORE TABLE delta.`{world.path}` TO TIMESTAMP AS OF '{history[1].timestamp}'").collect()
    with pytest.raises(TargetError, match="version 4 is a RESTORE to a time"):
        world.follow()
    world.restore(3)
    assert len(world.follow()) == 1


def test_a_table_of_a_tablesync_worker(tables, tmp_path):
    """It names the subscription in its hint; handed over, the subscription reads the same position."""
    name = sync_name("shop")
    world = World(tables, tmp_path, name)
    with closing(world.catalog):
        (subscribed,) = world.follow().values()
        assert subscribed.lsn == 0x30
        world.restore(2)
        with pytest.raises(TargetError) as caught:
            world.follow()
        assert "pgbridge refresh shop --resync public.t" in str(caught.value.hint)
