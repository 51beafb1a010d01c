"""An undo leaves nothing of the batch and all of what others wrote, also when it is cut short."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.errors import PySparkException

from pgbridge.bridge.apply import applier as applier_module
from pgbridge.bridge.apply.applier import Applier
from pgbridge.bridge.batch.batch import Batch
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, RelRow
from pgbridge.bridge.effects.events import INSERT
from pgbridge.bridge.lake.commit import messages
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.table_position import table_position
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.bridge.spark import session
from pgbridge.protocol.codec.messages import LogicalMessage
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Transaction
from tests.bridge.apply.made_batches import Cut, applier, batch, context, failing, settling
from tests.bridge.apply.made_targets import changes, content, joined


def test_a_commit_whose_answer_was_lost_is_found_and_taken_back(spark, catalog, target):
    bridge = applier(spark, catalog)
    one = batch(changes(target, (INSERT, None, 1, "a")))
    with failing(PySparkException("no answer"), "table_committed"), pytest.raises(ApplyError, match="no answer"):
        bridge.apply(one)
    assert content(spark, target) == []
    bridge.apply(one)
    assert content(spark, target) == [(1, "a")]


@pytest.mark.parametrize("settle", ["undo", "keep"])
def test_a_commit_of_an_earlier_life_that_comes_late_is_left_out(tables, catalog, target, settle):
    """The batch was begun by a daemon that was killed, and its Spark outlives it."""
    mine = changes(target, (INSERT, None, 1, "a"))
    catalog.begin_batch("sub", BatchIntent(Lsn(0x10), Lsn(0x20), tables=(target.path,)))
    stamp = CommitStamp(catalog.subscription("sub").batch_app_id, Lsn(0x10), Lsn(0x20))
    getattr(settling(tables, catalog), settle)()
    assert catalog.batch("sub") is None
    late = session.fork(tables)
    with stamped(late, stamp):
        applier_module.apply_table(late, mine, conflicts=lambda _: None)  # type: ignore[attr-defined]  # perhaps that of tables in memory
    assert content(tables, target) == []
    applier(tables, catalog).apply(batch(mine))
    assert content(tables, target) == [(1, "a")]


def committed(spark, target, lsn, id_, app_id="pgbridge/None/sub/inc/0", *, start_lsn=0x10):
    """Commit a row as a batch up to there."""
    forked = session.fork(spark)
    with stamped(forked, CommitStamp(app_id, Lsn(start_lsn), Lsn(lsn))):
        applier_module.apply_table(forked, changes(target, (INSERT, None, id_, "a")), conflicts=lambda _: None)  # type: ignore[attr-defined]  # perhaps that of tables in memory


def operations(tables, target):
    return [commit["commitInfo"]["operation"] for commit in tables.log(target.path)]


def test_a_batch_that_was_cut_short_is_kept_by_the_tables_that_have_it(tables, catalog, target, strict):
    """Only the one that lacks it gets a commit, which is empty; the next batches have another application id."""
    for of in (target, strict):
        catalog.put_rel("sub", RelRow("public", of.name, "r", Lsn(0), of.path))
    assert catalog.subscription("sub").batch_app_id == "pgbridge/None/sub/inc/0"
    catalog.begin_batch("sub", BatchIntent(Lsn(0x10), Lsn(0x20), tables=(target.path, strict.path)))
    committed(tables, target, 0x20, 1)
    before = operations(tables, target), operations(tables, strict)
    settling(tables, catalog).keep()
    assert (catalog.batch("sub"), catalog.remote_lsn("sub")) == (None, 0x10)
    assert (content(tables, target), content(tables, strict)) == ([(1, "a")], [])
    assert (operations(tables, target), operations(tables, strict)) == (before[0], [*before[1], "WRITE"])
    row = catalog.subscription("sub")
    assert row.epoch == 1
    positions = [table_position(tables, row, "sub", joined(0, of)) for of in (target, strict)]
    assert [(position.lsn, position.epoch) for position in positions] == [(0x20, 0), (0, 1)]
    settling(tables, catalog).keep()
    assert catalog.subscription("sub").epoch == 1, "there is no batch"


def test_tables_of_other_batches_are_left_alone(tables, catalog, target, strict):
    for of in (target, strict):
        catalog.put_rel("sub", RelRow("public", of.name, "r", Lsn(0), of.path))
    before = operations(tables, strict)
    for settle in ("keep", "undo"):
        catalog.begin_batch("sub", BatchIntent(Lsn(0x10), Lsn(0x20), tables=(target.path,)))
        getattr(settling(tables, catalog), settle)()
    assert operations(tables, strict) == before


def test_a_batch_of_an_earlier_version_may_have_any_table(tables, catalog, target, strict):
    for of in (target, strict):
        catalog.put_rel("sub", RelRow("public", of.name, "r", Lsn(0), of.path))
    catalog.begin_batch("sub", BatchIntent(Lsn(0x10), Lsn(0x20)))
    committed(tables, strict, 0x20, 1)
    settling(tables, catalog).undo()
    assert content(tables, strict) == []


def test_a_table_that_is_gone_does_not_hold_up_the_others(spark, catalog, target, tmp_path):
    """Whether it is missed is told when the tables' positions are read."""
    gone = str(tmp_path / "gone")
    for settle in ("keep", "undo"):
        catalog.begin_batch("sub", BatchIntent(Lsn(0x10), Lsn(0x20), tables=(target.path, gone)))
        getattr(settling(spark, catalog), settle)()
        assert catalog.batch("sub") is None


def test_keeping_that_is_cut_short_is_done_again(tables, catalog, target):
    """Also once its flush has begun: then it is undone, for nobody knows whether that flush failed."""
    catalog.put_rel("sub", RelRow("public", "t", "r", Lsn(0), target.path))
    catalog.begin_batch("sub", BatchIntent(Lsn(0x10), Lsn(0x20), tables=(target.path,)))
    committed(tables, target, 0x20, 1)

    def cut(_name):
        raise Cut

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "drop_batch", cut)
        with pytest.raises(Cut):
            settling(tables, catalog).keep()
    assert content(tables, target) == [(1, "a")]
    intent = catalog.batch("sub")
    assert intent is not None
    assert intent.must_be_undone
    settling(tables, catalog).undo()
    assert (content(tables, target), catalog.batch("sub")) == ([], None)


def test_an_undo_leaves_what_earlier_attempts_have_left(tables, catalog, target):
    """A batch up to 0/20 was kept; the one up to 0/30, which this table's position does not reach, is taken back."""
    catalog.put_rel("sub", RelRow("public", "t", "s", Lsn(0), target.path, position=Lsn(0x20)))
    committed(tables, target, 0x20, 1)
    catalog.begin_batch("sub", BatchIntent(Lsn(0x10), Lsn(0x30), tables=(target.path,)))
    committed(tables, target, 0x30, 2)
    settling(tables, catalog).undo()
    assert content(tables, target) == [(1, "a")]


# --- what is beyond the origin when a transaction is skipped ----------------------------------------------------------


def test_what_tables_have_beyond_the_origin_is_brought_back(tables, catalog, target, strict):
    """The batch up to 0/20 was kept by one table; a transaction in it is skipped as a whole."""
    catalog.put_rel("sub", RelRow("public", "t", "s", Lsn(0), target.path, position=Lsn(0x20)))
    catalog.put_rel("sub", RelRow("public", "strict", "r", Lsn(0), strict.path))
    committed(tables, target, 0x10, 1, start_lsn=0)
    committed(tables, target, 0x20, 2)
    bridge = applier(tables, catalog)
    assert bridge.bring_back()
    assert content(tables, target) == [(1, "a")]
    assert (catalog.batch("sub"), catalog.remote_lsn("sub")) == (None, 0x10)
    assert {rel.since_lsn for rel in catalog.rels("sub")} == {0}, "read from its log at the next start"
    assert table_position(tables, catalog.subscription("sub"), "sub", joined(0x10, target)).lsn == 0x10
    commits = len(operations(tables, target))
    assert not bridge.bring_back()
    assert len(operations(tables, target)) == commits


def test_a_copy_beyond_the_origin_is_no_reason_to_begin_again(tables, catalog, target):
    """Only what batches have committed after it is brought back."""
    catalog.put_rel("sub", RelRow("public", "t", "s", Lsn(0x30), target.path, position=Lsn(0x30)))
    committed(tables, target, 0x30, 1, "pgbridge/None/sub/inc/copy", start_lsn=0x30)
    assert not applier(tables, catalog).bring_back()
    committed(tables, target, 0x40, 2, start_lsn=0x30)
    (rel,) = catalog.rels("sub")
    catalog.put_rel("sub", replace(rel, position=Lsn(0x40)))
    assert applier(tables, catalog).bring_back()
    assert content(tables, target) == [(1, "a")]
    assert table_position(tables, catalog.subscription("sub"), "sub", joined(0x30, target)).lsn == 0x30
    (rel,) = catalog.rels("sub")
    assert rel.since_lsn == 0x30


def test_bringing_back_that_is_cut_short_is_ended_at_the_next_start(tables, catalog, target):
    catalog.put_rel("sub", RelRow("public", "t", "s", Lsn(0), target.path, position=Lsn(0x20)))
    committed(tables, target, 0x20, 2)
    with failing(Cut(), "table_restored"), pytest.raises(Cut):
        applier(tables, catalog).bring_back()
    intent = catalog.batch("sub")
    assert intent == BatchIntent(Lsn(0x10), Lsn(0x20), undoing=True)
    assert intent.tables == (target.path,)
    settling(tables, catalog).undo()
    assert (content(tables, target), catalog.batch("sub")) == ([], None)


# --- an undo that is cut short, or meets others -----------------------------------------------------------------------


@pytest.mark.parametrize("point", ["undo_begun", "table_restored"])
@pytest.mark.parametrize(
    "error", [Cut(), pytest.param(PySparkException("again"), marks=pytest.mark.soak)], ids=["crash", "error"]
)
def test_an_undo_that_is_cut_short_is_ended_before_anything_else(tables, catalog, target, strict, point, error):
    """By a crash, or by an error of its own, which is told beside the one it was for."""
    catalog.put_rel("sub", RelRow("public", "t", "r", Lsn(0), target.path))
    catalog.put_rel("sub", RelRow("public", "strict", "r", Lsn(0), strict.path))
    bad = batch(changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 9, "a")))
    with failing(error, point), pytest.raises((Cut, ApplyError)) as caught:
        applier(tables, catalog).apply(bad)
    if isinstance(caught.value, ApplyError):
        assert "small" in str(caught.value)
        assert "not undone yet: again" in str(caught.value)
    assert catalog.batch("sub") == BatchIntent(Lsn(0x10), Lsn(0x20), undoing=True)
    settling(tables, catalog).undo()
    assert content(tables, target) == []
    assert (catalog.batch("sub"), catalog.subscription("sub").epoch) == (None, 1)
    settling(tables, catalog).undo()
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
    settling(spark, catalog).undo()
    applier(spark, catalog).apply(batch(changes(target, (INSERT, None, 1, "a"))))
    assert content(spark, target) == [(1, "a")]


def test_a_failed_batchs_messages_are_deleted_and_nobody_elses(spark, catalog, target, strict, tmp_path):
    """Their table serves two subscriptions, and both are at a batch of the same LSNs; the undo is cut short."""
    path = messages.path_in(str(tmp_path))
    messages.ensure(spark, path)
    catalog.register("other", enabled=True)
    catalog.create_origin("other", Lsn(0x10), "inc", [])
    other = Applier(context(session.fork(spark), catalog, "other"), messages_path=path)
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
    settling(spark, catalog, path).undo()
    assert written() == [row for row in everything if row[0] == "other" or row in both]
    ours.apply(with_messages(changes(target, (INSERT, None, 1, "a"))))
    assert written() == everything
    operations = {row.operation for row in spark.sql(f"DESCRIBE HISTORY delta.`{path}`").collect()}
    assert operations == {"CREATE TABLE", "WRITE", "DELETE"}


def test_messages_of_held_batches_come_again(spark, catalog, target, tmp_path):
    """There is no batch under way, but a table that is ahead: the server sends all from the origin on."""
    path = messages.path_in(str(tmp_path))
    messages.ensure(spark, path)
    catalog.put_rel("sub", RelRow("public", "t", "s", Lsn(0), target.path, position=Lsn(0x30)))

    def at(lsn):
        return Transaction(7, Lsn(lsn), events=[(0, LogicalMessage(False, Lsn(lsn), "p", b""))])

    bridge = applier(spark, catalog, messages_path=path)
    bridge.apply(replace(batch(), with_messages=[at(0x18)]))
    assert bridge.holds
    before = Batch(Lsn(0), Lsn(0x10), Lsn(0x0F), 6, 1, 1, [], with_messages=[at(0x10)])
    append = session.fork(spark)
    messages.append(append, "sub", before.messages, path)
    for _ in range(2):
        settling(spark, catalog, path).keep()
        assert [row.position for row in spark.read.format("delta").load(path).collect()] == [0x10]
    assert (catalog.batch("sub"), catalog.remote_lsn("sub")) == (None, 0x10)


@pytest.mark.parametrize("settle", ["keep", "undo"])
def test_messages_of_a_table_that_is_configured_no_more_are_deleted(
    spark, catalog, target, tmp_path, monkeypatch, settle
):
    """The batch was cut short, then `messages` or `warehouse` was changed. They come again; they have no position."""
    path = messages.path_in(str(tmp_path))
    messages.ensure(spark, path)
    catalog.put_rel("sub", RelRow("public", "t", "r", Lsn(0), target.path))
    mine = changes(target, (INSERT, None, 1, "a"))
    message = Transaction(7, Lsn(0x18), events=[(0, LogicalMessage(False, Lsn(0x18), "p", b""))])
    monkeypatch.setattr(catalog, "begin_flush", lambda _: None)  # the crash comes before it
    with failing(Cut(), "batch_committed"), pytest.raises(Cut):
        applier(spark, catalog, messages_path=path).apply(replace(batch(mine), with_messages=[message]))
    assert spark.read.format("delta").load(path).count() == 1
    for _ in range(2):
        getattr(settling(spark, catalog), settle)()
        assert catalog.batch("sub") is None
        assert spark.read.format("delta").load(path).isEmpty()
    assert content(spark, target) == ([(1, "a")] if settle == "keep" else [])
