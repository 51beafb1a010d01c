"""A transaction that is kept is read as the stream read it, or says why it cannot be replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.row_filters import RowFilters, ServerFilters
from pgbridge.bridge.effects.events import DELETE, INSERT
from pgbridge.bridge.evolution.alterations import RenameColumn
from pgbridge.bridge.rowfilter.server_filter import ServerFilter
from pgbridge.bridge.runtime.errors import SkipError, StateError
from pgbridge.bridge.skipped.kept_transaction import FILE, KeptRoutes, folder_of, read, write
from pgbridge.bridge.track.spool import SpoolFolder
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec.messages import Delete, Insert, Relation, Truncate, Update
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.stream.transactions import Transaction, TransactionRun
from tests.bridge.batch.streamed import (
    LOG,
    NULL,
    UNCHANGED,
    PythonVerdicts,
    T,
    batcher,
    insert,
    row,
    subscribed,
    text,
    transaction,
)
from tests.bridge.batch.test_batcher import Verdicts
from tests.bridge.batch.test_definitions import ID, NOTE, WIDER, C, evolving
from tests.bridge.skipped.kept import ORIGIN, kept, types

FULL = Relation(1, "public", "t", "f", tuple(replace(column, is_key=True) for column in T.columns))
UPDATED = Update(1, (text(2), UNCHANGED), key_tuple=(text(1), NULL))
EMPTIED = Truncate((1, 2))


def again(one, batch):
    """What a replay forms of it, for targets with the columns that they had then."""
    targets = {(table.target.namespace, table.target.name): table.target for table in batch.tables}
    return Batcher("pgbridge_x", KeptRoutes(one, targets), types).form([one.transaction], INVALID)


def same(found, batch):
    """Whether the changes of each commit are the same; columns are not altered again."""
    fields = ("target", "columns", "key", "changes", "truncated", "lost", "fills")
    assert [[getattr(t, name) for name in fields] for t in found.tables] == [
        [getattr(t, name) for name in fields] for t in batch.tables
    ]


def listed(table, **options):
    return replace(subscribed(table), columns=frozenset({"id"}), **options)


def as_changelog(table):
    return replace(subscribed(table), target=replace(subscribed(table).target, mode="changelog"))


@pytest.mark.parametrize(
    ("tables", "messages"),
    [
        ([T, LOG], [T, LOG, insert(1, "a"), Insert(2, (text("x"),)), UPDATED, Delete(1, key_tuple=(text(1), NULL))]),
        ([T], [T, LOG, insert(1, "a"), Insert(2, (text("not subscribed"),))]),
        ([T, LOG], [T, LOG, insert(1, "a"), EMPTIED, Insert(2, (text("x"),))]),
        ([replace(subscribed(T), lsn=Lsn(900)), LOG], [T, LOG, insert(1, "copied"), EMPTIED, Insert(2, (text("x"),))]),
        ([listed(T)], [T, insert(1, "a"), UPDATED]),
        ([subscribed(FULL, primary_key=("id",))], [FULL, Update(1, (text(2), UNCHANGED), None, (text(1), text("a")))]),
        ([replace(subscribed(T), actions=frozenset({"insert"}))], [T, insert(1, "a"), UPDATED, Truncate((1,))]),
        ([as_changelog(T), LOG], [T, LOG, insert(1, "a"), EMPTIED, UPDATED]),
        ([T], [T, insert(1, "a"), FULL, Delete(1, old_tuple=(text(1), text("a")))]),
    ],
    ids=[
        "two tables", "another table", "truncate", "copied since", "column list", "full", "actions", "changelog",
        "parts",
    ],
)  # fmt: skip
def test_the_changes_are_those_of_the_stream(tmp_path, tables, messages):
    bridge = batcher(*(subscribed(table) if isinstance(table, Relation) else table for table in tables))
    batch = bridge.form([transaction(100, *messages)], Lsn(50))
    one = kept(batch, tmp_path)
    same(again(one, batch), batch)
    assert (one.refused, one.origin, one.transaction.commit_lsn) == (None, ORIGIN, 100)
    assert set(one.tables) == {(t.target.namespace, t.target.name) for t in batch.tables}


def test_definitions_of_earlier_transactions_are_kept(tmp_path):
    """The server does not send them again; here the transaction is one of a run."""
    bridge = batcher(subscribed(T))
    bridge.form([transaction(100, T, insert(1, "a"))], Lsn(50))
    rows = MessageArray.of([row(insert(2, "b"))])
    xids, lsns, end_lsns, times_us = np.array([[7], [200], [208], [5]])
    run = TransactionRun(xids, lsns, end_lsns, times_us, rows, np.array([0, 1]), rows.lengths)
    batch = bridge.form([run], Lsn(108))
    read_again = kept(batch, tmp_path)
    same(again(read_again, batch), batch)
    assert (read_again.transaction.xid, read_again.transaction.commit_time_us) == (7, 5)


def test_a_column_that_the_transaction_itself_has_added(tmp_path):
    """Its constant is in the rows before it."""
    batch = evolving(ID, NOTE, C).form(
        [transaction(100, T, insert(1, "a"), Update(1, (text(2), text("b"))), WIDER, Insert(1, (text(3), NULL, NULL)))],
        Lsn(50),
    )
    found = again(kept(batch, tmp_path), batch)
    same(found, batch)
    assert found.tables[0].changes["new_2"].to_pylist() == [7, 7, None]


def test_a_spooled_and_streamed_transaction(tmp_path):
    """With a subtransaction that was rolled back; the spool file stays as it is."""
    made = Transaction(7, Lsn(100), 0, Lsn(108), in_stream=True, aborted={9})
    made.events = [(0, replace(T, xid=7))]
    made.rows.extend(MessageArray.of([row(replace(insert(n, "a"), xid=xid)) for n, xid in ((1, 7), (2, 9), (3, 7))]))
    file = SpoolFolder(tmp_path / "spool").file_for(made)
    file.append(made)
    made.rows.extend(MessageArray.of([row(replace(insert(4, "in memory"), xid=7))]))
    before = file.path.read_bytes()
    batch = batcher(subscribed(T)).form([made], Lsn(50))
    one = kept(batch, tmp_path / "skipped")
    assert file.path.read_bytes() == before
    assert len(made.rows) == 1
    found = again(one, batch)
    assert found.tables[0].changes["new_0"].to_pylist() == [1, 3, 4]
    same(found, batch)


def test_what_a_servers_filters_have_let_pass(tmp_path):
    """Nothing is asked again; a row that did not pass is not decoded, and an UPDATE is what it has become."""
    by_server = ServerFilters(Verdicts(), *[ServerFilter("f", "f", "t", ("note",), (None,))] * 3)
    table = replace(subscribed(FULL, primary_key=("id",)), columns=frozenset({"id", "note"}), server_filters=by_server)
    changes = [
        insert(1, "yes"), Insert(1, (text("no number"), text("no"))),
        Update(1, (text(3), text("y")), old_tuple=(text(2), text("n"))),
        Update(1, (text(5), text("n")), old_tuple=(text(4), text("y"))),
    ]  # fmt: skip
    batch = batcher(table).form([transaction(100, FULL, *changes)], Lsn(50))
    found = again(kept(batch, tmp_path), batch)
    same(found, batch)
    assert found.tables[0].changes["op"].to_pylist() == [INSERT, INSERT, DELETE]


class Filter:
    """A filter of the column id, as `PythonVerdicts` computes it."""

    columns = frozenset({"id"})

    def __init__(self, true):
        self._true = true

    def true(self, row):
        return self._true(row["id"])


def filtered(true):
    one: Any = Filter(true)
    return replace(subscribed(T), filters=RowFilters(insert=one, update=one, delete=one))


def test_what_sparks_filters_have_let_pass_or_why_they_fail(tmp_path):
    messages = [T, insert(1, "a"), insert(2, "b"), insert(3, "c"), Delete(1, key_tuple=(text(4), NULL))]
    passing = batcher(filtered(lambda key: key != 2), verdicts=PythonVerdicts())
    batch = passing.form([transaction(100, *messages)], Lsn(50))
    (table,) = again(kept(batch, tmp_path), batch).tables
    assert table.changes["new_0"].to_pylist() == [1, 3, None]
    failing = batcher(filtered(lambda key: 1 // (key - 2) == 1), verdicts=PythonVerdicts())
    refused = kept(failing.attempt([transaction(100, *messages)], Lsn(50)), tmp_path).refused
    assert refused is not None
    assert refused.startswith("it could not be decoded: row filter: ")


@pytest.mark.parametrize(
    ("mode", "refused"),
    [
        ("history", 'the rows of table "public.t" have versions, and those of later transactions are there already'),
        (
            "soft_deletes",
            'the rows of table "public.t" have versions, and those of later transactions are there already',
        ),
        ("handler", "a function gets the changes, which is not called out of turn"),
    ],
)
def test_what_cannot_be_replayed_says_why(tmp_path, mode, refused):
    table = replace(subscribed(T), target=replace(subscribed(T).target, mode=mode))
    batch = batcher(table).form([transaction(100, T, insert(1, "a"))], Lsn(50))
    assert kept(batch, tmp_path).refused == refused


def test_what_was_not_decoded_is_kept_with_the_reason(tmp_path):
    bridge = batcher(subscribed(T))
    batch = bridge.attempt([transaction(100, T, Insert(1, (text("no number"), NULL)))], Lsn(50))
    one = kept(batch, tmp_path)
    assert one.refused == f"it could not be decoded: {batch.error.message}"
    assert one.transaction.n_rows == 1


@pytest.mark.parametrize("other", [subscribed(LOG), None])
def test_a_definition_whose_rows_went_to_two_tables(tmp_path, other):
    """A partition that the transaction itself has attached, or detached."""
    batch = batcher(subscribed(T), subscribed(LOG)).form([transaction(100, T, LOG, insert(1, "a"))], Lsn(50))
    (entry,) = batch.followed[1]
    batch.followed[1].append(entry._replace(subscribed=other))
    refused = 'rows of one definition have gone to several tables, or to none, as of "public.t"'
    assert kept(batch, tmp_path).refused == refused


def test_rows_that_go_to_no_table_are_noted(tmp_path):
    """Alone they are no reason against a replay."""
    batch = batcher(subscribed(T)).form([transaction(100, T, LOG, insert(1, "a"), Insert(2, (text("x"),)))], Lsn(50))
    assert [entry.subscribed for entry in batch.followed[2]] == [None]
    assert kept(batch, tmp_path).refused is None


def test_a_column_that_takes_anothers_name(tmp_path):
    """A replay reads by names, so the values would come to the wrong columns."""
    batch = batcher(subscribed(T)).form([transaction(100, T, insert(1, "a"))], Lsn(50))
    (entry,) = batch.followed[1]
    batch.followed[1].append(entry._replace(alterations=(RenameColumn("note", "text"),)))
    assert kept(batch, tmp_path).refused == 'it renames a column of table "public.t", or puts another in its place'


def test_it_is_written_once_more_after_a_crash(tmp_path):
    batch = batcher(subscribed(T)).form([transaction(100, T, insert(1, "a"))], Lsn(50))
    for _ in range(2):
        path = write(batch, tmp_path, "sub", origin=ORIGIN, rels={})
    assert path == folder_of(tmp_path, "sub", "0/64")
    assert [file.name for file in path.iterdir()] == [FILE]
    assert path.stat().st_mode & 0o777 == 0o700
    assert read(path).tables["public", "t"].relid is None


def test_what_an_earlier_version_kept_is_told(tmp_path):
    with pytest.raises(SkipError, match="an earlier version of pgbridge has kept the transaction"):
        read(tmp_path)


def test_a_damaged_file_is_told(tmp_path):
    batch = batcher(subscribed(T)).form([transaction(100, T, insert(1, "a"))], Lsn(50))
    path = write(batch, tmp_path, "sub", origin=ORIGIN, rels={})
    content = bytearray((path / FILE).read_bytes())
    content[40] ^= 1
    (path / FILE).write_bytes(content)
    with pytest.raises(StateError, match=f"spool file {path / FILE} is damaged"):
        read(path)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "skipped").write_text("")
    batch = batcher(subscribed(T)).form([transaction(100, T, insert(1, "a"))], Lsn(50))
    with pytest.raises(StateError, match="cannot write the skipped transaction to"):
        write(batch, tmp_path / "skipped", "sub", origin=ORIGIN, rels={})
