"""An undo leaves nothing of the batch and all of what others wrote, also when it is cut short."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.errors import PySparkException

from bridge import faults
from bridge.apply.applier import Applier
from bridge.apply.batch.batch import Batch
from bridge.apply.delta import messages
from bridge.apply.delta.apply_table import apply_table
from bridge.apply.delta.stamp import CommitStamp, stamped
from bridge.apply.effects.operations import INSERT
from bridge.errors import ApplyError
from bridge.session import fork
from bridge.track.catalog_rows import BatchIntent, RelRow
from protocol.lsn import Lsn
from protocol.messages import LogicalMessage
from protocol.transactions import Transaction
from tests.bridge.apply.made_batches import Cut, applier, batch, failing
from tests.bridge.apply.made_targets import changes, content


def test_a_commit_whose_answer_was_lost_is_found_and_taken_back(spark, catalog, target):
    bridge = applier(spark, catalog)
    one = batch(changes(target, (INSERT, None, 1, "a")))
    with failing(PySparkException("no answer"), "table_committed"), pytest.raises(ApplyError, match="no answer"):
        bridge.apply(one)
    assert content(spark, target) == []
    bridge.apply(one)
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
        assert "not undone yet: again" in str(caught.value)
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
            ApplyError, match=r"version 1 cannot be undone, because another writer committed version 2 \(WRITE\)"
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
        return replace(batch(*tables), with_messages=[at(0x11), at(0x20), at(0x08, 0x10), at(0x12, 0x1F)])

    before = Batch(Lsn(0), Lsn(0x10), Lsn(0x0F), 6, 1, 1, [], with_messages=[at(0x10), at(0x09, 0x0F)])
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


@pytest.mark.parametrize(
    "again",
    [pytest.param(False, id="at once", marks=pytest.mark.soak), pytest.param(True, id="after another attempt")],
)
def test_messages_of_a_table_that_is_configured_no_more_are_deleted(
    spark, catalog, target, strict, tmp_path, monkeypatch, again
):
    """The batch was cut short, then `messages` or `warehouse` was changed. A published table was dropped, too."""
    path = messages.path_in(str(tmp_path))
    messages.ensure(spark, path)
    catalog.put_rel("sub", RelRow("public", "t", "r", Lsn(0), target.path))
    catalog.put_rel("sub", RelRow("public", "strict", "r", Lsn(0), strict.path))
    mine, bad = changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 9, "a"))
    message = Transaction(7, Lsn(0x18), events=[(0, LogicalMessage(False, Lsn(0x18), "p", b""))])
    monkeypatch.setattr(catalog, "begin_flush", lambda _: None)  # the crash comes before it
    with failing(Cut(), "batch_committed"), pytest.raises(Cut):
        applier(spark, catalog, messages_path=path).apply(replace(batch(mine), with_messages=[message]))
    assert spark.read.format("delta").load(path).count() == 1
    later = applier(spark, catalog)
    if again:
        with pytest.raises(ApplyError, match="small"):
            later.apply(batch(bad))
    else:
        later.undo()
    assert catalog.batch("sub") is None
    assert spark.read.format("delta").load(path).isEmpty()
    assert content(spark, target) == []
