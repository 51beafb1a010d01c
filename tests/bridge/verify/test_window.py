"""What the stream says between two LSNs: the last row of each touched key."""

from __future__ import annotations

import pytest

from pgbridge.bridge.runtime.errors import VerifyError
from pgbridge.bridge.verify.window import UNCHANGED, Window
from pgbridge.protocol.codec.messages import (
    Begin,
    BeginPrepare,
    Column,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    Prepare,
    Relation,
    RollbackPrepared,
    Truncate,
    Update,
    Value,
    ValueKind,
)
from pgbridge.protocol.codec.pgoutput import encode
from pgbridge.protocol.lsn import Lsn

T = Relation(1, "public", "t", "d", (Column("id", 23, -1, is_key=True), Column("note", 25, -1, is_key=False)))
TOAST = object()


def values(*given):
    made = {None: Value(ValueKind.NULL), TOAST: Value(ValueKind.UNCHANGED_TOAST)}
    return tuple(made[one] if one in made else Value(ValueKind.TEXT, one.encode()) for one in given)


def transaction(end, *changes):
    return [Begin(Lsn(end - 1), 0, 7), *changes, Commit(0, Lsn(end - 1), Lsn(end), 0)]


def window(*transactions, key=("id",), after=10, end=50):
    found = Window({("public", "t"): key}, Lsn(after), Lsn(end))
    found.read(encode(message) for messages in transactions for message in messages)
    return found.tables.get(("public", "t"))


def test_only_transactions_within_count():
    found = window(
        transaction(10, T, Insert(1, values("1", "a"))),
        transaction(20, Insert(1, values("2", "b"))),
        transaction(51, Insert(1, values("3", "c"))),
    )
    assert found.rows == {("2",): ["2", "b"]}


def test_the_last_change_of_a_key_counts():
    found = window(
        transaction(
            20,
            T,
            Insert(1, values("1", "a")),
            Update(1, values("1", "b")),
            Insert(1, values("2", "a")),
            Delete(1, values("2", None)),
            Update(1, values("4", "moved"), values("3", None)),
        )
    )
    assert found.rows == {("1",): ["1", "b"], ("2",): None, ("3",): None, ("4",): ["4", "moved"]}


def test_values_that_the_stream_left_out():
    """They are of the window's row before, or of the snapshot's under the key that it had there."""
    found = window(
        transaction(20, T, Insert(1, values("1", "long")), Update(1, values("1", TOAST))),
        transaction(
            30, Update(1, values("6", TOAST), values("5", None)), Update(1, values("7", TOAST), values("6", None))
        ),
    )
    assert found.rows[("1",)] == ["1", "long"]
    assert found.rows[("7",)] == ["7", UNCHANGED]
    assert found.base == {("7",): ("5",)}
    assert (found.rows[("5",)], found.rows[("6",)]) == (None, None)


CHANGES = (
    transaction(20, T, Insert(1, values("1", "a")), Update(1, values("2", TOAST), values("1", None))),
    transaction(30, Delete(1, None, values("3", "old")), Update(1, values("4", "b"), None, values("4", "a"))),
)


def test_where_only_keys_count_no_values_are_kept():
    """Not even before a transaction's end."""
    every = Window({("public", "t"): ("id",)}, Lsn(10), Lsn(50), only_keys=True)
    every.read(encode(message) for messages in CHANGES for message in messages)
    assert every.tables["public", "t"].rows == dict.fromkeys(window(*CHANGES).rows)
    every.read(map(encode, transaction(40, Insert(1, values("5", "large" * 1000)))[:-1]))
    assert [message for message, _ in every._pending] == [Insert(1, values("5", TOAST))]


def test_bags_have_their_values_where_only_keys_count():
    rows = transaction(20, T, Insert(1, values("1", "a")), Delete(1, None, values("2", "b")))
    bags = Window({("public", "t"): ()}, Lsn(10), Lsn(50), only_keys=True)
    bags.read(map(encode, rows))
    assert (bags.tables["public", "t"].inserted, bags.tables["public", "t"].removed) == ([("1", "a")], [("2", "b")])


@pytest.mark.parametrize(
    ("key", "size", "most"), [(("id",), 1, 3), (("id",), 1 << 20, 3), ((), 1, 3), ((), 1 << 20, 0)]
)
def test_more_than_memory_may_have_is_refused(key, size, most):
    """Of tables without keys also the values count; other tables do not."""
    other = Relation(2, "public", "u", "d", T.columns)
    bounded = Window({("public", "t"): key}, Lsn(10), Lsn(50), only_keys=True, most_bytes=4000)
    bounded.read(map(encode, transaction(20, other, *[Insert(2, values("1", "a"))] * 100, T)))
    row = Insert(1, values("1", "x" * size))
    bounded.read(map(encode, transaction(30, *[row] * most)))
    with pytest.raises(VerifyError, match="too many rows have changed since Delta's last batch") as caught:
        bounded.read(map(encode, transaction(40, row)))
    assert "run the daemon until it has caught up" in caught.value.hint


def prepared(gid, *changes):
    begin = BeginPrepare(Lsn(1), Lsn(2), 0, 7, gid)
    return [begin, *changes, Prepare(0, Lsn(1), Lsn(2), 0, 7, gid)]


def test_prepared_transactions_count_when_they_are_committed():
    found = window(
        prepared("a", T, Insert(1, values("1", "a"))),
        prepared("b", Insert(1, values("2", "b"))),
        transaction(20, Insert(1, values("3", "c"))),
        [RollbackPrepared(0, Lsn(2), Lsn(21), 0, 0, 7, "b"), CommitPrepared(0, Lsn(21), Lsn(22), 0, 7, "a")],
    )
    assert found.rows == {("3",): ["3", "c"], ("1",): ["1", "a"]}


@pytest.mark.parametrize(("end", "unclear"), [(5, False), (22, True), (60, False)])
def test_a_transaction_that_was_prepared_before_the_window(end, unclear):
    found = Window({("public", "t"): ("id",)}, Lsn(10), Lsn(50))
    found.read([encode(CommitPrepared(0, Lsn(end - 1), Lsn(end), 0, 7, "early"))])
    assert ("early" in found.unclear) is unclear


def test_rows_without_keys():
    found = window(
        transaction(
            20,
            T,
            Insert(1, values("1", None)),
            Update(1, values("1", TOAST), None, values("1", "x")),
            Delete(1, None, values("2", "y")),
        ),
        key=(),
    )
    assert (found.inserted, found.removed) == ([("1", None), ("1", "x")], [("1", "x"), ("2", "y")])


def test_what_cannot_be_followed():
    assert window(transaction(20, T, Truncate((1,)))).unclear == "it was truncated meanwhile"
    other = Relation(1, "public", "t", "d", (Column("id", 23, -1, is_key=True),))
    altered = window(transaction(20, T, Insert(1, values("1", "a")), other, Insert(1, values("2"))))
    assert altered.unclear == "its columns changed meanwhile"
    assert window(transaction(20, T, Delete(1, values("1", None))), key=()).unclear
    assert window(transaction(20, T, Insert(1, values("1", "a"))), key=("gone",)).unclear


def test_other_tables_are_ignored():
    other = Relation(2, "public", "u", "d", T.columns)
    assert window(transaction(20, other, Insert(2, values("1", "a")))) is None
