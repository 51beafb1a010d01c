"""Applying batches: the kind of commit, the order of what is recorded, and what is left after a failure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from bridge import faults
from bridge.apply import delta
from bridge.apply.batch import Batch
from bridge.apply.changes import INSERT, KEY_TUPLE, NO_OLD, TableChanges
from bridge.apply.target import Target, TargetColumn
from bridge.apply.worker import BatchApplier, summary
from bridge.errors import ApplyError
from bridge.session import fork
from bridge.track.catalog import BatchIntent, Catalog, catalog_path
from protocol.lsn import Lsn
from protocol.types import resolve

COLUMNS = (TargetColumn("id", resolve(20, -1)), TargetColumn("note", resolve(25, -1)))


@pytest.fixture
def target(spark, tmp_path):
    """An empty table of two columns."""
    path = str(tmp_path / "t")
    schema = spark.createDataFrame([], "id long, note string").schema
    delta.create(spark, path, schema)
    return Target("public", "t", path, schema)


def changes(target, *rows, key=(0,), truncated=False):
    """Changes of (op, old key, id, note)."""
    table = pa.table(
        {
            "seq": pa.array(range(len(rows)), pa.int64()),
            "op": pa.array([row[0] for row in rows], pa.int16()),
            "old": pa.array([NO_OLD if row[1] is None else KEY_TUPLE for row in rows], pa.int16()),
            "new_0": pa.array([row[2] for row in rows], pa.int64()),
            "new_1": pa.array([row[3] for row in rows], pa.string()),
            "old_0": pa.array([row[1] for row in rows], pa.int64()),
        }
    )
    return TableChanges(target, COLUMNS, key, table, truncated)


def content(spark, target):
    return sorted(tuple(row) for row in spark.read.format("delta").load(target.path).collect())


@pytest.fixture
def catalog(tmp_path):
    """A catalog with a subscription whose origin stands at 0/10."""
    catalog = Catalog(catalog_path(tmp_path / "state"))
    catalog.register("sub", enabled=True)
    catalog.create_origin("sub", Lsn(0x10), "inc", [])
    yield catalog
    catalog.close()


def applier(spark, catalog, **options):
    app_id = "pgbridge/1/sub/inc/0"
    return BatchApplier(
        fork(spark), catalog, subscription="sub", origin_name="pgbridge_sub", txn_app_id=app_id, **options
    )


def batch(*tables):
    return Batch(Lsn(0x10), Lsn(0x20), Lsn(0x18), 7, 1, 1, list(tables))


def test_apply_moves_the_origin_and_forgets_the_intent_and_the_error(spark, catalog, target):
    catalog.record_error("sub", "before", counter="apply")
    applier(spark, catalog).apply(batch(changes(target, (INSERT, None, 1, "a"))))
    assert catalog.remote_lsn("sub") == 0x20
    assert catalog.batch("sub") is None
    assert catalog.last_error("sub") is None


def test_a_batch_applied_again_changes_nothing(spark, catalog, target):
    for _ in range(2):
        applier(spark, catalog).apply(batch(changes(target, (INSERT, None, 1, "a"))))
    assert content(spark, target) == [(1, "a")]


class Cut(Exception):
    """Stands for a crash."""


@pytest.mark.parametrize("point", ["batch_begun", "table_committed", "batch_committed"])
def test_interrupted_after_each_step_and_applied_again(spark, catalog, target, point):
    """Whatever had been done when it was cut short, doing it again leaves the same."""

    def cut(reached):
        if reached == point:
            raise Cut

    one = batch(changes(target, (INSERT, None, 1, "a")))
    faults.install(cut)
    try:
        with pytest.raises(Cut):
            applier(spark, catalog).apply(one)
    finally:
        faults.install(lambda _: None)
    assert catalog.batch("sub") == BatchIntent(Lsn(0x10), Lsn(0x20))
    assert catalog.remote_lsn("sub") == 0x10
    applier(spark, catalog).apply(one)
    assert content(spark, target) == [(1, "a")]
    assert catalog.remote_lsn("sub") == 0x20


def test_a_failed_table_is_named_and_the_intent_stands(spark, catalog, target):
    spark.sql(f"ALTER TABLE delta.`{target.path}` ADD CONSTRAINT small CHECK (id < 5)")
    with pytest.raises(ApplyError) as caught:
        applier(spark, catalog).apply(batch(changes(target, (INSERT, None, 9, "a"))))
    assert 'for replication target relation "public.t" in transaction 7, finished at 0/18' in str(caught.value)
    assert "small" in str(caught.value)
    assert "\n\tat " not in str(caught.value)
    assert catalog.batch("sub") is not None
    assert catalog.remote_lsn("sub") == 0x10


def test_a_conflict_is_told_in_postgresqls_words_or_overwritten_and_reported(spark, catalog, target):
    delta.append(spark.createDataFrame([(1, "local")], target.schema), target.path)
    one = batch(changes(target, (INSERT, None, 1, "remote")))
    with pytest.raises(ApplyError) as caught:
        applier(spark, catalog).apply(one)
    assert str(caught.value).startswith(
        'conflict detected on relation "public.t": conflict=insert_exists\n'
        "DETAIL:  Key already exists in the target: key (id)=(1).\n"
        'CONTEXT:  processing remote data for replication origin "pgbridge_sub"'
    )
    found: list[Any] = []
    applier(spark, catalog, conflict="apply_remote", conflicts=found.append).apply(one)
    assert [dict(conflicts.counts) for conflicts in found] == [{"insert_exists": 1}]
    assert content(spark, target) == [(1, "remote")]


def test_summary_keeps_what_was_raised_in_a_python_worker():
    error = Exception(
        "[X] An exception was thrown:\nTraceback (most recent call last):\n  File x, line 1, in read\n"
        "bridge.errors.TargetError: column \"d\": value 'infinity' cannot be represented\nHINT:  do this\n"
    )
    assert summary(error) == "column \"d\": value 'infinity' cannot be represented\nHINT:  do this"


def test_summary_cuts_stack_traces_and_length():
    assert summary(Exception("[CODE] what\n\tat org.apache…\n\tat …")) == "[CODE] what"
    assert len(summary(Exception("x" * 5000))) < 700
