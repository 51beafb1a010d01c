"""Ordinals and common columns, also where a transaction comes in several blocks. No server.

The columns of changes, and a schema that a user gives.
"""

from __future__ import annotations

import pyarrow as pa

from pgbridge.bridge.source.change_rows import ChangeDecoder
from pgbridge.bridge.source.frame_schema import ChangeSchema, tables_schema
from pgbridge.bridge.track.spool import SpoolFile
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec.messages import Column, Insert, Relation, Truncate, Value, ValueKind
from pgbridge.protocol.codec.pgoutput import encode
from pgbridge.protocol.codec.walsender import XLogData, encode_xlog_data
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.stream.transactions import Transaction
from pgbridge.protocol.values.types import resolve

INT4 = 23


def relation(relation_id, name):
    return Relation(relation_id, "public", name, "d", (Column("id", INT4, -1, is_key=True),))


A, B = relation(1, "a"), relation(2, "b")


def transaction(number, *changes, origin=None):
    """Changes: a relation, a TRUNCATE, or (relation, id) for an INSERT."""
    found = Transaction(number, Lsn(number * 100), number * 1_000_000, Lsn(number * 100 + 50), origin_name=origin)
    for change in changes:
        if isinstance(change, Relation | Truncate):
            found.add(change)
            continue
        row = Insert(change[0].relation_id, (Value(ValueKind.TEXT, str(change[1]).encode()),))
        found.rows.extend(MessageArray.of([encode_xlog_data(XLogData(INVALID, INVALID, 0, encode(row)))]))
    return found


def decoder(table=None):
    schema = tables_schema({"public.a": [("id", pa.int32())], "public.b": [("id", pa.int32())]})
    return ChangeDecoder(
        ChangeSchema(schema, table), lambda wanted: [resolve(*one) for one in wanted], slot_name="slot"
    )


def rows(decoding, *transactions):
    found = [row for batch in decoding.decode(transactions) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["commit_lsn"], row["ordinal"]))


def short(row):
    new = row[row["table"]]["new"] if row[row["table"]] else None
    return row["commit_lsn"], row["ordinal"], row["table"][-1], row["operation"][0], new and new["id"]


MIXED = (A, (A, 1), B, (B, 2), Truncate((1, 2), False, False), (A, 3), Truncate((2,), False, False), (B, 4))
EXPECTED = [
    (0, "a", "I", 1),
    (1, "b", "I", 2),
    (2, "a", "T", None),
    (3, "b", "T", None),
    (4, "a", "I", 3),
    (5, "b", "T", None),
    (6, "b", "I", 4),
]


def test_ordinals_count_all_tables_and_truncates():
    found = rows(decoder(), transaction(1, *MIXED), transaction(2, (B, 5), (A, 6)))
    assert [short(row)[1:] for row in found[:7]] == EXPECTED
    assert [short(row) for row in found[7:]] == [(200, 0, "b", "I", 5), (200, 1, "a", "I", 6)]


def test_a_spooled_transaction_has_the_same_ordinals(tmp_path):
    """Its first part is in a file, its last in memory: the ordinals go on."""
    parts = transaction(1, *MIXED[:5])
    SpoolFile(tmp_path / "1.1").append(parts)
    for change in MIXED[5:]:
        more = transaction(1, change)
        parts.rows.extend(more.rows.part())
        for _, event in more.events:
            parts.add(event)
    found = rows(decoder(), parts, transaction(2, (A, 9)))
    assert [short(row)[1:] for row in found[:7]] == EXPECTED
    assert short(found[7]) == (200, 0, "a", "I", 9)


def test_origin_xid_and_time():
    found = rows(decoder(), transaction(1, A, (A, 1)), transaction(2, (A, 2), origin="elsewhere"))
    assert [row["origin"] for row in found] == [None, "elsewhere"]
    assert [row["xid"] for row in found] == [1, 2]
    assert [row["commit_time"].isoformat() for row in found] == [
        "2000-01-01T00:00:01+00:00",
        "2000-01-01T00:00:02+00:00",
    ]
