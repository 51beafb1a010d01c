"""What a skipped transaction held is shown as it came, whatever it was."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bridge.runtime.errors import ApplyError
from bridge.skipped.show import show
from protocol.codec.messages import Column, Delete, Insert, Truncate, Update
from protocol.lsn import Lsn
from tests.bridge.batch.streamed import LOG, NULL, UNCHANGED, T, batcher, insert, subscribed, text, transaction
from tests.bridge.skipped.kept import kept, types


def shown(tmp_path, *messages, decoded=True):
    batch = batcher(subscribed(T)).attempt([transaction(100, *messages)], Lsn(50))
    assert (batch.error is None) is decoded
    first, *changes = (json.loads(line) for line in show(kept(batch, tmp_path), types))
    return first, changes


def test_every_change_in_order(tmp_path):
    """Of tables that are not subscribed, too; of a key's tuple the key, and no value that the stream does not carry."""
    full = replace(T, relation_id=3, name="whole", replica_identity="f")
    whole = (text(1), text("before"))
    first, changes = shown(
        tmp_path, T, LOG, full,
        insert(1, "é"), Insert(2, (text("x"),)), Update(1, (text(2), UNCHANGED), (text(1), NULL)),
        Update(3, (text(1), NULL), old_tuple=whole), Truncate((1, 2)), Delete(1, (text(2), NULL)),
    )  # fmt: skip
    expected = {"finish_lsn": "0/64", "xid": 100, "commit_time": "2000-01-01T00:00:00+00:00", "replay": "possible"}
    assert first == expected
    assert changes == [
        {"table": "public.t", "command": "INSERT", "new": {"id": 1, "note": "é"}},
        {"table": "public.log", "command": "INSERT", "new": {"note": "x"}},
        {"table": "public.t", "command": "UPDATE", "old": {"id": 1}, "new": {"id": 2}},
        {
            "table": "public.whole", "command": "UPDATE", "old": {"id": 1, "note": "before"},
            "new": {"id": 1, "note": None},
        },
        {"table": "public.log", "command": "TRUNCATE"},
        {"table": "public.t", "command": "TRUNCATE"},
        {"table": "public.t", "command": "DELETE", "old": {"id": 2}},
    ]  # fmt: skip


def test_values_that_a_type_cannot_hold_and_others(tmp_path):
    """A date that is infinity made the transaction fail; bytes are hexadecimal; nothing spoils the terminal's lines."""
    columns = (*T.columns, Column("due", 1082, -1, is_key=False), Column("data", 17, -1, is_key=False))
    dated = replace(T, columns=columns)
    row = Insert(1, (text(1), text("\x9b31m\nline"), text("infinity"), text("\\x00ff")))
    batch = batcher(subscribed(T)).attempt([transaction(100, dated, row)], Lsn(50))
    assert batch.error is not None
    first, line = show(kept(batch, tmp_path), types)
    assert json.loads(first)["replay"].startswith("not possible: it could not be decoded: ")
    assert line.isprintable()
    new = {"id": 1, "note": "\x9b31m\nline", "due": "infinity", "data": "00ff"}
    assert json.loads(line) == {"table": "public.t", "command": "INSERT", "new": new}


def test_a_value_that_cannot_be_read(tmp_path):
    with pytest.raises(ApplyError, match="finished at 0/64"):
        shown(tmp_path, T, insert(1, "a"), Insert(1, (text("no number"), NULL)), decoded=False)
