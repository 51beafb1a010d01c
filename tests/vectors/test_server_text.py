"""What the decoder makes of the recorded bytes is what the server itself says of the same changes.

`test_pgoutput` holds that the decoder gives what stands under `decoded` in the vectors. Here the same messages are
written as test_decoding would write them, and compared with what test_decoding wrote (see `server_text`). The server
has no second account of these, which only the decoder vouches for:

- the values of rows in aborted (sub)transactions: their number, order and LSNs are compared, and that they aborted;
- flags, Stream Start's first_segment, which subtransaction a committed row is from;
- the LSNs and times within messages, but for a logical message's LSN, the end LSNs (`test_pgoutput` compares both
  with XLogData's) and the times of commits and prepares.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import pq

from pgbridge.protocol.codec.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
    Value,
    ValueKind,
)
from pgbridge.protocol.codec.pgoutput import decode
from tests.vectors import load, server_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.vectors.server_text import Account

REWRITTEN = {"publication_v1", "partition_v1"}
"""Here pgoutput sends other operations, columns or tables than the WAL has, from which test_decoding writes."""

INSERT_ONLY = ("public.silent", "public.keyless")
"""Tables of which identity_v1 publishes inserts alone."""

UNQUOTED = {"smallint", "integer", "bigint", "oid", "real", "double precision", "numeric"}
BITS = {"bit", "bit varying"}

CHANGE = re.compile(r"table (.+?): (INSERT|UPDATE|DELETE|TRUNCATE):(.*)", re.DOTALL)
"""test_decoding's line: tables, operation, and what follows."""


class Renderer:
    """Writes messages as test_decoding does, one session's after the other."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._relations: dict[int, Relation] = {}
        self._xid = 0

    def render(self, message: Message) -> str | None:  # noqa: PLR0911 - a case a line
        """Return the line of a message out of a transaction that is not streamed; None where there is none."""
        match message:
            case Relation():
                self._relations[message.relation_id] = message
                return None
            case Begin(xid=xid) | BeginPrepare(xid=xid):
                self._xid = xid
                return f"BEGIN {xid}"
            case Commit(commit_time_us=time_us):
                return f"COMMIT {self._xid} (at {_time(time_us)})"
            case Prepare(gid=gid, xid=xid, prepare_time_us=time_us):
                return f"PREPARE TRANSACTION {_quoted(gid)}, txid {xid} (at {_time(time_us)})"
            case CommitPrepared(gid=gid, xid=xid, commit_time_us=time_us):
                return f"COMMIT PREPARED {_quoted(gid)}, txid {xid} (at {_time(time_us)})"
            case RollbackPrepared(gid=gid, xid=xid, rollback_time_us=time_us):
                return f"ROLLBACK PREPARED {_quoted(gid)}, txid {xid} (at {_time(time_us)})"
            case LogicalMessage():
                content = message.content.decode(errors="backslashreplace")
                return f"{_message(message)} content:{content}"
            case Truncate(relation_ids):
                tables = ", ".join(self._table(relation_id) for relation_id in relation_ids)
                flags = " restart_seqs" * message.restart_identity + " cascade" * message.cascade
                return f"table {tables}: TRUNCATE:{flags or ' (no-flags)'}"
            case Insert() | Update() | Delete():
                return f"table {self._table(message.relation_id)}: {self.row(message)}"
            case _:
                return None

    def row(self, message: Insert | Update | Delete) -> str:
        """Return a row's operation and columns."""
        relation = self._relations[message.relation_id]
        if isinstance(message, Insert):
            return f"INSERT:{self._columns(relation, message.new_tuple, nulls=True)}"
        old = (message.old_tuple if relation.replica_identity == "f" else message.key_tuple) or ()
        old_columns = self._columns(relation, old, nulls=False)
        if isinstance(message, Delete):
            return f"DELETE:{old_columns}"
        new_columns = self._columns(relation, message.new_tuple, nulls=True)
        return f"UPDATE: old-key:{old_columns} new-tuple:{new_columns}" if old else f"UPDATE:{new_columns}"

    def _table(self, relation_id: int) -> str:
        relation = self._relations[relation_id]
        return f"{_identifier(relation.namespace)}.{_identifier(relation.name)}"

    def _columns(self, relation: Relation, values: tuple[Value, ...], *, nulls: bool) -> str:
        return "".join(
            f" {_identifier(column.name)}[{self._account.types[column.type_oid]}]:{self._value(column.type_oid, value)}"
            for column, value in zip(relation.columns, values, strict=bool(values))
            if nulls or value.kind != ValueKind.NULL
        )

    def _value(self, oid: int, value: Value) -> str:
        match value.kind:
            case ValueKind.NULL:
                return "null"
            case ValueKind.UNCHANGED_TOAST:
                return "unchanged-toast-datum"
            case ValueKind.TEXT:
                text = value.data.decode()
            case ValueKind.BINARY:
                text = self._account.texts[oid, value.data]
        regtype = self._account.types[oid]
        if regtype in UNQUOTED:
            return text
        if regtype in BITS:
            return f"B'{text}'"
        if regtype == "boolean":
            return {"t": "true", "f": "false"}[text]
        return _quoted(text)


def _identifier(name: str) -> str:
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _time(time_us: int) -> str:
    time = dt.datetime(2000, 1, 1) + dt.timedelta(microseconds=time_us)  # noqa: DTZ001 - the zone is written below
    text = str(time)
    return (text.rstrip("0") if "." in text else text) + "+00"


def _message(message: LogicalMessage) -> str:
    return f"message: transactional: {int(message.transactional)} prefix: {message.prefix}, sz: {len(message.content)}"


def _streamed(message: Message, xid: int) -> str | None:  # noqa: PLR0911 - a case a line
    """What the streaming slot says of a message of streamed transaction `xid`; None where that is nothing."""
    match message:
        case StreamStart():
            return f"opening a streamed block for transaction TXN {xid}"
        case StreamStop():
            return f"closing a streamed block for transaction TXN {xid}"
        case Insert() | Update() | Delete():
            return f"streaming change for TXN {xid}"
        case Truncate():
            return f"streaming truncate for TXN {xid}"
        case LogicalMessage():
            return f"streaming {_message(message)}"
        case StreamAbort(subxid=subxid):
            return f"aborting streamed (sub)transaction TXN {subxid}"
        case StreamCommit(xid=xid, commit_time_us=time_us):
            return f"committing streamed transaction TXN {xid} (at {_time(time_us)})"
        case StreamPrepare(gid=gid, xid=xid, prepare_time_us=time_us):
            return f"preparing streamed transaction TXN {_quoted(gid)}, txid {xid} (at {_time(time_us)})"
        case _:
            return None


def messages(path: Path) -> Iterator[tuple[load.Vector, Message]]:
    """Read a file's vectors and decode them."""
    for vector in load.vectors(path):
        yield vector, decode(vector.data, in_stream=vector.in_stream)


def published(lines: list[tuple[str, str]], path: Path) -> list[tuple[str, str]]:
    """Of test_decoding's lines, keep what pgoutput sends: the tables that a file's Relation messages announce."""
    relations = [message for _, message in messages(path) if isinstance(message, Relation)]
    announced = {f"{_identifier(relation.namespace)}.{_identifier(relation.name)}" for relation in relations}
    kept: list[tuple[str, str]] = []
    for lsn, line in lines:
        change = CHANGE.match(line)
        if change is None:
            kept.append((lsn, line))
            continue
        tables = [table for table in change[1].split(", ") if table in announced]
        insert_only = path.stem == "identity_v1" and change[1] in INSERT_ONLY
        if tables and (change[2] == "INSERT" or not insert_only):
            kept.append((lsn, f"table {', '.join(tables)}: {change[2]}:{change[3]}"))
    return kept


def without_empty(lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Leave out transactions without a change, which PostgreSQL 14's pgoutput sends and later ones do not.

    The LSNs of beginnings go: pgoutput's is that of the first change that it sends, or 0/0 before an Origin.
    """
    kept: list[tuple[str, str]] = []
    for lsn, line in lines:
        if line.startswith("COMMIT ") and kept and kept[-1][1].startswith("BEGIN "):
            kept.pop()
        else:
            kept.append(("" if line.startswith(("BEGIN ", "opening ")) else lsn, line))
    return kept


STREAMED = [path for path in load.FILES if "stream" in path.stem or "parallel" in path.stem]
PLAIN = [path for path in load.FILES if path not in STREAMED and path.stem not in REWRITTEN]
BINARY = [path for path in load.FILES if "binary" in path.stem or "parallel" in path.stem]


@pytest.mark.parametrize("path", PLAIN, ids=load.name_of)
def test_changes(path):
    """Transactions, messages, truncations and rows: the same lines in the same order, at the same LSNs."""
    account = server_text.read(path)
    renderer = Renderer(account)
    rendered = [
        (str(vector.wal_start), load.shortened(line))
        for vector, message in messages(path)
        if (line := renderer.render(message)) is not None
    ]
    assert without_empty(rendered) == without_empty(published(account.plain, path))


@pytest.mark.parametrize("path", STREAMED, ids=load.name_of)
def test_streams(path):
    """The order of blocks, changes and ends; and each change as the slot without streaming says it at its LSN.

    That slot leaves out what is aborted, so each change without a line belongs to a transaction that is aborted.
    """
    account = server_text.read(path)
    renderer = Renderer(account)
    plain = {(lsn, line) for lsn, line in account.plain if CHANGE.match(line) or line.startswith("message")}
    committed = {lsn for lsn, _ in plain}
    aborted = {int(line.rpartition(" ")[2]) for _, line in account.streamed if line.startswith("aborting")}
    sequence: list[tuple[str, str]] = []
    sent: set[str] = set()
    xid = 0
    for vector, message in messages(path):
        lsn = str(vector.wal_start)
        if isinstance(message, StreamStart):
            xid = message.xid
        line = renderer.render(message)
        streamed = _streamed(message, xid) if vector.in_stream or line is None else None
        if vector.in_stream and line is not None:
            change = (lsn, load.shortened(line))
            assert change in plain or (lsn not in committed and getattr(message, "xid", None) in aborted)
            if not isinstance(message, LogicalMessage):  # whose LSN is that of the record behind it
                sent.add(lsn)
        if streamed is not None or line is not None:
            sequence.append((lsn, streamed or load.shortened(str(line))))
    expected = [
        (lsn, line)
        for lsn, line in published(account.streamed, path)
        if lsn in sent or not line.startswith("streaming change")
    ]
    assert without_empty(sequence) == without_empty(expected)
    assert sent


@pytest.mark.parametrize("path", [path for path in load.FILES if path.stem in REWRITTEN], ids=load.name_of)
def test_rewritten_changes(path):
    """Each column of a row is one of the row in the WAL at the same LSN."""
    account = server_text.read(path)
    renderer = Renderer(account)
    lines = [(lsn, line) for lsn, line in account.plain if CHANGE.match(line)]
    rows = 0
    for vector, message in messages(path):
        renderer.render(message)
        if isinstance(message, Insert | Update | Delete):
            (line,) = (line for lsn, line in lines if lsn == str(vector.wal_start))
            marks = {"INSERT:", "UPDATE:", "DELETE:", "old-key:", "new-tuple:"}
            assert set(renderer.row(message).split()) - marks <= set(line.split())
            rows += 1
    assert rows > 0


@pytest.mark.parametrize("path", load.FILES, ids=load.name_of)
def test_definitions(path):
    """Relation, Type and Origin say what the catalog said; a publication's column list may leave columns out."""
    account = server_text.read(path)
    for _, message in messages(path):
        match message:
            case Relation(relation_id, namespace, name, identity, columns):
                sent = tuple((column.name, column.type_oid, column.typmod, column.is_key) for column in columns)
                known = [relation for relation in account.relations if relation[0] == relation_id]
                assert {relation[:4] for relation in known} >= {(relation_id, namespace, name, identity)}
                if path.stem == "publication_v1":
                    assert any(set(sent) <= set(relation[4]) for relation in known)
                else:
                    assert (relation_id, namespace, name, identity, sent) in known
            case Type(oid, namespace, name):
                assert (oid, namespace or "pg_catalog", name) in account.type_names
            case Origin(commit_lsn, name):
                assert (name, str(commit_lsn)) in account.origins
            case _:
                pass


@pytest.mark.parametrize("path", BINARY, ids=load.name_of)
def test_psycopg_reads_both_forms_alike(path):
    """The text that stands above for a binary value is its text for psycopg, too, where it knows the type."""
    compared = 0
    for (oid, binary), text in server_text.read(path).texts.items():
        read_text, read_binary = (
            psycopg.adapters.get_loader(oid, format_) for format_ in (pq.Format.TEXT, pq.Format.BINARY)
        )
        if read_text is not None and read_binary is not None:
            assert repr(_loaded(read_text(oid), text.encode())) == repr(_loaded(read_binary(oid), binary))
            compared += 1
    assert compared > 0


def _loaded(loader: psycopg.abc.Loader, data: bytes) -> object:
    try:
        return loader.load(data)
    except psycopg.DataError:
        return psycopg.DataError
