"""A spool file is read back in order, in chunks; a damaged file is refused by name."""

from __future__ import annotations

import itertools
import json
import resource
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.track import spool
from pgbridge.bridge.track.spool import SpoolFile, SpoolFolder
from pgbridge.protocol.bulk.message_array import ChunkedMessages, MessageArray
from pgbridge.protocol.codec.messages import Column, Insert, LogicalMessage, Relation, Truncate, Value, ValueKind
from pgbridge.protocol.codec.pgoutput import encode
from pgbridge.protocol.codec.walsender import XLogData, encode_xlog_data
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Ending, Transaction

RELATION = Relation(7, "public", "t", "d", (Column("id", 23, -1, is_key=True),))
OTHER = Relation(8, "public", "u", "d", ())


def row(number: int, relation_id: int = 7) -> bytes:
    """A row message of a streamed transaction as it is received."""
    insert = Insert(relation_id, (Value(ValueKind.TEXT, str(number).encode()),), 725)
    return encode_xlog_data(XLogData(Lsn(1), Lsn(1), 0, encode(insert)))


def message(number: int) -> LogicalMessage:
    return LogicalMessage(transactional=True, lsn=Lsn(number), prefix="p", content=b"c", xid=725)


def read(file: SpoolFile, **arguments) -> list[bytes | LogicalMessage | Relation | Truncate]:
    """Everything in a file, in order."""
    found: list[Any] = []
    for messages, events in file.chunks(in_stream=True, **arguments):
        rows = messages.messages()
        before = 0
        for position, event in events:
            found += [*rows[before:position], event]
            before = position
        found += rows[before:]
    return found


@settings(deadline=None, max_examples=50)
@given(
    parts=st.lists(st.lists(st.one_of(st.just("row"), st.just("event")), max_size=8), max_size=4),
    chunk_bytes=st.sampled_from([1, 100, 1 << 20]),
)
def test_what_is_appended_is_read_in_order(tmp_path_factory, parts, chunk_bytes):
    """Whatever lay in memory at a time, and however much is read at a time."""
    transaction = Transaction(725, in_stream=True)
    file = SpoolFolder(tmp_path_factory.mktemp("spool")).file_for(transaction)
    expected: list[Any] = []
    for part in parts:
        for kind in part:
            if kind == "row":
                expected.append(row(len(expected)))
                transaction.rows.extend(MessageArray.of(expected[-1:]))
            else:
                event = message(len(expected) + 1)
                transaction.events.append((len(transaction.rows), event))
                expected.append(event)
        file.append(transaction)
        assert (transaction.rows, transaction.events) == (ChunkedMessages(), [])
    assert read(file, chunk_bytes=chunk_bytes) == expected if parts else not file.path.exists()
    assert file.rows == sum(part.count("row") for part in parts)


def test_chunks_are_bounded(tmp_path):
    transaction = Transaction(725, in_stream=True, rows=ChunkedMessages([row(n) for n in range(120_000)]))
    file = SpoolFolder(tmp_path).file_for(transaction)
    file.append(transaction)
    chunks = list(file.chunks(in_stream=True, chunk_bytes=1 << 20))
    assert [len(rows) for rows, _ in chunks] == [50_000, 50_000, 20_000]


def test_a_large_row_is_written_without_a_copy_and_read_with_one(tmp_path):
    """It may have hundreds of megabytes."""
    size = 32 << 20
    insert = Insert(7, (Value(ValueKind.TEXT, b"a" * size),), 725)
    transaction = Transaction(
        725, rows=ChunkedMessages([encode_xlog_data(XLogData(Lsn(1), Lsn(1), 0, encode(insert)))])
    )
    transaction.in_stream = True
    file = SpoolFolder(tmp_path).file_for(transaction)
    tracemalloc.start()
    try:
        file.append(transaction)
        written_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        ((rows, _),) = file.chunks(in_stream=True)
        kept_bytes, read_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows.longest().size_bytes > size
    assert written_bytes < 1 << 20
    assert kept_bytes < 1.1 * size
    assert read_bytes < 2.1 * size


@pytest.fixture
def kept(tmp_path) -> tuple[SpoolFolder, Transaction, SpoolFile]:
    """A prepared transaction that was kept, and its file."""
    folder = SpoolFolder(tmp_path / "spool")
    transaction = Transaction(
        725, Lsn(0x100), 42, Lsn(0x130), origin_name="o", relations=(RELATION, OTHER), in_stream=True, gid="it's"
    )
    transaction.ending = Ending.PREPARE
    transaction.aborted = {726, 727}
    transaction.rows.extend(MessageArray.of([row(1), row(2)]))
    transaction.events.append((1, message(5)))
    file = folder.file_for(transaction)
    file.keep(transaction)
    return folder, transaction, file


def test_a_status_update_may_go_out_between_blocks(tmp_path, monkeypatch):
    """By bytes, whatever the rows' size is; a larger row is a block by itself."""
    monkeypatch.setattr(spool, "_BLOCK_BYTES", 200)
    transaction = Transaction(725, in_stream=True)
    rows = [row(n) for n in range(20)]
    large = row(10**400)
    transaction.rows.extend(MessageArray.of([*rows, large, row(1)]))
    file, calls = SpoolFolder(tmp_path).file_for(transaction), []
    file.append(transaction, lambda: calls.append(file.rows))
    most = 200 // len(rows[-1])
    assert all(later - before <= most for before, later in itertools.pairwise([0, *calls]))
    assert read(file) == [*rows, large, row(1)]


def test_a_kept_transaction_is_loaded_as_it_was(kept, tmp_path):
    """With the definitions of the relations that it has changes of, and of no others."""
    _, transaction, file = kept
    assert transaction.relations == (RELATION,)
    (loaded,) = SpoolFolder(tmp_path / "spool", [file.path.name]).prepared()
    assert loaded == transaction
    assert isinstance(loaded.spooled, SpoolFile)
    assert read(loaded.spooled) == [row(1), message(5), row(2)]


def test_a_prepared_transaction_that_an_earlier_version_kept(kept, tmp_path, monkeypatch):
    """Its file does not say how it ended: only prepared ones were kept."""
    folder, _, _ = kept
    other = Transaction(726, Lsn(0x200), 42, Lsn(0x230), gid="g", ending=Ending.PREPARE)
    file, dumps = folder.file_for(other), json.dumps

    def without(footer):
        return dumps({key: value for key, value in footer.items() if key not in {"ending", "noted"}})

    monkeypatch.setattr("pgbridge.bridge.track.spool.json.dumps", without)
    file.keep(other)
    assert SpoolFile.load(file.path) == other


def test_truncates_count_as_changes(tmp_path):
    transaction = Transaction(725, relations=(RELATION, OTHER), gid="g", events=[(0, Truncate((8,)))])
    SpoolFolder(tmp_path).file_for(transaction).keep(transaction)
    assert transaction.relations == (OTHER,)


def test_files_of_a_process_that_is_gone_are_removed(kept, tmp_path):
    folder, _, file = kept
    other = Transaction(9, rows=ChunkedMessages([row(3)]), in_stream=True)
    folder.file_for(other).append(other)
    SpoolFolder(tmp_path / "spool", [file.path.name])
    assert list((tmp_path / "spool").iterdir()) == [file.path]


def test_a_new_file_never_takes_the_name_of_a_kept_one(kept, tmp_path):
    _, transaction, file = kept
    again = SpoolFolder(tmp_path / "spool", [file.path.name])
    other = Transaction(transaction.xid)
    assert again.file_for(other).path != file.path


def test_discard_twice(kept):
    _, _, file = kept
    file.discard()
    file.discard()
    assert not file.path.exists()


def test_damage_is_found_wherever_it_is(kept):
    """Each byte of it changed, each length cut: never another transaction than was kept, always the file's name."""
    _, transaction, file = kept
    whole = file.path.read_bytes()
    damaged = [whole[:cut] for cut in range(len(whole))]
    damaged += [whole[:i] + bytes([whole[i] ^ 0x55]) + whole[i + 1 :] for i in range(len(whole))]
    for content in damaged:
        file.path.write_bytes(content)
        found = loaded_or_refused(file)
        assert found == (transaction, [row(1), message(5), row(2)]) or str(file.path) in str(found)


def loaded_or_refused(file: SpoolFile) -> Any:
    """The kept transaction as it is read, or the error's text."""
    try:
        loaded = SpoolFile.load(file.path)
        assert isinstance(loaded.spooled, SpoolFile)
        return loaded, read(loaded.spooled)
    except StateError as error:
        return str(error)


def test_missing_file(tmp_path):
    with pytest.raises(StateError, match=r"spool file .*/gone cannot be read: No such file"):
        SpoolFolder(tmp_path, ["gone"]).prepared()


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "spool").write_text("a file")
    with pytest.raises(StateError, match="spool file .* cannot be written"):
        SpoolFolder(tmp_path / "spool")


def test_a_disk_without_room_is_tried_again(tmp_path):
    """An unfinished write leaves nothing behind: the next stream's folder is empty."""
    transaction = Transaction(725, rows=ChunkedMessages([row(n) for n in range(2000)]), in_stream=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # EFBIG instead of ENOSPC
        with pytest.raises(StateError, match="spool file .* cannot be written: File too large") as caught:
            SpoolFolder(tmp_path / "spool").file_for(transaction).append(transaction)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.retry
    SpoolFolder(tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []
