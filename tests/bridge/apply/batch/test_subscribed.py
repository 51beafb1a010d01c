"""The columns that identify a row of a subscribed table."""

from __future__ import annotations

from dataclasses import replace

from bridge.apply.batch.subscribed import key_of
from protocol.lsn import Lsn
from protocol.messages import Column, Relation
from tests.bridge.apply.batch.streamed import (
    INT4,
    T,
    batcher,
    insert,
    subscribed,
    transaction,
)


def test_a_part_of_an_identity_is_no_key():
    """A column list may leave out a part of the key. A message from before the list, or before a rename, has all."""
    wide = Relation(1, "public", "t", "d", (*T.columns, Column("c", INT4, -1, is_key=True)))
    cut = replace(subscribed(wide), cut_identity=frozenset({"id", "c"}))
    assert key_of(T, cut) == ()
    assert key_of(wide, cut) == (0, 2)
    assert key_of(wide, replace(cut, cut_identity=frozenset({"id", "renamed"}))) == (0, 2)
    twice = transaction(100, T, insert(1, "a"), insert(1, "b"))
    (table,) = batcher(cut).form([twice], Lsn(50)).tables
    assert (table.key, table.inserts_only) == ((), True)
