"""Maintenance keeps the rows, whatever happens meanwhile: a crash, a power cut, a stop, another writer, a reader."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pgbridge.bridge.apply import maintenance as module
from pgbridge.bridge.apply.maintenance import DeltaTables, Maintenance, Policy, is_optimized
from pgbridge.bridge.catalog import catalog as catalog_module, maintenance as track
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.catalog.maintenance import OptimizeIntent
from pgbridge.bridge.effects.events import UPDATE
from pgbridge.bridge.lake.log.commit_info import Commit
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.runtime import faults, log
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.spark.session import fork
from pgbridge.protocol.lsn import Lsn
from tests.bridge.apply.made_batches import Cut, applier, batch, failing
from tests.bridge.apply.made_targets import changes, content, copied
from tests.bridge.lake.lost_entries import lose_entries

INTENT = OptimizeIntent("/lake/t1", 7)
FILES = 8
ROWS = [(number, "old") for number in range(FILES)]


@pytest.mark.parametrize(
    ("later", "optimized"),
    [
        ([Commit(8, "OPTIMIZE")], True),
        ([Commit(9, "VACUUM END"), Commit(8, "OPTIMIZE")], True),
        ([Commit(9, "OPTIMIZE"), Commit(8, "OPTIMIZE")], True),
        # it is undone already, and so are rows of others, or they came later
        ([Commit(9, "RESTORE", restored=7), Commit(8, "OPTIMIZE")], False),
        ([Commit(10, "WRITE", given_up=True), Commit(9, "RESTORE", restored=7), Commit(8, "OPTIMIZE")], False),
        ([Commit(10, "RESTORE", restored=7), Commit(9, "WRITE"), Commit(8, "OPTIMIZE")], False),
        ([Commit(10, "WRITE"), Commit(9, "RESTORE", restored=7), Commit(8, "OPTIMIZE")], False),
        ([Commit(9, "RESTORE", restored=6), Commit(8, "OPTIMIZE")], False),
    ],
)
def test_it_is_found_by_the_history(later, optimized):
    assert is_optimized(later, INTENT) is optimized


def test_rows_of_others_are_not_lost():
    with pytest.raises(TargetError, match=r"version 9 \(WRITE\) since"):
        is_optimized([Commit(9, "WRITE"), Commit(8, "OPTIMIZE")], INTENT)


@pytest.fixture
def table(spark, catalog, target, monkeypatch):
    """A table of `FILES` files with a row each: too many. Of 40 files each test would take three times as long."""
    monkeypatch.setattr(module, "_EXCESS_FILES", FILES - 2)

    def make(path):
        shutil.copytree(target.path, path)
        append_rows(spark.range(0, FILES, 1, FILES).selectExpr("id", "'old' AS note"), path)
        assert spark.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()[0].numFiles == FILES

    path = f"{target.path} of files"
    copied(spark, path, "files", make)
    catalog.put_rel("sub", RelRow("public", "t", "r", Lsn(0), path))
    return replace(target, path=path)


@pytest.fixture
def made(spark, catalog):
    """Makes what is tested; each stands for a process of its own."""

    def make(retention_h=0.0, *, stopping=lambda: False):
        tables = DeltaTables(fork(spark), LocalTables())
        return Maintenance(catalog, "sub", tables, Policy("created", retention_h), log.get("sub"), stopping, time.time)

    return make


def due(maintenance, target):
    maintenance.committed([target.path] * 8)
    maintenance.run_one(None)


def files(spark, target):
    return spark.sql(f"DESCRIBE DETAIL delta.`{target.path}`").collect()[0].numFiles


def last_operation(spark, target):
    return spark.sql(f"DESCRIBE HISTORY delta.`{target.path}` LIMIT 1").collect()[0].operation


def reboot(monkeypatch, tmp_path):
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(catalog_module, "_BOOT_ID", tmp_path / "boot_id")


def test_small_files_become_one(spark, catalog, table, made):
    due(made(), table)
    assert (files(spark, table), content(spark, table)) == (1, ROWS)
    assert track.rows(catalog, "sub")[table.path].files == 1
    applier(spark, catalog).apply(batch(changes(table, (UPDATE, None, 1, "new"))))
    assert content(spark, table)[1] == (1, "new")


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(one, marks=[] if one == "optimize_flushed" else pytest.mark.soak)
        for one in faults.MAINTENANCE_POINTS
    ],
)
@pytest.mark.parametrize(
    "rebooted",
    [pytest.param(False, id="killed", marks=pytest.mark.soak), pytest.param(True, id="power cut")],  # loses more
)
def test_a_process_that_ends_meanwhile(spark, catalog, table, made, monkeypatch, tmp_path, point, rebooted):
    with failing(Cut(), point), pytest.raises(Cut):
        due(made(), table)
    if rebooted:
        reboot(monkeypatch, tmp_path)
    made().recover()
    assert track.standing(catalog, "sub") is None
    undone = rebooted or point == "optimize_flushed"  # a flush that was begun, and is not known to have succeeded
    assert files(spark, table) == (FILES if undone or point == "optimize_begun" else 1)
    assert content(spark, table) == ROWS
    applier(spark, catalog).apply(batch(changes(table, (UPDATE, None, 1, "new"))))
    assert content(spark, table)[1] == (1, "new")


@pytest.mark.parametrize(
    "point", [*faults.MAINTENANCE_UNDO_POINTS, pytest.param("optimize_flushed", marks=pytest.mark.soak)]
)
def test_an_undo_that_is_cut_short_is_made_again(spark, catalog, table, made, monkeypatch, tmp_path, point):
    with failing(Cut(), "optimized"), pytest.raises(Cut):
        due(made(), table)
    reboot(monkeypatch, tmp_path)
    with failing(Cut(), point), pytest.raises(Cut):
        made().recover()
    assert track.standing(catalog, "sub") is not None
    made().recover()
    assert track.standing(catalog, "sub") is None
    assert (files(spark, table), content(spark, table)) == (FILES, ROWS)
    lose_entries(spark, table.path, table_version(spark, table.path) - 2)
    assert (files(spark, table), content(spark, table)) == (FILES, ROWS), "whatever becomes of the OPTIMIZE's entry"


def test_a_power_cut_that_loses_what_an_optimize_wrote(spark, catalog, table, made, monkeypatch, tmp_path):
    """The log has it, and its file is empty."""
    before = set(Path(table.path).glob("*.parquet"))
    with failing(Cut(), "optimized"), pytest.raises(Cut):
        due(made(), table)
    (written,) = set(Path(table.path).glob("*.parquet")) - before
    written.write_bytes(b"")
    written.with_name(f".{written.name}.crc").unlink()
    reboot(monkeypatch, tmp_path)
    made().recover()
    assert track.standing(catalog, "sub") is None
    assert content(spark, table) == ROWS
    due(made(), table)
    assert (files(spark, table), content(spark, table)) == (1, ROWS)


def test_rows_that_another_writer_added_since_are_not_lost(spark, table, made, monkeypatch, tmp_path):
    with failing(Cut(), "optimized"), pytest.raises(Cut):
        due(made(), table)
    spark.sql(f"INSERT INTO delta.`{table.path}` VALUES (99, 'theirs')").collect()
    reboot(monkeypatch, tmp_path)
    with pytest.raises(TargetError, match="WRITE") as caught:
        made().recover()
    spark.sql(caught.value.hint.partition("then run: ")[2].partition(";")[0]).collect()
    made().recover()
    assert content(spark, table) == ROWS


def test_a_table_that_is_gone_since_holds_up_nothing(catalog, table, made, monkeypatch, tmp_path):
    """Somebody has removed it to have it copied afresh."""
    with failing(Cut(), "optimized"), pytest.raises(Cut):
        due(made(), table)
    reboot(monkeypatch, tmp_path)
    shutil.rmtree(table.path)
    made().recover()
    assert track.standing(catalog, "sub") is None


def test_a_stop_does_not_wait_for_its_end(spark, catalog, table, made):
    """What it has done by then is made durable by the next start."""
    kept = made(stopping=lambda: True)
    begun = threading.Event()

    def act(point):
        if point == "optimize_begun":
            begun.set()

    faults.install(act)
    try:
        thread = threading.Thread(target=due, args=(kept, table))
        thread.start()
        assert begun.wait(60)
        while thread.is_alive():  # as the daemon does
            kept.interrupt()
            thread.join(0.001)
    finally:
        faults.install(lambda _: None)
    assert track.standing(catalog, "sub") == OptimizeIntent(table.path, table_version(spark, table.path))
    assert files(spark, table) == FILES
    made().recover()
    assert (track.standing(catalog, "sub"), content(spark, table)) == (None, ROWS)


def test_whoever_reads_meanwhile_reads_on(spark, table, made):
    reader = spark.read.format("delta").load(table.path).where("id >= 0")
    assert reader.count() == FILES  # planned by now
    due(made(), table)
    assert sorted(map(tuple, reader.collect())) == ROWS


def test_vacuum_deletes_what_is_older_than_the_retention(spark, table, made):
    """The week of the configuration; or the table's own retention, which goes first."""

    def parquet():
        return len(list(Path(table.path).glob("*.parquet")))

    def later(days):
        kept = made(168)
        kept.now_s = lambda: time.time() + days * 86_401
        return kept

    due(made(), table)
    due(later(1), table)
    assert (parquet(), last_operation(spark, table)) == (FILES + 1, "VACUUM END")
    retention = "'delta.deletedFileRetentionDuration' = 'interval 0 hours'"
    spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ({retention})").collect()
    due(later(1), table)
    assert parquet() == FILES + 1
    due(later(2), table)
    assert (parquet(), content(spark, table)) == (1, ROWS)
