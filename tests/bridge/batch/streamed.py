"""Transactions as the receiver hands them over, and a batcher for them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes, Subscribed
from pgbridge.bridge.batch.row_filters import MARKS
from pgbridge.bridge.effects.events import DELETE, INSERT, NO_OLD, UPDATE
from pgbridge.bridge.rowfilter.server_filter import VerdictError
from pgbridge.bridge.targets.target import Target, target_schema
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec.messages import Column, Insert, Relation, Truncate, Value, ValueKind
from pgbridge.protocol.codec.pgoutput import encode
from pgbridge.protocol.codec.walsender import XLogData, encode_xlog_data
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.stream.transactions import Transaction
from pgbridge.protocol.values.types import resolve

INT4, TEXT = 23, 25
T = Relation(1, "public", "t", "d", (Column("id", INT4, -1, is_key=True), Column("note", TEXT, -1, is_key=False)))
LOG = Relation(2, "public", "log", "d", (Column("note", TEXT, -1, is_key=False),))
NULL, UNCHANGED = Value(ValueKind.NULL), Value(ValueKind.UNCHANGED_TOAST)


def text(value):
    return Value(ValueKind.TEXT, str(value).encode())


def row(message):
    """A row message as the receiver hands it over."""
    return encode_xlog_data(XLogData(Lsn(1), Lsn(1), 0, encode(message)))


def transaction(commit_lsn, *messages):
    """A transaction of rows and events, in order."""
    made = Transaction(commit_lsn, Lsn(commit_lsn), 0, Lsn(commit_lsn + 8))
    for message in messages:
        if isinstance(message, Relation | Truncate):
            made.events.append((len(made.rows), message))
        else:
            made.rows.extend(MessageArray.of([row(message)]))
    return made


def subscribed(relation, lsn=INVALID, primary_key=(), extra=()):
    types = {INT4: pa.int32(), TEXT: pa.string(), 20: pa.int64()}
    fields = [(column.name, types[column.type_oid]) for column in relation.columns]
    fields += extra
    path = f"/lake/{relation.namespace}/{relation.name}"
    return Subscribed(Target(relation.namespace, relation.name, path, target_schema(fields)), lsn, primary_key)


def batcher(*tables, **options):
    by_name = {(s.target.namespace, s.target.name): s for s in tables}
    return Batcher("pgbridge_x", Routes(by_name), lambda wanted: [resolve(*item) for item in wanted], **options)


class PythonVerdicts:
    """Verdicts of filters that have a `true`, which takes a row's values by the column's name."""

    def passes(self, filters, rows, positions):
        of = {INSERT: filters.insert, UPDATE: filters.update, DELETE: filters.delete}
        both = np.ones((2, len(rows)), np.bool_)
        for at, row in enumerate(rows.to_pylist()):
            row_filter = of[row["op"]]
            for kind, there in (("old", row["old"] != NO_OLD), ("new", row["op"] != DELETE)):
                if row_filter is not None and there:
                    values = {
                        name: row.get(f"{MARKS[kind]}_{i}") or row.get(f"{kind}_{i}") for name, i in positions.items()
                    }
                    try:
                        both[("old", "new").index(kind), at] = row_filter.true(values)
                    except ZeroDivisionError as error:
                        raise VerdictError(at, str(error)) from error
        return both[0], both[1]


def insert(key, note):
    return Insert(1, (text(key), text(note)))
