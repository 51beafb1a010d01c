"""Messages are cut into chunks of bounded size, and errors name the place in the message.

Tuples are read column by column, and an error names the column and the place in the message.
"""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from pgbridge.protocol.bulk import decode_chunk
from pgbridge.protocol.bulk.columns import RowMessages
from pgbridge.protocol.bulk.decode_chunk import decode_in_chunks
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec.messages import Column, Delete, Insert, Message, Relation, Update, Value, ValueKind
from pgbridge.protocol.codec.pgoutput import encode
from pgbridge.protocol.errors import MalformedMessage, UnrepresentableValue, UnsupportedMessage
from pgbridge.protocol.values import numeric
from pgbridge.protocol.values.types import resolve
from pgbridge.protocol.values.value_array import TooLargeError
from tests.oracle.extension_types import CATALOG, GEOMETRY, VECTOR

NUMERICS = Relation(7, "", "t", "d", (Column("n", 1700, -1, False),))
HUNDREDTHS = bytes.fromhex("0001 0014 0000 0000 0001")  # 1 followed by 80 zeros


@given(st.lists(st.binary(max_size=6), max_size=30), st.data(), st.integers(1, 5), st.integers(1, 20))
def test_chunks_are_the_chosen_messages_in_order(messages, data, most_rows, most_bytes):
    """Each once, no more than so many at a time, and more than so many bytes only if it is one message."""
    chosen = np.array(
        data.draw(st.lists(st.integers(0, max(len(messages) - 1, 0)), unique=True, max_size=len(messages))), np.int64
    )
    chosen.sort()
    found: list[bytes] = []

    def decode(chunk, rows):
        assert len(chunk) == len(rows)
        assert chunk.first_row == len(found)
        assert [chunk.name(i) for i in range(len(rows))] == [f"message {row}" for row in rows]
        assert len(rows) <= most_rows
        assert len(rows) == 1 or chunk.ends[-1] - chunk.starts[0] <= most_bytes
        found.extend(chunk.data[a:b].tobytes() for a, b in zip(chunk.starts, chunk.ends, strict=True))
        return len(rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_chunk, "DECODE_CHUNK_ROWS", most_rows)
        patch.setattr(decode_chunk, "DECODE_CHUNK_BYTES", most_bytes)
        counts = decode_in_chunks(MessageArray.of(messages), chosen, lambda i: f"message {i}", decode)
    assert found == [messages[i] for i in chosen]
    assert sum(counts) == len(chosen)


def test_skipped_bytes():
    array = MessageArray.of([b"abX", b"cdYZ"]).without_prefix(2)
    parts = decode_in_chunks(array, np.arange(2), str, lambda s, _: s.data[s.starts].tobytes())
    assert parts == [b"XY"]


def test_chunks_that_are_too_large_are_halved():
    sizes = []

    def decode(chunk, rows):
        sizes.append(len(rows))
        if len(rows) > 2:
            raise TooLargeError
        return rows.tolist()

    parts = decode_in_chunks(MessageArray.of([b"x"] * 7), np.arange(7), str, decode)
    assert [row for part in parts for row in part] == list(range(7))
    assert sizes == [7, 3, 1, 2, 4, 2, 2]


def test_values_that_are_too_large_together(monkeypatch):
    """Long numerics are written in several chunks; one that is too long alone cannot be represented."""
    monkeypatch.setattr(numeric, "_MAX_TEXT_BYTES", 300)
    messages = [encode(Insert(7, (Value(ValueKind.BINARY, HUNDREDTHS),)))] * 10
    table = RowMessages(messages).decode(NUMERICS, [resolve(1700, -1)])
    assert table["new_0"].to_pylist() == ["1" + "0" * 80] * 10
    assert table["new_0"].num_chunks > 1
    monkeypatch.setattr(numeric, "_MAX_TEXT_BYTES", 50)
    with pytest.raises(UnrepresentableValue, match="longest") as caught:
        RowMessages(messages).decode(NUMERICS, [resolve(1700, -1)])
    assert (caught.value.column, caught.value.row) == ("n", 0)


def test_checks_name_the_first_place():
    array = MessageArray.of([b"abc", b"defg"])

    def decode(chunk, _):
        owners, positions = np.array([0, 1, 1]), np.array([1, 4, 5])
        chunk.check(np.array([True, True, True]), owners, positions, "fine")
        with pytest.raises(MalformedMessage, match="malformed b message at offset 1: bad"):
            chunk.check(np.array([True, False, False]), owners, positions, "bad")
        chunk.check_end(np.array([0, 1]), np.array([3, 7]))
        with pytest.raises(MalformedMessage, match="malformed b message at offset 3: bytes after"):
            chunk.check_end(np.array([0, 1]), np.array([3, 6]))

    decode_in_chunks(array, np.arange(2), lambda i: "ab"[i], decode)


INT4, TEXT = resolve(23, -1), resolve(25, -1)
PAIR = Relation(7, "public", "pair", "d", (Column("id", 23, -1, True), Column("t", 25, -1, False)))
NULL, TOAST = Value(ValueKind.NULL), Value(ValueKind.UNCHANGED_TOAST)


def text(data: str) -> Value:
    return Value(ValueKind.TEXT, data.encode())


@pytest.fixture
def short_chunks(monkeypatch):
    """Chunks of three rows, so that a few rows need several of them."""
    monkeypatch.setattr(decode_chunk, "DECODE_CHUNK_ROWS", 3)


ONE = encode(Insert(7, (text("1"), text("a"))))  # I, 4 bytes, N, 2 bytes; t, 4 bytes, 1; t, 4 bytes, a
KEYED = encode(Update(7, (text("1"), text("a")), key_tuple=(text("2"), NULL)))
DELETED = encode(Delete(7, key_tuple=(text("2"), NULL)))


@pytest.mark.parametrize(
    ("message", "tag", "offset", "reason"),
    [
        (ONE[:5], "INSERT", 5, "expected a tuple, nothing remains"),
        (ONE[:7], "INSERT", 5, "ends in its tuple's header"),
        (ONE[:8], "INSERT", 8, 'column "id"'),
        (ONE[:13], "INSERT", 8, 'column "id"'),
        (ONE[:-1], "INSERT", 14, 'column "t"'),
        (ONE + b"x", "INSERT", 20, "bytes after the end"),
        (ONE[:5] + b"O" + ONE[6:], "INSERT", 5, "mark of a tuple"),
        (ONE[:7] + b"\1" + ONE[8:], "INSERT", 5, "tuple of 2 columns"),
        (ONE[:8] + b"x" + ONE[9:], "INSERT", 8, 'unknown kind of value in column "id"'),
        (ONE[:9] + struct.pack(">i", -1) + ONE[13:], "INSERT", 8, 'column "id"'),
        (ONE[:9] + struct.pack(">i", 2**31 - 1) + ONE[13:], "INSERT", 8, 'column "id"'),
        (ONE[:13] + b"y" + ONE[14:], "INSERT", 13, 'column "id": y is not a valid int4'),
        (KEYED[:5] + b"x" + KEYED[6:], "UPDATE", 5, "mark of a tuple"),
        (KEYED[:15], "UPDATE", 15, "expected a tuple marked N"),
        (KEYED[:15] + b"K" + KEYED[16:], "UPDATE", 15, "expected a tuple marked N"),
        (KEYED[:14] + b"u" + KEYED[15:], "UPDATE", 14, 'unchanged TOAST in an old tuple, column "t"'),
        (DELETED + b"n", "DELETE", 15, "bytes after the end"),
        (DELETED[:5] + b"N" + DELETED[6:], "DELETE", 5, "mark of a tuple"),
    ],
)  # fmt: skip
def test_malformed(message, tag, offset, reason):
    """The error names the message's kind, the offset in it, and what is wrong, also behind a sound message."""
    for before in ([], [ONE], [KEYED, DELETED]):
        rows = RowMessages([b"XY" + m for m in [*before, message]], skip_bytes=2)
        with pytest.raises(MalformedMessage, match=reason) as caught:
            rows.decode(PAIR, [INT4, TEXT])
        assert (caught.value.tag, caught.value.offset) == (tag, offset)


def test_binary_value_of_a_type_that_is_read_from_text_only():
    point = Relation(7, "", "t", "d", (Column("p", 600, -1, False),))
    rows = RowMessages([encode(Insert(7, (Value(ValueKind.BINARY, bytes(16)),)))])
    with pytest.raises(UnsupportedMessage, match='column "p"'):
        rows.decode(point, [resolve(600, -1)])


def test_unrepresentable_value_names_row_and_column(short_chunks):
    days = Relation(7, "", "t", "d", (Column("d", 1082, -1, False),))
    sent = [encode(Insert(7, (text("2024-01-01" if i != 8 else "infinity"),))) for i in range(10)]
    rows = RowMessages(sent)
    with pytest.raises(UnrepresentableValue, match="infinity") as caught:
        rows.decode(days, [resolve(1082, -1)])
    assert (caught.value.column, caught.value.value, caught.value.row) == ("d", "infinity", 8)
    with pytest.raises(UnrepresentableValue) as caught:
        rows.decode(days, [resolve(1082, -1)], np.array([2, 8]))
    assert caught.value.row == 1


DATE, DATES, DECIMAL = (resolve(oid, typmod, {}) for oid, typmod in ((1082, -1), (1182, -1), (1700, (5 << 16 | 2) + 4)))
ALL = Relation(
    7, "public", "all", "f", tuple(Column(f"c{i}", oid, -1, True) for i, oid in enumerate((23, 1082, 1182, 1700)))
)
EVERY_TYPE = [INT4, DATE, DATES, DECIMAL]


def test_what_cannot_be_held_is_shown(short_chunks):
    """In new and old tuples, in both forms, by message; an array is NULL for one of its elements."""
    plain = (text("1"), text("2020-01-01"), text("{2020-01-01,NULL}"), text("1.50"))
    odd = (text("1"), text("infinity"), text("{2020-01-01,-infinity}"), text("NaN"))
    forever = Value(ValueKind.BINARY, (2**31 - 1).to_bytes(4, "big"))
    messages: list[Message] = [
        Insert(7, plain),
        Insert(7, odd),
        Update(7, (text("1"), forever, TOAST, NULL), old_tuple=odd),
        Delete(7, old_tuple=(text("1"), text("0044-03-15 BC"), text("{{2020-01-01}}"), text("0.00"))),
    ]
    table = RowMessages([encode(message) for message in messages]).decode(
        ALL, EVERY_TYPE, unrepresentable="show", key=(1,)
    )
    shown = {name: table[name].to_pylist() for name in table.column_names if "unheld" in name}
    assert shown == {
        "unheld_1": [None, "infinity", "infinity", None],
        "unheld_2": [None, "-infinity", None, None],
        "unheld_3": [None, "NaN", None, None],
        "oldunheld_1": [None, None, "infinity", "0044-03-15 BC"],
        "oldunheld_2": [None, None, "-infinity", "{{2020-01-01}}"],
        "oldunheld_3": [None, None, "NaN", None],
    }
    assert table["new_1"].to_pylist() == [dt.date(2020, 1, 1), None, None, None]
    assert table["new_2"].to_pylist() == [[dt.date(2020, 1, 1), None], None, None, None]
    assert table["old_3"].to_pylist()[3] == Decimal("0.00")
    table.validate(full=True)
    usual = RowMessages([encode(messages[0])]).decode(ALL, EVERY_TYPE, unrepresentable="show")
    assert usual == RowMessages([encode(messages[0])]).decode(ALL, EVERY_TYPE)


def test_texts_of_extensions_that_cannot_be_held_are_shown():
    relation = Relation(7, "public", "t", "f", (Column("v", VECTOR, -1, False), Column("g", GEOMETRY, -1, False)))
    types = [resolve(VECTOR, -1, CATALOG).parsed_for(pa.list_(pa.float32()))]
    types.append(resolve(GEOMETRY, -1, CATALOG).parsed_for(pa.binary()))
    rows = [(text("[1,2.5]"), text("00fF")), (text("none"), text("POINT(1 2)")), (NULL, NULL)]
    table = RowMessages([encode(Insert(7, row)) for row in rows]).decode(relation, types, unrepresentable="show")
    assert [table[name].to_pylist() for name in ("new_0", "unheld_0", "new_1", "unheld_1")] == [
        [[1.0, 2.5], None, None],
        [None, "none", None],
        [b"\x00\xff", None, None],
        [None, "POINT(1 2)", None],
    ]


def test_columns_that_are_not_wanted_are_not_looked_at():
    """They are NULL, whatever their values; the columns behind them are read."""
    messages: list[Message] = [
        Insert(7, (text("1"), text("infinity"), text("{{"), text("1.50"))),
        Update(7, (text("2"), TOAST, NULL, text("2.50")), old_tuple=(text("1"), text("no date"), NULL, text("1.50"))),
    ]
    rows = RowMessages([encode(message) for message in messages])
    table = rows.decode(ALL, EVERY_TYPE, wanted={0, 3}, key=(1,))
    assert table["new_0"].to_pylist() == [1, 2]
    assert table["new_3"].to_pylist() == [Decimal("1.50"), Decimal("2.50")]
    assert table["old_3"].to_pylist() == [None, Decimal("1.50")]
    assert table["new_1"].null_count == table["new_2"].null_count == table["old_1"].null_count == 2
    broken = bytearray(encode(messages[0]))
    broken[broken.index(b"infinity") - 5] = ord("x")
    with pytest.raises(MalformedMessage, match='unknown kind of value in column "c1"'):
        RowMessages([bytes(broken)]).decode(ALL, EVERY_TYPE, wanted={0})
