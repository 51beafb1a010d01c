"""The demo's numbers are the server's, the catalog's and Delta's own."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from bridge.catalog.catalog import Catalog, catalog_path
from bridge.catalog.catalog_rows import BatchIntent, RelRow
from bridge.demo.folder import DemoFolder
from bridge.demo.watch import DeltaLog, SubscriptionView, TableView, Watch
from protocol.lsn import Lsn


def commit(folder, version: int, *actions: dict[str, object]) -> None:
    """Write a commit of a Delta table."""
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions), encoding="utf-8")


def add(path: str, rows: int, deleted: int | None = None) -> dict[str, object]:
    """An add action as Delta writes it: statistics are JSON in a string."""
    file: dict[str, object] = {"path": path, "stats": json.dumps({"numRecords": rows, "nullCount": {}})}
    if deleted is not None:
        file["deletionVector"] = {"storageType": "u", "cardinality": deleted}
    return {"add": file}


def test_no_table_yet(tmp_path):
    assert DeltaLog(tmp_path / "t").rows() is None


def test_rows_are_those_of_the_live_files(tmp_path):
    log = DeltaLog(tmp_path)
    commit(tmp_path, 0, {"protocol": {}}, {"metaData": {}}, {"commitInfo": {}})
    assert (log.rows(), log.version) == (0, 0)
    commit(tmp_path, 1, add("a", 10), add("b", 5))
    commit(tmp_path, 2, {"txn": {}}, add("c", 7), {"remove": {"path": "a"}})
    assert (log.rows(), log.version) == (12, 2)
    assert (log.rows(), log.version) == (12, 2)
    commit(tmp_path, 3, {"remove": {"path": "b"}}, {"remove": {"path": "c"}})
    assert (log.rows(), log.version) == (0, 3)


def test_deletion_vector_takes_rows_from_a_file_that_stays(tmp_path):
    """The file is removed and added again in one commit, in either order."""
    log = DeltaLog(tmp_path)
    commit(tmp_path, 0, add("a", 10))
    commit(tmp_path, 1, add("a", 10, deleted=4), {"remove": {"path": "a"}})
    assert log.rows() == 6


def test_rows_of_a_table_that_spark_writes(spark, tmp_path):
    """Delta's own log, after an append, a MERGE and a DELETE."""
    path = str(tmp_path / "t")
    log = DeltaLog(tmp_path / "t")
    spark.range(100).repartition(3).write.format("delta").save(path)
    assert (log.rows(), log.version) == (100, 0)
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING (SELECT id FROM range(90, 120)) s ON t.id = s.id"
        " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    assert (log.rows(), log.version) == (110, 1)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id < 5").collect()
    assert (log.rows(), log.version) == (105, 2)


@pytest.mark.parametrize(("states", "copied"), [("", False), ("r", True), ("sr", True), ("rf", False), ("rd", False)])
def test_copied_is_when_every_table_follows(states, copied):
    tables = tuple(TableView(f"t{i}", state, 0, 0, 0) for i, state in enumerate(states))
    assert SubscriptionView("s", "streaming", None, None, None, tables).copied is copied


def test_reached_includes_the_lsn():
    view = SubscriptionView("s", "streaming", Lsn(10), 0, None, ())
    assert (view.reached(Lsn(9)), view.reached(Lsn(10)), view.reached(Lsn(11))) == (True, True, False)
    assert not SubscriptionView("s", "starting", None, None, None, ()).reached(Lsn(0))


@pytest.fixture
def watched(publisher, tmp_path):
    """A look at two publications of one table, and the state that a daemon would write."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v bool); INSERT INTO t SELECT i, i % 2 = 0 FROM generate_series(1, 5) i;"
        "CREATE PUBLICATION shop_pub FOR TABLE t;"
        "CREATE PUBLICATION vip_pub FOR TABLE t (id) WHERE (v) WITH (publish = 'insert')"
    )
    place = DemoFolder(tmp_path)
    with place.taken():
        place.write_config(publisher.conninfo)
        with (
            closing(Watch(place.config_file, publisher.conninfo)) as watch,
            closing(Catalog(catalog_path(place.directory / "state"))) as catalog,
        ):
            yield place, watch, catalog


def test_before_the_daemon_has_seen_anything(watched):
    _, watch, _ = watched
    shop, vip = watch.look(running=True)
    assert shop == SubscriptionView("shop", "stopped", None, None, None, (TableView("public.t", "", 5, None, None),))
    assert vip.tables == (TableView("public.t", "", 2, None, None),)
    assert watch.batch("shop") is None


def test_what_the_daemon_wrote_is_seen(watched, publisher):
    place, watch, catalog = watched
    start = watch.flush_lsn()
    table = place.lake / "shop" / "public" / "t"
    commit(table, 0, add("a", 3))
    catalog.register("shop", enabled=True)
    catalog.create_origin("shop", start, "incarnation", [RelRow("public", "t", "s", start, str(table))])
    catalog.set_state("shop", "streaming")
    catalog.begin_batch("shop", BatchIntent(start, Lsn(start + 8)))
    catalog.record_error("shop", "it failed", counter="apply")
    publisher.execute("INSERT INTO t VALUES (6, true)")
    shop, vip = watch.look(running=True)
    assert shop.tables == (TableView("public.t", "s", 6, 3, 0),)
    assert (shop.state, shop.remote_lsn, shop.error) == ("streaming", start, "it failed")
    assert shop.lag_bytes is not None
    assert shop.lag_bytes > 0
    assert shop.copied
    assert not shop.reached(watch.flush_lsn())
    assert vip.tables == (TableView("public.t", "", 3, None, None),)
    assert watch.batch("shop") == BatchIntent(start, Lsn(start + 8))
    assert watch.look(running=False)[0].state == "stopped"
