"""The bulk decoder agrees with the strict codec: random blocks, recorded streams, and broken bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings, strategies as st

from pgbridge.protocol.bulk import decode_chunk
from pgbridge.protocol.bulk.columns import RowMessages
from pgbridge.protocol.codec.messages import Column, Delete, Insert, Relation, Type, Update, Value, ValueKind
from pgbridge.protocol.codec.pgoutput import decode, encode
from pgbridge.protocol.errors import MalformedMessage, ProtocolError, UnrepresentableValue, UnsupportedMessage
from pgbridge.protocol.values.pg_type import TypeInfo
from pgbridge.protocol.values.types import ColumnType, resolve
from tests.protocol import independent
from tests.protocol.made_rows import RELATION_ID, row_blocks
from tests.vectors import load

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pgbridge.protocol.codec.messages import Message

INT4, TEXT = resolve(23, -1), resolve(25, -1)
PAIR = Relation(7, "public", "pair", "d", (Column("id", 23, -1, True), Column("t", 25, -1, False)))
NULL, TOAST = Value(ValueKind.NULL), Value(ValueKind.UNCHANGED_TOAST)


def text(data: str) -> Value:
    return Value(ValueKind.TEXT, data.encode())


def value_of(value: Value, type_: ColumnType) -> Any:
    """One value by the slow reader; None stands for NULL and for unchanged TOAST."""
    if value.kind is ValueKind.TEXT:
        return independent.read(value.data.decode(), type_)
    return independent.read_binary(value.data, type_) if value.kind is ValueKind.BINARY else None


def expected_columns(messages: Iterable[Message], types: Sequence[ColumnType]) -> dict[str, list[Any]]:
    """The table that decode promises, as lists, by the strict codec's messages and the slow reader."""
    rows = []
    for message in messages:
        new = getattr(message, "new_tuple", None)
        key, whole = getattr(message, "key_tuple", None), getattr(message, "old_tuple", None)
        old = key if whole is None else whole
        rows.append(
            (b"IUD"[(Insert, Update, Delete).index(type(message))], b"K"[0] if key is not None else b"O"[0], old, new)
        )
    columns: dict[str, list[Any]] = {
        "op": [op for op, *_ in rows],
        "old": [mark if old is not None else 0 for _, mark, old, _ in rows],
    }
    for i, type_ in enumerate(types):
        columns[f"new_{i}"] = [value_of(new[i], type_) if new is not None else None for *_, new in rows]
    if any(old is not None for _, _, old, _ in rows):
        for i, type_ in enumerate(types):
            columns[f"old_{i}"] = [value_of(old[i], type_) if old is not None else None for _, _, old, _ in rows]
    for i in range(len(types)):
        marks = [new is not None and new[i].kind is ValueKind.UNCHANGED_TOAST for *_, new in rows]
        if any(marks):
            columns[f"unchanged_{i}"] = marks
    return columns


def assert_same(table: pa.Table, expected: dict[str, list[Any]]) -> None:
    table.validate(full=True)
    assert table.column_names == list(expected)
    for name, values in expected.items():
        found = independent.comparable(table[name].to_pylist())
        assert found == independent.comparable(map(independent.nulled, values)), name


def expected_columns_undecoded(messages: Sequence[Message], places: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """The tuples that `raw` promises, by the strict codec's messages."""

    def some(found: Any) -> Any:
        return None if found is None else tuple(found[place] for place in places)

    keys = [getattr(m, "key_tuple", None) for m in messages]
    olds = [getattr(m, "old_tuple", None) if key is None else key for m, key in zip(messages, keys, strict=True)]
    return [some(old) for old in olds], [some(getattr(m, "new_tuple", None)) for m in messages]


@pytest.fixture
def short_chunks(monkeypatch):
    """Cut after three rows, so that small blocks have several chunks."""
    monkeypatch.setattr(decode_chunk, "DECODE_CHUNK_ROWS", 3)


@pytest.mark.parametrize("in_stream", [False, True])
@given(data=st.data(), skip_bytes=st.sampled_from([0, 25]), view=st.booleans())
def test_random_blocks_are_read_as_by_the_strict_codec(in_stream, data, skip_bytes, view):
    block = data.draw(row_blocks(in_stream=in_stream))
    sent = [b"x" * skip_bytes + encode(message) for message in block.messages]
    strict = [decode(message[skip_bytes:], in_stream=in_stream) for message in sent]
    expected = expected_columns(strict, block.types)
    rows = RowMessages([memoryview(m) for m in sent] if view else sent, skip_bytes=skip_bytes, in_stream=in_stream)
    assert len(rows) == len(sent)
    assert rows.tags.tolist() == expected["op"]
    assert rows.relation_ids.tolist() == [RELATION_ID] * len(sent)
    assert (None if rows.xids is None else rows.xids.tolist()) == (
        [m.xid for m in block.messages] if in_stream else None
    )
    assert_same(rows.decode(block.relation, block.types, unrepresentable="null"), expected)
    refused = {
        (row, int(name.removeprefix("new_").removeprefix("old_")))
        for name, values in expected.items()
        for row, value in enumerate(values)
        if independent.has_unrepresentable(value)
    }
    if refused:
        with pytest.raises(UnrepresentableValue) as caught:
            rows.decode(block.relation, block.types)
        assert (caught.value.row, int(caught.value.column.removeprefix("c"))) in refused
    else:
        assert_same(rows.decode(block.relation, block.types), expected)
    shown = rows.decode(block.relation, block.types, unrepresentable="show")
    for name, values in expected.items():
        kind, _, i = name.partition("_")
        if kind in {"new", "old"} and i:
            texts = f"{'' if kind == 'new' else 'old'}unheld_{i}"
            found = shown[texts].is_valid().to_pylist() if texts in shown.column_names else [False] * len(values)
            assert found == [independent.has_unrepresentable(value) for value in values]
            assert not any(found) or pc.all(pc.invert(pc.and_(shown[texts].is_valid(), shown[name].is_valid()))).as_py()


@given(data=st.data())
def test_chosen_rows_in_several_chunks(data):
    """Rows of one relation among others', cut into chunks, are those rows of the whole."""
    block = data.draw(row_blocks(most=20))
    other = encode(Insert(RELATION_ID + 1, (NULL,) * 9))
    mine = data.draw(st.lists(st.booleans(), min_size=len(block.messages), max_size=len(block.messages)))
    sent = [
        m for message, before in zip(block.messages, mine, strict=True) for m in ([other] * before + [encode(message)])
    ]
    rows = RowMessages(sent)
    chosen = np.flatnonzero(rows.relation_ids == RELATION_ID)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_chunk, "DECODE_CHUNK_ROWS", 3)
        patch.setattr(decode_chunk, "DECODE_CHUNK_BYTES", 100)
        table = rows.decode(block.relation, block.types, chosen, unrepresentable="null")
        places = data.draw(st.permutations(range(len(block.types))))[:2]
        olds, news = rows.raw(block.relation, places, chosen)
    assert_same(table, expected_columns(block.messages, block.types))
    strict = expected_columns_undecoded(block.messages, places)
    assert (olds, news) == strict


@settings(max_examples=150)
@given(data=st.data(), in_stream=st.booleans())
def test_broken_messages_raise_protocol_errors(data, in_stream):
    """Cut, overwritten and made-up bytes never escape as another error, and what pgoutput refuses is refused."""
    block = data.draw(row_blocks(in_stream=in_stream, most=4))
    sent = [bytearray(encode(message)) for message in block.messages]
    for message in sent:
        for _ in range(data.draw(st.integers(0, 2))):
            if data.draw(st.booleans()):
                del message[data.draw(st.integers(0, len(message))) :]
            elif message:
                message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        rows = RowMessages(sent, in_stream=in_stream)
        chosen = np.flatnonzero(rows.relation_ids == RELATION_ID)
        table = rows.decode(block.relation, block.types, chosen, unrepresentable="null")
    except ProtocolError:
        return
    table.validate(full=True)
    strict = [decode(bytes(sent[i]), in_stream=in_stream) for i in chosen]
    assert table["op"].to_pylist() == [b"IUD"[(Insert, Update, Delete).index(type(m))] for m in strict]


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=3), st.booleans())
def test_any_bytes_raise_protocol_errors(messages, in_stream):
    try:
        rows = RowMessages([b"I" + m for m in messages], in_stream=in_stream)
        relation = Relation(int(rows.relation_ids[0]), "", "t", "d", PAIR.columns)
        rows.decode(relation, [INT4, TEXT], np.flatnonzero(rows.relation_ids == rows.relation_ids[0]))
    except ProtocolError:
        pass


OWN_TYPES = {
    "mood": TypeInfo(0, "mood", "public", "e"),
    "positive": TypeInfo(0, "positive", "public", "d", basetype=23),
    "pair": TypeInfo(0, "pair", "public", "c"),
    "span": TypeInfo(0, "span", "other", "r", subtype=701),
}
"""The types of the recorded scenarios; mood[] is not announced by a Type message and stays unknown."""


def recorded(path: Path) -> list[tuple[Relation, bool, list[ColumnType], list[bytes]]]:
    """Blocks of row messages of a recorded stream, each with its relation and columns' types."""
    relations: dict[int, tuple[Relation, list[ColumnType]]] = {}
    catalog: dict[int, TypeInfo] = {}
    found: list[tuple[Relation, bool, list[ColumnType], list[bytes]]] = []
    for vector in load.vectors(path):
        tag = vector.data[:1]
        if tag == b"Y":
            message = decode(vector.data, in_stream=vector.in_stream)
            assert isinstance(message, Type)
            if message.name in OWN_TYPES:
                catalog[message.type_oid] = OWN_TYPES[message.name]
        elif tag == b"R":
            message = decode(vector.data, in_stream=vector.in_stream)
            assert isinstance(message, Relation)
            types = [resolve(c.type_oid, c.typmod, catalog) for c in message.columns]
            relations[message.relation_id] = message, types
        elif tag in {b"I", b"U", b"D"}:
            message = decode(vector.data, in_stream=vector.in_stream)
            assert isinstance(message, Insert | Update | Delete)
            relation, types = relations[message.relation_id]
            if not found or found[-1][:2] != (relation, vector.in_stream):
                found.append((relation, vector.in_stream, types, []))
            found[-1][3].append(vector.data)
    return found


TEXT_FILES = [path for path in load.FILES if "binary" not in path.stem]
BINARY_FILES = [path for path in load.FILES if "binary" in path.stem]


@pytest.mark.parametrize("path", TEXT_FILES, ids=load.name_of)
def test_recorded_text_is_read_as_by_the_strict_codec(path):
    for relation, in_stream, types, messages in recorded(path):
        strict = [decode(message, in_stream=in_stream) for message in messages]
        table = RowMessages(messages, in_stream=in_stream).decode(relation, types, unrepresentable="null")
        assert_same(table, expected_columns(strict, types))


@pytest.mark.parametrize("path", BINARY_FILES, ids=load.name_of)
def test_recorded_binary_is_read_as_recorded_text(path):
    """The same scenario was recorded in both forms; tables with a type that is not read in binary are refused."""
    in_text = recorded(path.with_name(path.name.replace("binary", "text")))
    in_binary = recorded(path)
    assert len(in_binary) == len(in_text) > 0
    for (relation, _, types, messages), (_, _, _, texts) in zip(in_binary, in_text, strict=True):
        rows = RowMessages(messages)
        if all(type_.binary for type_ in types):
            table = rows.decode(relation, types, unrepresentable="null")
            of_text = RowMessages(texts).decode(
                Relation(int(RowMessages(texts).relation_ids[0]), "", "", "d", relation.columns),
                types,
                unrepresentable="null",
            )
            assert_same(table, of_text.to_pydict())
        else:
            with pytest.raises(UnsupportedMessage, match="binary form"):
                rows.decode(relation, types, unrepresentable="null")


def test_schema():
    """op, old and unchanged_<i> are never NULL; old_<i> and unchanged_<i> are there only where needed."""
    messages: list[Message] = [Insert(7, (text("1"), text("a")))]
    fields = [
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("old", pa.uint8(), nullable=False),
        pa.field("new_0", pa.int32()),
        pa.field("new_1", pa.string()),
    ]
    assert RowMessages([encode(m) for m in messages]).decode(PAIR, [INT4, TEXT]).schema == pa.schema(fields)
    messages.append(Update(7, (text("1"), TOAST), key_tuple=(text("0"), NULL)))
    fields += [
        pa.field("old_0", pa.int32()),
        pa.field("old_1", pa.string()),
        pa.field("unchanged_1", pa.bool_(), nullable=False),
    ]
    assert RowMessages([encode(m) for m in messages]).decode(PAIR, [INT4, TEXT]).schema == pa.schema(fields)


def test_no_messages():
    rows = RowMessages([])
    assert len(rows) == 0
    table = rows.decode(PAIR, [INT4, TEXT])
    assert table.num_rows == 0
    assert table.schema.field("new_0").type == pa.int32()


def test_rows_that_need_different_columns_in_different_chunks(short_chunks):
    messages: list[Message] = [
        *[Insert(7, (text(str(i)), text("a"))) for i in range(4)],
        *[Delete(7, key_tuple=(text(str(i)), NULL)) for i in range(4)],
        *[Update(7, (text(str(i)), TOAST)) for i in range(4)],
    ]
    table = RowMessages([encode(m) for m in messages]).decode(PAIR, [INT4, TEXT])
    assert table["new_0"].num_chunks == 4
    assert_same(table, expected_columns(messages, [INT4, TEXT]))


ONE = encode(Insert(7, (text("1"), text("a"))))


@pytest.mark.parametrize("message", [b"", b"I", b"I\0\0\0", b"R\0\0\0\7", b"\0" * 9])
def test_no_row_message(message):
    with pytest.raises(MalformedMessage, match="malformed row"):
        RowMessages([ONE, message])


def test_skipped_bytes_missing():
    with pytest.raises(MalformedMessage, match="row message 0 ends before"):
        RowMessages([ONE], skip_bytes=25)


def test_streamed_without_xid():
    with pytest.raises(MalformedMessage, match="invalid transaction ID 0"):
        RowMessages([encode(Insert(7, (), xid=1)), b"U" + bytes(4) + bytes(4) + b"N\0\0"], in_stream=True)


def test_rows_of_another_relation_are_the_callers_mistake():
    with pytest.raises(ValueError, match="other relations than 7"):
        RowMessages([ONE, encode(Insert(8, ()))]).decode(PAIR, [INT4, TEXT])
