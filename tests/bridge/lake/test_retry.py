"""A commit that a concurrent one made fail is committed all the same, once; no other error is retried.

A commit fails if the rows that it relies on are others by then, and only then.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from delta.exceptions import base
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from structlog.testing import capture_logs

from pgbridge.bridge.batch.batch import Batch
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent
from pgbridge.bridge.effects.events import INSERT, UPDATE
from pgbridge.bridge.lake import writes
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.retry import have_changed, retry_commit, unless_changed
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import TargetBusy
from pgbridge.bridge.spark.session import fork
from pgbridge.protocol.lsn import Lsn
from tests.bridge.apply.made_batches import applier, settling
from tests.bridge.apply.made_targets import changes, content, empty_target


def test_it_is_tried_again_a_limited_number_of_times(monkeypatch):
    monkeypatch.setattr("pgbridge.bridge.lake.retry._PAUSE_S", 0)
    errors: list[Exception] = [base.ConcurrentAppendException("[DELTA_CONCURRENT_APPEND] files\nmore")] * 9
    tried: list[int] = []

    def commit() -> str:
        tried.append(1)
        if errors:
            raise errors.pop()
        return "done"

    with capture_logs() as logs:
        assert retry_commit(commit, "/lake/t") == "done"
    assert [entry["attempt"] for entry in logs] == list(range(1, 10))
    assert {(entry["path"], entry["error"]) for entry in logs} == {("/lake/t", "[DELTA_CONCURRENT_APPEND] files")}
    errors += [base.ConcurrentAppendException("[DELTA_CONCURRENT_APPEND] files")] * 11
    tried.clear()
    with pytest.raises(TargetBusy, match=r"10 attempts to commit failed .*: \[DELTA_CONCURRENT_APPEND\] files"):
        retry_commit(commit, "/lake/t")
    assert len(tried) == 10
    tried.clear()
    errors[:] = [ValueError("other")]
    with pytest.raises(ValueError, match="other"):
        retry_commit(commit, "/lake/t")
    assert len(tried) == 1


# --- a batch beside others --------------------------------------------------------------------------------------------


@pytest.fixture
def catalog(tmp_path):
    """A catalog with a subscription whose origin stands at 0/10."""
    catalog = Catalog(catalog_path(tmp_path / "state"))
    catalog.register("sub", enabled=True)
    catalog.create_origin("sub", Lsn(0x10), "inc", [])
    yield catalog
    catalog.close()


class Merging:
    """Holds each MERGE of the bridge's between its read of the target and its commit, until it is let go."""

    def __init__(self, monkeypatch, folder):
        reached, go = folder / "reached", folder / "go"
        self.reached, self.go = reached, go

        def held(id_):  # without types: Spark would take them for those of another kind of function
            reached.touch()
            deadline = time.monotonic() + 120
            while not go.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            return id_

        merge_into = writes.merge_into
        holding = F.udf(held, "bigint")
        monkeypatch.setattr(
            writes,
            "merge_into",
            lambda source, *rest: merge_into(
                source.coalesce(1).withColumn("match_0", holding(F.col("match_0"))), *rest
            ),
        )

    def beside(self, merge, other):
        """Run `merge`, and `other` while it is held."""
        raised: list[Exception] = []

        def run():
            try:
                merge()
            except Exception as error:  # noqa: BLE001 - raised below
                raised.append(error)

        runner = threading.Thread(target=run)
        runner.start()
        try:
            deadline = time.monotonic() + 120
            while not self.reached.exists() and runner.is_alive() and time.monotonic() < deadline:
                time.sleep(0.02)
            assert self.reached.exists()
            other()
        finally:
            self.go.touch()
            runner.join(120)
            self.reached.unlink()
            self.go.unlink()
        assert raised == []


def test_a_merge_beside_others(spark, catalog, tmp_path, monkeypatch):
    """Between its read and its commit: an OPTIMIZE; other properties; the same batch, by a killed daemon's Spark.

    Each is in the table once, under its stamp, and nothing of it is an error.
    """
    target = empty_target(spark, tmp_path)
    bridge = applier(spark, catalog)

    def batch(number, *rows):
        start = 0x10 * number
        return Batch(Lsn(start), Lsn(start + 0x10), Lsn(start + 8), number, 1, 1, [changes(target, *rows)])

    for id_ in (1, 2):  # two files, so that there is something to optimize
        append_rows(spark.createDataFrame([(id_, "before")], "id long, note string"), target.path)
    other = fork(spark)
    merging = Merging(monkeypatch, tmp_path)
    third = batch(3, (UPDATE, None, 1, "third"))

    def same_batch():
        row = catalog.subscription("sub")
        stamp = CommitStamp(row.batch_app_id, third.start_lsn, third.end_lsn)
        with stamped(other, stamp):
            other.sql(f"UPDATE delta.`{target.path}` SET note = 'third' WHERE id = 1").collect()

    cases = (
        (batch(1, (UPDATE, None, 1, "first")), lambda: other.sql(f"OPTIMIZE delta.`{target.path}`").collect()),
        (
            batch(2, (UPDATE, None, 2, "second")),
            lambda: other.sql(f"ALTER TABLE delta.`{target.path}` SET TBLPROPERTIES ('a' = 'b')").collect(),
        ),
        (third, same_batch),
    )
    found = []
    for one, beside in cases:
        with capture_logs() as logs:
            merging.beside(lambda one=one: bridge.apply(one), beside)
        found += [entry["error"].partition("]")[0].lstrip("[").partition(".")[0] for entry in logs]
        assert catalog.remote_lsn("sub") == one.end_lsn
    assert found == ["DELTA_CONCURRENT_APPEND", "DELTA_METADATA_CHANGED", "DELTA_CONCURRENT_TRANSACTION"]
    assert content(spark, target) == [(1, "third"), (2, "second")]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{target.path}`").collect()
    assert [row.operation for row in history if '"origin"' in (row.userMetadata or "")] == ["UPDATE", "MERGE", "MERGE"]
    assert catalog.subscription("sub").apply_error_count == 0


def test_a_table_that_is_never_left_alone(spark, catalog, tmp_path, monkeypatch):
    """No transaction is at fault: none is named, nothing is taken back, and what is missing comes later."""
    busy, other = empty_target(spark, tmp_path, "busy"), empty_target(spark, tmp_path, "other")
    one = Batch(
        Lsn(0x10),
        Lsn(0x20),
        Lsn(0x18),
        7,
        1,
        1,
        [changes(busy, (INSERT, None, 1, "a"), key=()), changes(other, (INSERT, None, 1, "a"), key=())],
    )
    apply_table = "pgbridge.bridge.apply.applier.apply_table"
    undone: list[str] = []
    faults.install(lambda point: undone.append(point) if point == "undo_begun" else None)
    try:
        with monkeypatch.context() as patch:
            from pgbridge.bridge.lake.commit.apply_table import apply_table as real

            def refused(session, table, **arguments):
                if table.target.name == "busy":
                    raise base.ConcurrentAppendException("[DELTA_CONCURRENT_APPEND] no")
                real(session, table, **arguments)

            patch.setattr(apply_table, refused)
            patch.setattr("pgbridge.bridge.lake.retry._PAUSE_S", 0)
            with pytest.raises(TargetBusy):
                applier(spark, catalog).apply(one)
    finally:
        faults.install(lambda _: None)
    assert undone == []
    assert catalog.batch("sub") == BatchIntent(Lsn(0x10), Lsn(0x20))
    assert content(spark, other) == [(1, "a")]
    settling(spark, catalog).keep()
    applier(spark, catalog).apply(replace(one, tables=one.tables[:1]))  # the other table leaves out what it has
    assert content(spark, busy) == content(spark, other) == [(1, "a")]


LOOKED_UP = [(1, "a"), (1, "a"), (2, None)]


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (LOOKED_UP[::-1], True),
        (LOOKED_UP[1:], False),
        ([*LOOKED_UP, (2, None)], False),
        ([*LOOKED_UP[:2], (2, "b")], False),
        ([], False),
    ],
)
def test_equal_rows_count(spark, now, same):
    source = spark.createDataFrame([(7, [1])], "`a.b` int, rest array<int>")
    schema = "`k.x` int, v string"
    rows = unless_changed(source, spark.createDataFrame(LOOKED_UP, schema), spark.createDataFrame(now, schema))
    if same:
        assert list(map(tuple, rows.collect())) == [(7, [1])]
    else:
        with pytest.raises((PySparkException, Py4JError)) as error:
            rows.collect()
        assert have_changed(error.value)


def test_other_errors_are_told_apart():
    assert not have_changed(ValueError("pgbridge_changed"))
