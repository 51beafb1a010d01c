"""Tables that are renamed, or dropped and created again under the same name."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes
from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.protocol.codec.messages import Insert, Relation, Truncate
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.values.types import resolve
from tests.bridge.batch.streamed import LOG, T, batcher, insert, subscribed, text, transaction

NEW_NAME = Relation(1, "public", "renamed", "d", T.columns)
AGAIN = Relation(7, "public", "t", "d", T.columns)


def known(relation, lsn=INVALID, relid=1):
    return replace(subscribed(relation, lsn), relid=relid)


@pytest.mark.parametrize(
    ("change", "command"),
    [(insert(2, "b"), "INSERT"), (Truncate((2, 1), cascade=False, restart_identity=False), "TRUNCATE")],
)
def test_a_table_with_another_name_stops_before_it(change, command):
    """A native subscriber stops, too: its `logicalrep_rel_open` finds no table of that name."""
    bridge = batcher(known(T), subscribed(LOG))
    items = [transaction(100, T, LOG, insert(1, "a")), transaction(200, NEW_NAME, change)]
    batch = bridge.attempt(items, Lsn(50))
    assert batch.error is not None
    assert batch.error.message == 'logical replication target relation "public.renamed" does not exist'
    assert "pgbridge refresh" in batch.error.hint
    assert (batch.error.context.finish_lsn, batch.error.context.command) == (200, command)


def test_names_that_a_table_had_before_it_was_copied_are_passed_over():
    """A stream that lags has the table under its old name. The copy already has those changes."""
    renamed = Relation(1, "public", "old", "d", T.columns)
    truncate = Truncate((1,), cascade=False, restart_identity=False)
    names: list[str] = []
    batch = batcher(known(T, Lsn(200)), ignored=names.append).form(
        [transaction(100, renamed, insert(1, "a"), truncate), transaction(200, T, insert(2, "b"))], Lsn(50)
    )
    (table,) = batch.tables
    assert isinstance(table.changes, pa.Table)
    assert (table.changes["new_0"].to_pylist(), table.truncated) == ([2], False)
    assert names == []


def test_tables_that_change_their_names_are_not_taken_for_each_other():
    other = Relation(2, "public", "log", "d", T.columns)
    taken = [replace(other, relation_id=1), replace(T, relation_id=2)]
    bridge = batcher(known(T), known(other, relid=2))
    with pytest.raises(
        ApplyError, match='table "public.t" now has the name of another table of the subscription, "public.log"'
    ) as caught:
        bridge.form([transaction(100, *taken, insert(1, "a"))], Lsn(50))
    assert caught.value.hint.endswith("--resync public.t --resync public.log")


def test_a_table_that_waits_and_takes_the_name_of_another_stops_before_it():
    """Its rows are not the other's. Under a name that no table has they are left out, as before."""
    own = Relation(3, "public", "waits", "d", T.columns)
    routes = Routes({("public", "t"): known(T)}, waiting={3: ("public", "waits"), 1: ("public", "before")})
    assert routes.names == {3: ("public", "waits"), 1: ("public", "t")}
    assert [routes.renamed_table(replace(own, name=name)) for name in ("waits", "other")] == [None, None]
    found = routes.renamed_table(replace(own, name="t"))
    assert found is not None
    assert "now has the name of another table" in found.error.message
    assert found.lsn == INVALID


def test_a_table_that_is_created_again_is_followed_by_its_name():
    """As with a native subscriber. The catalog is to be looked at once, and the batch has the new relid."""
    told: list[str] = []
    routes = Routes({("public", "t"): known(T)}, changed=lambda: told.append("changed"))
    bridge = Batcher("pgbridge_x", routes, lambda wanted: [resolve(*item) for item in wanted])
    first = bridge.form([transaction(100, T, insert(1, "a"))], Lsn(50))
    assert (first.relids, told) == ({}, [])
    items = [transaction(200, AGAIN, Insert(7, (text(2), text("b"))), Insert(7, (text(3), text("c"))))]
    for _ in range(2):
        batch = bridge.form(items, Lsn(108))
        assert batch.relids == {7: ("public", "t")}
        assert batch.rows == 2
        assert len(batch.tables) == 1
        bridge.rewind(batch)
    assert told == ["changed"] * 2
    bridge.form(items, Lsn(108))
    with pytest.raises(ApplyError, match='relation "public.renamed" does not exist'):
        bridge.form([transaction(300, replace(NEW_NAME, relation_id=7), Insert(7, (text(2), text("b"))))], Lsn(208))
