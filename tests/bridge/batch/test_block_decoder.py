"""Errors name the right transaction of a block, and rows count from an LSN on. `test_batcher` tests what is decoded."""

from __future__ import annotations

from typing import Any

import pytest

from pgbridge.bridge.batch.block_decoder import BlockDecoder
from pgbridge.bridge.batch.decode_block import decode_blocks
from pgbridge.bridge.batch.definitions import Definitions
from pgbridge.bridge.batch.routes import Routes
from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec.messages import Insert, Value, ValueKind
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.types import resolve
from tests.bridge.batch.streamed import T, insert, row, subscribed, transaction


def decoder(*transactions, since=0):
    """Make a decoder of the transactions' one block; returns it and its collectors."""
    definitions = Definitions(lambda wanted: [resolve(*one) for one in wanted], None)
    definitions.announce(T)
    (block,) = decode_blocks(transactions)
    collectors: dict[str, Any] = {}
    routes = Routes({("public", "t"): subscribed(T, Lsn(since))})
    return BlockDecoder(block, collectors, routes=routes, definitions=definitions, origin_name="pgbridge_x"), collectors


def test_errors_have_the_rows_transaction():
    """An error that is not one value's names the first row of its relation."""
    bad = Insert(1, (Value(ValueKind.TEXT, b"no number"), Value(ValueKind.TEXT, b"n")))
    made, _ = decoder(transaction(100, insert(1, "a")), transaction(200, insert(2, "b"), bad))
    with pytest.raises(ApplyError, match="no number") as caught:
        made.decode(1, 3)
    context = caught.value.context
    assert (context.origin, context.xid, context.finish_lsn) == ("pgbridge_x", 200, Lsn(200))
    assert (context.relation, context.command) == ("public.t", "INSERT")


def test_rows_since_an_lsn():
    made, collectors = decoder(*(transaction(lsn, insert(lsn, "a")) for lsn in (100, 200, 300)), since=200)
    made.decode(0, 3)
    (changes,) = collectors["/lake/public/t"].changes()
    assert changes.changes["seq"].to_pylist() == [1, 2]


def test_what_is_no_row_message():
    broken = transaction(300, insert(1, "a"))
    broken.rows.extend(MessageArray.of([row(insert(2, "b"))]).without_prefix(10))
    with pytest.raises(ApplyError, match="row") as caught:
        decoder(broken)
    assert caught.value.context.finish_lsn == Lsn(300)
