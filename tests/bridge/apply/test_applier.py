"""Applying batches: the kind of commit, the order of what is recorded, and what is left after a failure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from bridge import faults
from bridge.apply.applier import Applier
from bridge.apply.batch.batch import Batch
from bridge.apply.delta import messages
from bridge.apply.delta.append import append_rows
from bridge.apply.delta.apply_table import apply_table
from bridge.apply.delta.schema import target_schema_of
from bridge.apply.delta.stamp import CommitStamp, stamped
from bridge.apply.effects.operations import INSERT, UPDATE
from bridge.apply.target.target import Target
from bridge.errors import ApplyError, OutcomeUnknown
from bridge.session import fork
from bridge.track import stats
from bridge.track.catalog import Catalog, catalog_path
from bridge.track.rows import BatchIntent, RelRow
from protocol.lsn import Lsn
from protocol.messages import LogicalMessage
from protocol.transactions import Transaction
from tests.bridge.apply.made_targets import changes, content, empty_target


@pytest.fixture
def target(spark, tmp_path):
    return empty_target(spark, tmp_path)


@pytest.fixture
def catalog(tmp_path):
    """A catalog with a subscription whose origin stands at 0/10."""
    catalog = Catalog(catalog_path(tmp_path / "state"))
    catalog.register("sub", enabled=True)
    catalog.create_origin("sub", Lsn(0x10), "inc", [])
    yield catalog
    catalog.close()


def applier(spark, catalog, **options):
    return Applier(fork(spark), catalog, subscription="sub", origin_name="pgbridge_sub", **options)


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


class Cut(BaseException):
    """Stands for a crash: nothing that handles errors may handle it."""


@contextmanager
def failing(error, *points):
    """Within, whoever reaches one of the points for the first time gets the error raised."""
    left = set(points)

    def act(reached):
        if reached in left:
            left.remove(reached)
            raise error

    faults.install(act)
    try:
        yield
    finally:
        faults.install(lambda _: None)
    assert not left


@pytest.mark.parametrize("point", ["batch_begun", "table_begun", "table_committed", "batch_committed"])
def test_interrupted_after_each_step_and_applied_again(spark, catalog, target, point):
    """Whatever had been done when it was cut short, doing it again leaves the same."""
    one = batch(changes(target, (INSERT, None, 1, "a")))
    with failing(Cut(), point), pytest.raises(Cut):
        applier(spark, catalog).apply(one)
    assert catalog.batch("sub") == BatchIntent(Lsn(0x10), Lsn(0x20))
    assert catalog.remote_lsn("sub") == 0x10
    applier(spark, catalog).apply(one)
    assert content(spark, target) == [(1, "a")]
    assert catalog.remote_lsn("sub") == 0x20


@pytest.fixture
def strict(spark, tmp_path):
    """Another table, which takes small ids only."""
    made = empty_target(spark, tmp_path, "strict")
    spark.sql(f"ALTER TABLE delta.`{made.path}` ADD CONSTRAINT small CHECK (id < 5)")
    return made


def test_parts_of_a_tables_changes_are_applied_in_turn_or_not_at_all(spark, catalog, strict):
    bridge = applier(spark, catalog)
    first = changes(strict, (INSERT, None, 1, "a"))
    with pytest.raises(ApplyError, match="small"):
        bridge.apply(batch(first, changes(strict, (INSERT, None, 9, "a"))))
    assert (content(spark, strict), catalog.batch("sub")) == ([], None)
    one = batch(first, changes(strict, (UPDATE, None, 1, "b")))
    with failing(Cut(), "batch_committed"), pytest.raises(Cut):
        bridge.apply(one)
    assert catalog.batch("sub") == BatchIntent(Lsn(0x10), Lsn(0x20), alters=True)
    bridge.apply(one)  # Delta has both
    assert content(spark, strict) == [(1, "b")]
    crowded = Batch(Lsn(0x20), Lsn(0x21), Lsn(0x20), 8, 1, 2, one.tables)
    with pytest.raises(ApplyError, match=r'identity of table "public\.strict" became another 1 times'):
        bridge.apply(crowded)


def test_a_failed_table_is_named_and_nothing_is_left_of_the_batch(spark, catalog, target, strict):
    """Another table's commit is taken back; the same batch without the fault is applied then, and is not left out."""
    bridge = applier(spark, catalog)
    bridge.apply(Batch(Lsn(0), Lsn(0x11), Lsn(0x10), 6, 1, 1, [changes(target, (INSERT, None, 0, "kept"))]))
    with pytest.raises(ApplyError) as caught:
        bridge.apply(batch(changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 9, "a"))))
    assert 'during message type "INSERT" for replication target relation "public.strict"' in str(caught.value)
    assert "in transaction 7, finished at 0/18" in str(caught.value)
    assert "small" in str(caught.value)
    assert "\n\tat " not in str(caught.value)
    assert content(spark, target) == [(0, "kept")]
    assert (catalog.batch("sub"), catalog.remote_lsn("sub"), catalog.subscription("sub").epoch) == (None, 0x11, 1)
    # the next time nothing is committed that would have to be taken back
    catalog.record_error("sub", "x", counter="apply", finish_lsn=Lsn(0x18), relation="public.strict")
    commits = len(spark.sql(f"DESCRIBE HISTORY delta.`{target.path}`").collect())
    with pytest.raises(ApplyError):
        bridge.apply(batch(changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 9, "a"))))
    assert len(spark.sql(f"DESCRIBE HISTORY delta.`{target.path}`").collect()) == commits
    bridge.apply(batch(changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 4, "a"))))
    assert content(spark, target) == [(0, "kept"), (1, "a")]
    assert content(spark, strict) == [(4, "a")]


def test_a_commit_whose_answer_was_lost_is_found_and_taken_back(spark, catalog, target):
    bridge = applier(spark, catalog)
    one = batch(changes(target, (INSERT, None, 1, "a")))
    with failing(PySparkException("no answer"), "table_committed"), pytest.raises(ApplyError, match="no answer"):
        bridge.apply(one)
    assert content(spark, target) == []
    bridge.apply(one)
    assert content(spark, target) == [(1, "a")]


def test_without_spark_the_outcome_is_unknown_and_the_intent_stands(spark, catalog, target):
    one = batch(changes(target, (INSERT, None, 1, "a")))
    with failing(Py4JNetworkError("gone"), "table_committed"), pytest.raises(OutcomeUnknown, match="gone"):
        applier(spark, catalog).apply(one)
    assert catalog.batch("sub") == BatchIntent(Lsn(0x10), Lsn(0x20))
    applier(spark, catalog).apply(one)
    assert content(spark, target) == [(1, "a")]


def test_a_commit_of_an_earlier_life_that_comes_after_the_undo_is_left_out(spark, catalog, target, strict):
    """The batch was begun by a daemon that was killed, and its Spark outlives it; this one fails before that table."""
    mine, bad = changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 9, "a"))
    catalog.begin_batch("sub", BatchIntent(Lsn(0x10), Lsn(0x20)))
    stamp = CommitStamp(catalog.subscription("sub").batch_app_id, Lsn(0x10), Lsn(0x20))
    catalog.record_error("sub", "x", counter="apply", finish_lsn=Lsn(0x18), relation="public.strict")
    with pytest.raises(ApplyError, match="small"):
        applier(spark, catalog).apply(batch(mine, bad))
    assert catalog.batch("sub") is None
    late = fork(spark)
    with stamped(late, stamp):
        apply_table(late, mine)
    assert content(spark, target) == []


def test_a_batch_is_not_taken_back_while_the_outcome_of_one_of_its_commits_is_unknown(
    spark, catalog, target, strict, monkeypatch
):
    """Another table fails for good; but what Spark has not answered for may be committed after the undo."""

    def unanswered(session, of, **options):
        if of.target is target:
            raise Py4JNetworkError("gone")
        apply_table(session, of, **options)

    monkeypatch.setattr("bridge.apply.applier.apply_table", unanswered)
    mine, bad = changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 9, "a"))
    with pytest.raises(OutcomeUnknown, match="gone"):
        applier(spark, catalog).apply(batch(bad, mine))
    assert catalog.batch("sub") == BatchIntent(Lsn(0x10), Lsn(0x20))


@pytest.mark.parametrize("point", ["undo_begun", "table_restored"])
@pytest.mark.parametrize(
    "error", [Cut(), pytest.param(PySparkException("again"), marks=pytest.mark.soak)], ids=["crash", "error"]
)
def test_an_undo_that_is_cut_short_is_ended_before_anything_else(spark, catalog, target, strict, point, error):
    """By a crash, or by an error of its own, which is told beside the one it was for."""
    catalog.put_rel("sub", RelRow("public", "t", "r", Lsn(0), target.path))
    catalog.put_rel("sub", RelRow("public", "strict", "r", Lsn(0), strict.path))
    bad = batch(changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 9, "a")))
    with failing(error, point), pytest.raises((Cut, ApplyError)) as caught:
        applier(spark, catalog).apply(bad)
    if isinstance(caught.value, ApplyError):
        assert "small" in str(caught.value)
        assert "not taken back yet: again" in str(caught.value)
    assert catalog.batch("sub") == BatchIntent(Lsn(0x10), Lsn(0x20), undoing=True)
    applier(spark, catalog).undo()
    assert content(spark, target) == []
    assert (catalog.batch("sub"), catalog.subscription("sub").epoch) == (None, 1)
    applier(spark, catalog).undo()
    assert catalog.subscription("sub").epoch == 1


def test_what_somebody_else_wrote_is_not_taken_back(spark, catalog, target, strict):
    """The undo says whose version is in the way, and waits until somebody has acted."""
    bad = batch(changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 9, "a")))

    def write(reached):
        if reached == "undo_begun":
            spark.sql(f"INSERT INTO delta.`{target.path}` VALUES (77, 'mine')").collect()

    faults.install(write)
    try:
        with pytest.raises(
            ApplyError, match=r"version 1 cannot be taken back, because version 2 \(WRITE\) was written"
        ):
            applier(spark, catalog).apply(bad)
    finally:
        faults.install(lambda _: None)
    assert content(spark, target) == [(1, "a"), (77, "mine")]
    intent = catalog.batch("sub")
    assert intent is not None
    assert intent.undoing
    catalog.put_rel("sub", RelRow("public", "t", "r", Lsn(0), target.path))
    spark.sql(f"RESTORE TABLE delta.`{target.path}` TO VERSION AS OF 0").collect()
    applier(spark, catalog).undo()
    applier(spark, catalog).apply(batch(changes(target, (INSERT, None, 1, "a"))))
    assert content(spark, target) == [(1, "a")]


def test_a_failed_batchs_messages_are_deleted_and_nobody_elses(spark, catalog, target, strict, tmp_path):
    """Their table serves two subscriptions, and both are at a batch of the same LSNs; the undo is cut short."""
    path = messages.path_in(str(tmp_path))
    messages.ensure(spark, path)
    catalog.register("other", enabled=True)
    catalog.create_origin("other", Lsn(0x10), "inc", [])
    other = Applier(fork(spark), catalog, subscription="other", origin_name="o", messages_path=path)
    ours = applier(spark, catalog, messages_path=path)

    def at(lsn, finish_lsn=None):
        message = LogicalMessage(finish_lsn is not None, Lsn(lsn), "p", b"%x" % lsn)
        return Transaction(7, Lsn(finish_lsn or lsn), events=[(0, message)])

    def written():
        rows = spark.read.format("delta").load(path).collect()
        return sorted((row.subscription, row.position) for row in rows)

    def with_messages(*tables):
        # at both ends of the range, and of a transaction that began before it
        return replace(batch(*tables), telling=[at(0x11), at(0x20), at(0x08, 0x10), at(0x12, 0x1F)])

    before = Batch(Lsn(0), Lsn(0x10), Lsn(0x0F), 6, 1, 1, [], telling=[at(0x10), at(0x09, 0x0F)])
    for one in (other, ours):
        one.apply(before)
    both = [(name, lsn) for name in ("other", "sub") for lsn in (9, 0x10)]
    everything = sorted(both + [(name, lsn) for name in ("other", "sub") for lsn in (8, 0x11, 0x12, 0x20)])

    def meanwhile(reached):
        if reached == "undo_begun":
            faults.install(cut)
            other.apply(with_messages())

    def cut(reached):
        if reached == "table_restored":
            raise Cut

    catalog.put_rel("sub", RelRow("public", "strict", "r", Lsn(0), strict.path))
    faults.install(meanwhile)
    try:
        with pytest.raises(Cut):
            ours.apply(with_messages(changes(strict, (INSERT, None, 9, "a"))))
    finally:
        faults.install(lambda _: None)
    applier(spark, catalog, messages_path=path).undo(fence=True)
    assert written() == [row for row in everything if row[0] == "other" or row in both]
    ours.apply(with_messages(changes(target, (INSERT, None, 1, "a"))))
    assert written() == everything
    operations = {row.operation for row in spark.sql(f"DESCRIBE HISTORY delta.`{path}`").collect()}
    assert operations == {"CREATE TABLE", "WRITE", "DELETE"}


def test_a_skipped_transaction_is_kept_and_passed(spark, catalog, target, tmp_path):
    """Nothing of it is in the target; crash before it is recorded, and it is kept once more."""
    catalog.set_skip_lsn("sub", Lsn(0x18))
    one = batch(changes(target, (INSERT, None, 1, "a")))
    with failing(Cut(), "skipped_written"), pytest.raises(Cut):
        applier(spark, catalog).skip(one, Lsn(0x18), tmp_path / "skipped")
    assert catalog.skip_lsn("sub") == 0x18
    path = applier(spark, catalog).skip(one, Lsn(0x18), tmp_path / "skipped")
    assert path == tmp_path / "skipped" / "0-18" / "sub"
    assert pq.read_table(path / "public.t.parquet")["new"].to_pylist() == [{"id": 1, "note": "a"}]
    assert content(spark, target) == []
    assert (catalog.remote_lsn("sub"), catalog.skip_lsn("sub")) == (0x20, None)


def test_a_conflict_is_told_in_postgresqls_words_or_overwritten_and_reported(spark, catalog, target):
    append_rows(spark.createDataFrame([(1, "local")], "id long, note string"), target.path)
    one = batch(changes(target, (INSERT, None, 1, "remote")))
    with pytest.raises(ApplyError) as caught:
        applier(spark, catalog).apply(one)
    assert str(caught.value).startswith(
        'conflict detected on relation "public.t": conflict=insert_exists\n'
        "DETAIL:  Key already exists in the target: key (id)=(1).\n"
        'CONTEXT:  processing remote data for replication origin "pgbridge_sub"'
    )
    assert 'during message type "INSERT" for' in str(caught.value)
    assert stats.conflicts(catalog, "sub") == {"insert_exists": 1}
    found: list[Any] = []

    def report(conflicts, finish_lsn):
        found.append((dict(conflicts.counts), finish_lsn))

    applier(spark, catalog, conflict="apply_remote", conflicts=report).apply(one)
    assert found == [({"insert_exists": 1}, 0x18)]
    assert stats.conflicts(catalog, "sub") == {"insert_exists": 2}
    assert content(spark, target) == [(1, "remote")]


@contextmanager
def read_only(path):
    """Nobody may write there within, not even root."""
    command = ["chattr", "-R", "{}i", path] if os.geteuid() == 0 else ["chmod", "-R", "u{}w", path]
    lock, unlock = ([part.format(sign) for part in command] for sign in ("+-" if os.geteuid() == 0 else "-+"))
    if subprocess.run(lock, check=False, capture_output=True).returncode != 0:
        pytest.skip("the file system has no immutable files")
    try:
        yield
    finally:
        subprocess.run(unlock, check=True)


@pytest.mark.parametrize("key", [(0,), ()], ids=["with a key", "without"])
def test_a_target_that_is_read_only_or_gone(spark, catalog, target, key):
    """The error has the place; nothing is made anew where the table was; with the table back, all goes on."""
    one = batch(changes(target, (INSERT, None, 1, "a"), key=key))
    with read_only(target.path), pytest.raises(ApplyError, match=re.escape(target.path)):
        applier(spark, catalog).apply(one)
    shutil.move(target.path, f"{target.path}.away")
    with pytest.raises(ApplyError, match=f"(?s){re.escape(target.path)}.*finished at 0/18"):
        applier(spark, catalog).apply(one)
    assert not Path(target.path).exists()
    assert catalog.remote_lsn("sub") == 0x10
    shutil.move(f"{target.path}.away", target.path)
    applier(spark, catalog).undo()
    applier(spark, catalog).apply(one)
    assert content(spark, target) == [(1, "a")]


def test_a_column_that_takes_no_null(spark, catalog, tmp_path):
    """The column is named."""
    path = str(tmp_path / "full")
    spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT, note STRING NOT NULL) USING delta").collect()
    full = Target("public", "full", path, target_schema_of(spark.read.format("delta").load(path).schema))
    with pytest.raises(ApplyError, match=r'(?s)note.*for replication target relation "public.full" in transaction 7'):
        applier(spark, catalog).apply(batch(changes(full, (INSERT, None, 1, None))))
