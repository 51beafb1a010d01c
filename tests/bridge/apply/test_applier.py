"""Applying batches: the kind of commit, the order of what is recorded, and what is left after a failure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from structlog.testing import capture_logs

from pgbridge.bridge.apply import applier as module
from pgbridge.bridge.batch.batch import Batch
from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes, Subscribed
from pgbridge.bridge.catalog import commits, notes
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, RelRow
from pgbridge.bridge.catalog.held import ahead_of_origin, note_timeline
from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.schema import target_schema_of
from pgbridge.bridge.lake.table_position import table_position
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.runtime.errors import ApplyError, OutcomeUnknown, StateError
from pgbridge.bridge.skipped.kept_transaction import read
from pgbridge.bridge.spark.session import fork
from pgbridge.bridge.targets.target import Target
from pgbridge.bridge.track.position import ServerHistory
from pgbridge.protocol.lsn import INVALID, Lsn
from tests.bridge.apply.made_batches import Cut, applier, batch, failing, settling
from tests.bridge.apply.made_targets import changes, content, joined
from tests.bridge.batch.streamed import transaction
from tests.bridge.skipped.kept import message, relation, types


def test_apply_moves_the_origin_and_forgets_the_intent_and_the_error(tables, catalog, target):
    catalog.record_error("sub", "before", counter="apply")
    applier(tables, catalog).apply(batch(changes(target, (INSERT, None, 1, "a"))))
    assert catalog.remote_lsn("sub") == 0x20
    assert catalog.batch("sub") is None
    assert catalog.last_error("sub") is None


@pytest.mark.parametrize(("point", "rows"), [("batch_begun", []), ("table_begun", []), ("table_committed", [(1, "a")])])
def test_interrupted_after_each_step_and_kept(tables, catalog, target, point, rows):
    """The intent has the tables, and keeps other batches off. Settled, the table has what it had; the rest comes."""
    one = batch(changes(target, (INSERT, None, 1, "a")))
    with failing(Cut(), point), pytest.raises(Cut):
        applier(tables, catalog).apply(one)
    intent = catalog.batch("sub")
    assert intent == BatchIntent(Lsn(0x10), Lsn(0x20))
    assert intent.tables == (target.path,)
    assert not intent.must_be_undone
    with pytest.raises(StateError, match="a batch from 0/10 to 0/20 was begun and not finished"):
        applier(tables, catalog).apply(one)
    settling(tables, catalog).keep()
    assert (catalog.batch("sub"), catalog.remote_lsn("sub")) == (None, 0x10)
    assert catalog.subscription("sub").epoch == 1
    assert content(tables, target) == rows
    again = one if not rows else batch()  # the table leaves out what it has
    applier(tables, catalog).apply(again)
    assert content(tables, target) == [(1, "a")]
    assert catalog.remote_lsn("sub") == 0x20


def test_the_tables_that_were_committed_to_have_the_batchs_end_as_their_position(tables, catalog, target, strict):
    """In their logs, with its timeline, and in the catalog."""
    for of in (target, strict):
        catalog.put_rel("sub", RelRow("public", of.name, "r", Lsn(0), of.path))
    note_timeline(catalog, "sub", ServerHistory("7", 3, Lsn(0x100)))
    applier(tables, catalog).apply(batch(changes(target, (INSERT, None, 1, "a")), changes(strict)))
    assert {rel.name: (rel.position, rel.timeline) for rel in catalog.rels("sub")} == {
        "t": (0x20, 3),
        "strict": (0, None),
    }
    row = catalog.subscription("sub")
    position = table_position(tables, row, "sub", joined(0x20, target))
    assert (position.lsn, position.timeline, position.version, position.is_whole) == (0x20, 3, 1, True)
    assert table_position(tables, row, "sub", joined(0, strict)).lsn == 0


@pytest.mark.parametrize(
    ("rows", "key", "truncated"),
    [
        ([(UPDATE, None, 9, "missing")], (0,), False),
        ([(INSERT, None, 1, "a"), (DELETE, 1, None, None)], (0,), True),
        ([], (), True),
        pytest.param([(DELETE, 9, None, None)], (0,), False, marks=pytest.mark.soak),
        pytest.param([(INSERT, None, 1, "a"), (DELETE, 1, None, None)], (0,), False, marks=pytest.mark.soak),
        pytest.param([], (0,), True, marks=pytest.mark.soak),
    ],
)
def test_changes_that_come_to_nothing_make_a_commit(spark, catalog, target, key, rows, truncated):
    """Else the table's log would not say that it has them."""
    catalog.put_rel("sub", RelRow("public", "t", "r", Lsn(0), target.path))
    applier(spark, catalog).apply(batch(changes(target, *rows, key=key, truncated=truncated)))
    assert content(spark, target) == []
    (rel,) = catalog.rels("sub")
    row = catalog.subscription("sub")
    assert rel.position == table_position(spark, row, "sub", joined(0, target)).lsn == 0x20


@pytest.fixture
def behind(tables, catalog, target, strict):
    """The applier of a subscription whose table `t` has what comes before 0/30, from an attempt that was cut short."""
    catalog.put_rel("sub", RelRow("public", "t", "s", Lsn(0), target.path, position=Lsn(0x30)))
    catalog.put_rel("sub", RelRow("public", "strict", "r", Lsn(0), strict.path))
    return applier(tables, catalog)


def after(lsn, *tables):
    """A batch of the 16 bytes after an LSN."""
    return Batch(Lsn(lsn), Lsn(lsn + 0x10), Lsn(lsn + 8), 7, 1, 1, list(tables))


def records(catalog):
    made = [record for record in commits.pending(catalog, "sub") if record.kind == "batch"]
    return [(record.start_lsn, record.end_lsn, record.transactions, dict.fromkeys(record.tables)) for record in made]


def test_batches_are_held_until_a_table_that_is_ahead_is_reached(tables, catalog, strict, behind):
    """They are durable in their tables; the origin passes them all at once, and they are recorded as one."""
    behind.apply(after(0x10, changes(strict, (INSERT, None, 1, "a"))))
    assert behind.holds
    assert (catalog.batch("sub"), catalog.remote_lsn("sub"), records(catalog)) == (None, 0x10, [])
    assert {rel.name: rel.position for rel in catalog.rels("sub")} == {"t": 0x30, "strict": 0x20}
    assert {rel.name for rel in ahead_of_origin(catalog, "sub")} == {"t", "strict"}
    behind.apply(after(0x20, changes(strict, (INSERT, None, 2, "a"))))
    assert not behind.holds
    assert (catalog.batch("sub"), catalog.remote_lsn("sub")) == (None, 0x30)
    assert {rel.name: (rel.position, rel.state) for rel in catalog.rels("sub")} == {
        "t": (0x30, "r"),
        "strict": (0x30, "r"),
    }
    ((start_lsn, end_lsn, transactions, recorded),) = records(catalog)
    assert (start_lsn, end_lsn, transactions) == (0x10, 0x30, 2)
    assert {name for _, name, _ in recorded} == {"t", "strict"}
    assert content(tables, strict) == [(1, "a"), (2, "a")]
    behind.apply(after(0x30, changes(strict, (INSERT, None, 3, "a"))))
    assert [name for _, _, _, recorded in records(catalog)[1:] for _, name, _ in recorded] == ["strict"]


def test_held_batches_are_released_when_there_will_be_no_other(catalog, strict, behind):
    assert behind.release(Lsn(0x100), Lsn(0x10)) is None
    behind.apply(after(0x10, changes(strict, (INSERT, None, 1, "a"))))
    assert behind.release(Lsn(0x2F), Lsn(0x20)) is None, "the server may send more before it"
    assert behind.release(Lsn(0x40), Lsn(0x38)) is None, "another one is handed over"
    assert behind.holds
    assert behind.release(Lsn(0x30), Lsn(0x20)) == 0x20
    assert not behind.holds
    assert catalog.remote_lsn("sub") == 0x20
    assert behind.release(Lsn(0x30), Lsn(0x20)) is None


def test_what_is_held_is_brought_back_before_a_transaction_is_skipped(tables, catalog, strict, behind):
    behind.apply(after(0x10, changes(strict, (INSERT, None, 1, "a"))))
    assert behind.bring_back()
    assert content(tables, strict) == []
    assert (catalog.remote_lsn("sub"), catalog.batch("sub"), ahead_of_origin(catalog, "sub")) == (0x10, None, [])


def test_a_failure_behind_held_batches_leaves_them(tables, catalog, strict, behind):
    behind.apply(after(0x10, changes(strict, (INSERT, None, 1, "a"))))
    with pytest.raises(ApplyError, match="small"):
        behind.apply(after(0x20, changes(strict, (INSERT, None, 9, "a"))))
    assert content(tables, strict) == [(1, "a")]
    assert (catalog.batch("sub"), catalog.remote_lsn("sub"), behind.holds) == (None, 0x10, True)


def test_a_crash_behind_held_batches_leaves_them(tables, catalog, strict, behind):
    """The next life reads from the table's log that it has them."""
    behind.apply(after(0x10, changes(strict, (INSERT, None, 1, "a"))))
    with failing(Cut(), "table_begun"), pytest.raises(Cut):
        behind.apply(after(0x20, changes(strict, (INSERT, None, 2, "a"))))
    settling(tables, catalog).keep()
    assert content(tables, strict) == [(1, "a")]
    position = table_position(tables, catalog.subscription("sub"), "sub", joined(0x20, strict))
    assert (position.lsn, position.epoch) == (0x20, 1)
    later = applier(tables, catalog)
    later.apply(after(0x10))
    assert later.holds
    later.apply(after(0x20, changes(strict, (INSERT, None, 2, "a"))))
    assert content(tables, strict) == [(1, "a"), (2, "a")]
    assert (catalog.remote_lsn("sub"), later.holds) == (0x30, False)


def test_a_commit_that_delta_has_left_out_is_an_error(spark, catalog, target):
    """The state directory is older than the table, say: the origin must not pass what is not there."""
    row = catalog.subscription("sub")
    session = fork(spark)
    with stamped(session, CommitStamp(row.batch_app_id, Lsn(0x10), Lsn(0x30))):
        append_rows(session.createDataFrame([(7, "another attempt")], "id long, note string"), target.path)
    with pytest.raises(ApplyError, match="Delta has left out the commit up to 0/20") as caught:
        applier(spark, catalog).apply(batch(changes(target, (INSERT, None, 1, "a"))))
    assert "state_dir is not the one that wrote the table last" in caught.value.hint
    assert catalog.remote_lsn("sub") == 0x10


def test_a_batch_that_was_interrupted_once_its_flush_had_begun_is_undone_first(tables, catalog, target):
    """Nobody knows whether the flush failed: so Delta's stamp must not leave the commits out."""
    catalog.put_rel("sub", RelRow("public", "t", "r", Lsn(0), target.path))
    one = batch(changes(target, (INSERT, None, 1, "a")))
    with failing(Cut(), "batch_committed"), pytest.raises(Cut):
        applier(tables, catalog).apply(one)
    intent = catalog.batch("sub")
    assert intent == BatchIntent(Lsn(0x10), Lsn(0x20), flushing=True)
    assert intent.must_be_undone
    bridge = applier(tables, catalog)
    with pytest.raises(StateError, match="a batch from 0/10 to 0/20 was begun and not finished"):
        bridge.apply(one)
    settling(tables, catalog).undo()
    assert content(tables, target) == []
    bridge.apply(one)
    assert (content(tables, target), catalog.remote_lsn("sub")) == ([(1, "a")], 0x20)


def test_parts_of_a_tables_changes_are_applied_in_turn_or_not_at_all(tables, catalog, strict, monkeypatch):
    def cut(*_):
        raise Cut

    bridge = applier(tables, catalog)
    first = changes(strict, (INSERT, None, 1, "a"))
    with pytest.raises(ApplyError, match="small"):
        bridge.apply(batch(first, changes(strict, (INSERT, None, 9, "a"))))
    assert (content(tables, strict), catalog.batch("sub")) == ([], None)
    one = batch(first, changes(strict, (UPDATE, None, 1, "b")))
    with monkeypatch.context() as patch:
        patch.setattr(type(bridge._local), "flush", cut)
        with pytest.raises(Cut):
            bridge.apply(one)
    intent = catalog.batch("sub")
    assert intent == BatchIntent(Lsn(0x10), Lsn(0x20), alters=True)
    assert intent.must_be_undone, "a table may have one part only"
    settling(tables, catalog).undo()
    assert content(tables, strict) == []
    bridge.apply(one)
    assert content(tables, strict) == [(1, "b")]
    crowded = Batch(Lsn(0x20), Lsn(0x21), Lsn(0x20), 8, 1, 2, one.tables)
    with pytest.raises(ApplyError, match=r'identity of table "public\.strict" changed 1 times'):
        bridge.apply(crowded)


def test_a_failed_table_is_named_and_nothing_is_left_of_the_batch(spark, catalog, target, strict):
    """Another table's commit is taken back; the same batch without the fault is applied then, and is not left out."""
    bridge = applier(spark, catalog)
    bridge.apply(Batch(Lsn(0), Lsn(0x10), Lsn(8), 6, 1, 1, [changes(target, (INSERT, None, 0, "kept"))]))
    with pytest.raises(ApplyError) as caught:
        bridge.apply(batch(changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 9, "a"))))
    assert 'during message type "INSERT" for replication target relation "public.strict"' in str(caught.value)
    assert "in transaction 7, finished at 0/18" in str(caught.value)
    assert "small" in str(caught.value)
    assert "\n\tat " not in str(caught.value)
    assert content(spark, target) == [(0, "kept")]
    assert (catalog.batch("sub"), catalog.remote_lsn("sub"), catalog.subscription("sub").epoch) == (None, 0x10, 1)
    # the next time nothing is committed that would have to be taken back
    catalog.record_error("sub", "x", counter="apply", finish_lsn=Lsn(0x18), relation="public.strict")
    before = len(spark.sql(f"DESCRIBE HISTORY delta.`{target.path}`").collect())
    with pytest.raises(ApplyError):
        bridge.apply(batch(changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 9, "a"))))
    assert len(spark.sql(f"DESCRIBE HISTORY delta.`{target.path}`").collect()) == before
    bridge.apply(batch(changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 4, "a"))))
    assert content(spark, target) == [(0, "kept"), (1, "a")]
    assert content(spark, strict) == [(4, "a")]


def test_without_spark_the_outcome_is_unknown_and_the_intent_stands(tables, catalog, target):
    one = batch(changes(target, (INSERT, None, 1, "a")))
    with failing(Py4JNetworkError("gone"), "table_committed"), pytest.raises(OutcomeUnknown, match="gone"):
        applier(tables, catalog).apply(one)
    assert catalog.batch("sub") == BatchIntent(Lsn(0x10), Lsn(0x20))
    settling(tables, catalog).keep()
    assert content(tables, target) == [(1, "a")]


def test_a_batch_is_not_taken_back_while_the_outcome_of_one_of_its_commits_is_unknown(
    tables, catalog, target, strict, monkeypatch
):
    """Another table fails for good; but what Spark has not answered for may be committed after the undo."""
    apply_table = module.apply_table  # type: ignore[attr-defined]

    def unanswered(session, of, **options):
        if of.target is target:
            raise Py4JNetworkError("gone")
        apply_table(session, of, **options)

    mine, bad = changes(target, (INSERT, None, 1, "a")), changes(strict, (INSERT, None, 9, "a"))
    # undone here: what it replaces is that of the tables in memory, which go before the fixture's end
    with monkeypatch.context() as patch:
        patch.setattr(module, "apply_table", unanswered)
        with pytest.raises(OutcomeUnknown, match="gone"):
            applier(tables, catalog).apply(batch(bad, mine))
    assert catalog.batch("sub") == BatchIntent(Lsn(0x10), Lsn(0x20))


def test_a_skipped_transaction_is_kept_and_passed(tables, catalog, target, tmp_path):
    """Nothing of it is in the target; crash before it is recorded, and it is kept once more."""
    catalog.set_skip_lsn("sub", Lsn(0x18))
    definition = relation("t", 1)
    routes = Routes({("public", "t"): Subscribed(target, INVALID)})
    skipped = transaction(Lsn(0x18), definition, message(1, INSERT, None, 1, "a"))
    one = Batcher("pgbridge_sub", routes, types).form([skipped], Lsn(0x10))
    with failing(Cut(), "skipped_written"), pytest.raises(Cut):
        applier(tables, catalog).skip(one, Lsn(0x18), tmp_path / "skipped")
    assert catalog.skip_lsn("sub") == 0x18
    path = applier(tables, catalog).skip(one, Lsn(0x18), tmp_path / "skipped")
    assert path == tmp_path / "skipped" / "0-18" / "sub"
    assert read(path).followed.keys() == {definition}
    assert content(tables, target) == []
    assert (catalog.remote_lsn("sub"), catalog.skip_lsn("sub")) == (0x20, None)


def test_a_conflict_is_told_in_postgresqls_words_or_overwritten_and_reported(spark, catalog, target):
    append_rows(spark.createDataFrame([(1, "local")], "id long, note string"), target.path)
    one = batch(changes(target, (INSERT, None, 1, "remote")))
    found: list[Any] = []

    def report(conflicts, batch):
        kept = [conflict.key for conflict in conflicts.kept["insert_exists"]]
        found.append((dict(conflicts.counts), kept, conflicts.stopped, batch.finish_lsn))

    with pytest.raises(ApplyError) as caught:
        applier(spark, catalog, conflicts=report).apply(one)
    assert str(caught.value).startswith(
        'conflict detected on relation "public.t": conflict=insert_exists\n'
        "DETAIL:  Key already exists in the target: key (id)=(1); existing local row (1, local); "
        "remote row (1, remote).\n"
        'CONTEXT:  processing remote data for replication origin "pgbridge_sub"'
    )
    statement = re.search(r"run in Spark: (DELETE FROM .* WHERE .*); or", caught.value.hint)
    assert statement is not None
    assert spark.sql(statement[1]).collect()[0][0] == 1, "the printed statement removes the row that is in the way"
    append_rows(spark.createDataFrame([(1, "local")], "id long, note string"), target.path)
    assert 'during message type "INSERT" for' in str(caught.value)
    assert notes.conflicts(catalog, "sub") == {"insert_exists": 1}
    applier(spark, catalog, conflict="apply_remote", conflicts=report).apply(one)
    told = ({"insert_exists": 1}, ["(id)=(1)"])
    assert found == [(*told, True, 0x18), (*told, False, 0x18)]
    assert notes.conflicts(catalog, "sub") == {"insert_exists": 2}
    assert content(spark, target) == [(1, "remote")]


def test_a_catalog_that_cannot_count_a_conflict_hides_neither_the_conflict_nor_the_commit(
    spark, catalog, target, monkeypatch
):
    def full(*_):
        raise StateError("database or disk is full", retry=True)

    monkeypatch.setattr(notes, "count_conflicts", full)
    append_rows(spark.createDataFrame([(1, "local")], "id long, note string"), target.path)
    one = batch(changes(target, (INSERT, None, 1, "remote")))
    with capture_logs() as events:
        with pytest.raises(ApplyError, match="conflict=insert_exists"):
            applier(spark, catalog).apply(one)
        applier(spark, catalog, conflict="apply_remote").apply(one)
    assert (content(spark, target), catalog.remote_lsn("sub")) == ([(1, "remote")], 0x20)
    warnings = [event for event in events if event["event"] == "conflicts are not counted"]
    assert [event["conflicts"] for event in warnings] == [{"insert_exists": 1}] * 2


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


@pytest.mark.parametrize("key", [(0,), pytest.param((), marks=pytest.mark.soak)], ids=["with a key", "without"])
def test_a_target_that_is_read_only_or_gone(spark, catalog, target, key):
    """The error has the place; nothing is made anew where the table was; with the table back, all goes on."""
    one = batch(changes(target, (INSERT, None, 1, "a"), key=key))
    with read_only(target.path), pytest.raises(ApplyError, match=re.escape(target.path)):
        applier(spark, catalog).apply(one)
    shutil.move(target.path, f"{target.path}.away")
    gone = f"(?s){re.escape(target.path)} does not exist any more.*finished at 0/18"
    with pytest.raises(ApplyError, match=gone):
        applier(spark, catalog).apply(one)
    assert not Path(target.path).exists()
    assert catalog.remote_lsn("sub") == 0x10
    shutil.move(f"{target.path}.away", target.path)
    settling(spark, catalog).undo()
    applier(spark, catalog).apply(one)
    assert content(spark, target) == [(1, "a")]


def test_a_target_that_is_gone_is_not_made_anew_by_truncate(spark, catalog, target):
    """The error has the path and the remedy, whether rows follow the TRUNCATE or not."""
    shutil.rmtree(target.path)
    gone = rf'Delta table at {re.escape(target.path)} does not exist any more(?s:.)*relation "public\.t"'
    for rows, key in (((), (0,)), (((INSERT, None, 1, "a"),), (0,)), (((INSERT, None, 1, "a"),), ())):
        one = batch(changes(target, *rows, key=key, truncated=True))
        with pytest.raises(ApplyError, match=gone) as caught:
            applier(spark, catalog).apply(one)
        assert "mount its file system" in caught.value.hint
    assert not Path(target.path).exists()


def test_a_column_that_takes_no_null(spark, catalog, tmp_path):
    """The column is named."""
    path = str(tmp_path / "full")
    spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT, note STRING NOT NULL) USING delta").collect()
    full = Target("public", "full", path, target_schema_of(spark.read.format("delta").load(path).schema))
    with pytest.raises(ApplyError, match=r'(?s)note.*for replication target relation "public.full" in transaction 7'):
        applier(spark, catalog).apply(batch(changes(full, (INSERT, None, 1, None))))
