"""A subscription's tables are maintained while it streams, and never in the way of what it applies."""

from __future__ import annotations

import pytest

from pgbridge.bridge.apply import maintenance
from pgbridge.bridge.catalog import catalog as catalog_module, maintenance as track, refresh
from pgbridge.bridge.catalog.maintenance import OptimizeIntent
from pgbridge.bridge.lake.table import table_version
from tests.bridge.subscribed import SETUP, end, ids, running, wait_until
from tests.oracle.delta import differences


@pytest.fixture
def eager(monkeypatch):
    """Two files too many are a debt, whatever the lag."""
    for name, value in (("_EXCESS_FILES", 2), ("_FIRST_LOOK", 2), ("_OVERDUE", 1), ("_URGENT", 1)):
        monkeypatch.setattr(maintenance, name, value)


def files(bridge):
    return bridge.spark.sql(f"DESCRIBE DETAIL delta.`{bridge.path('t')}`").collect()[0].numFiles


@pytest.mark.soak  # 20 s; `test_maintenance` says when, `test_maintenance_spark` what
@pytest.mark.usefixtures("eager")
def test_files_stay_few_while_batches_come(spark, publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline()
    worker = running(bridge)
    name = bridge.subscription.name
    try:
        for number in range(8):
            publisher.execute(f"INSERT INTO t VALUES ({number}, 'a')")
            wait_until(lambda at=number: ids(bridge) == list(range(at + 1)), 30)
        wait_until(lambda: bridge.catalog.batch(name) is None and track.standing(bridge.catalog, name) is None, 10)
    finally:
        end(worker)
    assert worker.error is None
    assert "OPTIMIZE" in [commit["commitInfo"]["operation"] for commit in bridge.commits("t")]
    assert files(bridge) <= 5
    assert track.rows(bridge.catalog, name)[bridge.path("t")].error is None
    assert differences(spark, bridge.path("t"), publisher, "t") == []


def test_an_optimize_is_undone_before_its_table_is_copied_afresh(publisher, pipeline, monkeypatch, tmp_path):
    """The other way round, its undo would take the copy back."""
    publisher.execute(SETUP + "; INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    bridge = pipeline()
    bridge.catch_up()
    name, path = bridge.subscription.name, bridge.path("t")
    track.begin(bridge.catalog, name, OptimizeIntent(path, table_version(bridge.spark, path)))
    bridge.spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(catalog_module, "_BOOT_ID", tmp_path / "boot_id")
    refresh.ask(bridge.catalog, name, [("public", "t")], copy_data=True)
    publisher.execute("INSERT INTO t VALUES (3, 'c')")
    bridge.catch_up()
    assert ids(bridge) == [1, 2, 3]
    assert track.standing(bridge.catalog, name) is None
