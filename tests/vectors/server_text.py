"""The server's own account of what a recording holds, which owes nothing to `protocol`'s decoder.

While `record` records a scenario, the server says the same in its own words: test_decoding, an output plugin of
PostgreSQL, renders the same WAL as text, and the catalog gives names, types, keys and values. A file in
`pg*/server/` has one of these on a line:

    plain      what test_decoding says of a transaction that has ended; "lsn" is XLogData's
    streamed   the same from a slot that streams: it gives the order of the blocks, without the values
    relation   a table; "columns" are [name, type's OID, typmod, whether it belongs to the replica identity]
    type       a type that a column has: "regtype" is format_type's, "name" that of the type or a domain's base type
    origin     a replication origin, with the "lsn" of its last transaction
    text       a value as the type's output function writes it; "binary" is the send function's, "oid" the type
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.vectors.load import packed, shortened, unpacked

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

_RELATIONS = """
SELECT c.oid::int8, n.nspname, c.relname, c.relreplident, attname, atttypid::int8, atttypmod, c.relreplident = 'f' OR
    attnum = ANY ((SELECT indkey FROM pg_index WHERE indrelid = c.oid
        AND CASE c.relreplident WHEN 'd' THEN indisprimary WHEN 'i' THEN indisreplident ELSE false END)::int2[]) IS TRUE
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute ON attrelid = c.oid
WHERE c.relkind IN ('r', 'p') AND c.oid >= 16384 AND attnum > 0 AND NOT attisdropped ORDER BY c.oid, attnum"""

_TYPES = """
SELECT DISTINCT t.oid::int8, format_type(t.oid, NULL), n.nspname, named.typname
FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
    JOIN pg_type named ON named.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
    JOIN pg_namespace n ON n.oid = named.typnamespace
WHERE attrelid IN (SELECT oid FROM pg_class WHERE relkind IN ('r', 'p') AND oid >= 16384) AND attnum > 0
    AND NOT attisdropped ORDER BY 1"""

_ORIGINS = "SELECT external_id, remote_lsn::text FROM pg_replication_origin_status ORDER BY external_id"

Entry = dict[str, Any]


def catalog(connection: psycopg.Connection[Any], *, values: bool) -> list[Entry]:
    """Ask for tables, types and origins, as the connection's transaction sees them; and for all values."""
    relations: dict[int, Entry] = {}
    for oid, namespace, name, identity, *column in connection.execute(_RELATIONS):
        empty = {"relation": oid, "namespace": namespace, "name": name, "identity": identity, "columns": []}
        relations.setdefault(oid, empty)["columns"].append(column)
    entries = list(relations.values())
    for oid, regtype, namespace, name in connection.execute(_TYPES):
        entries.append({"type": oid, "regtype": regtype, "namespace": namespace, "name": name})
    entries += ({"origin": name, "lsn": lsn} for name, lsn in connection.execute(_ORIGINS))
    if values:
        for relation in relations.values():
            entries += _values(connection, relation)
    return entries


def _values(connection: psycopg.Connection[Any], relation: Entry) -> list[Entry]:
    names = ", ".join(_quoted(name) for name, *_ in relation["columns"])
    query = f"SELECT {names} FROM {_quoted(relation['namespace'])}.{_quoted(relation['name'])} ORDER BY 1"
    texts, binaries = (connection.execute(query.encode(), binary=binary).pgresult for binary in (False, True))
    assert texts is not None
    assert binaries is not None
    entries: list[Entry] = []
    for row in range(texts.ntuples):
        for index, (_, oid, *_) in enumerate(relation["columns"]):
            text, binary = texts.get_value(row, index), binaries.get_value(row, index)
            if text is not None and binary is not None:
                entries.append({"oid": oid, "text": text.decode(), "binary": packed(binary)})
    return entries


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def rendering(kind: str, lsn: str, payload: bytes) -> Entry:
    """Return the entry of one message of test_decoding; bytes that are no UTF-8 are escaped."""
    return {"lsn": lsn, kind: shortened(payload.decode(errors="backslashreplace"))}


class Account(NamedTuple):
    """A file, read.

    Attributes:
        plain: LSN and text of each of test_decoding's messages.
        streamed: The same of the slot that streams; empty where none did.
        relations: (OID, namespace, name, replica identity, columns) of each table, at any time.
        types: Each type's format_type, by OID.
        type_names: (OID, namespace, name) of each type, or of a domain's base type.
        origins: (name, LSN) of each origin after each step.
        texts: The text of each value, by the type's OID and its binary form.
    """

    plain: list[tuple[str, str]]
    streamed: list[tuple[str, str]]
    relations: list[tuple[int, str, str, str, tuple[tuple[str, int, int, bool], ...]]]
    types: dict[int, str]
    type_names: set[tuple[int, str, str]]
    origins: set[tuple[str, str]]
    texts: dict[tuple[int, bytes], str]


def read(path: Path) -> Account:
    """Read the account that belongs to a file of messages."""
    account = Account([], [], [], {}, set(), set(), {})
    text = (path.parent / "server" / path.name).read_text(encoding="utf-8")
    for entry in map(json.loads, text.splitlines()):
        match entry:
            case {"lsn": lsn, "plain": text}:
                account.plain.append((lsn, text))
            case {"lsn": lsn, "streamed": text}:
                account.streamed.append((lsn, text))
            case {"relation": oid, "namespace": namespace, "name": name, "identity": identity, "columns": columns}:
                account.relations.append((oid, namespace, name, identity, tuple(tuple(column) for column in columns)))
            case {"type": oid, "regtype": regtype, "namespace": namespace, "name": name}:
                account.types[oid] = regtype
                account.type_names.add((oid, namespace, name))
            case {"origin": name, "lsn": lsn}:
                account.origins.add((name, lsn))
            case {"oid": oid, "text": text, "binary": binary}:
                account.texts[oid, unpacked(binary)] = text
            case _:
                raise ValueError(f"{path}: no entry of an account: {entry}")
    return account
