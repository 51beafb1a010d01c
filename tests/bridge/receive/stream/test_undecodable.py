"""A transaction that the server cannot send has a finish LSN, and a stream that begins behind it has all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
import structlog
from psycopg.conninfo import make_conninfo

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.connection import connect
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.receive.stream import undecodable
from pgbridge.bridge.runtime.errors import StreamError, TargetError
from pgbridge.bridge.sync.copy_reader import copy_rows, copy_spec, range_statement
from pgbridge.protocol.lsn import Lsn
from tests.bridge.receive.streams import Stream, ids, inserted

if TYPE_CHECKING:
    from pgbridge.protocol.codec.walsender import PgoutputOptions

FILTERED = "CREATE PUBLICATION filtered FOR TABLE t WHERE (1 / id > -5)"


@pytest.fixture
def filtered(stream, publisher):
    """A stream whose publication's row filter divides by a column of `t`."""
    publisher.needs(15)
    publisher.execute(FILTERED)
    stream.options["publication_names"] = ["filtered"]
    return stream


def search(stream, publisher, after, sqlstate="22012"):
    return undecodable.find(
        publisher.conninfo, stream.slot_name, stream.options, after, sqlstate, application_name="test"
    )


def finish_lsns(stream, publisher):
    """The commit records of what commits, by another publication, which has no filter."""
    with connect(publisher.conninfo, application_name="test") as connection:
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'p')",
            (stream.slot_name,),
        ).fetchall()
    return [int.from_bytes(data[1:9], "big") for (data,) in rows if data[:1] == b"B"]


@pytest.mark.parametrize("before", ["", "INSERT INTO t VALUES (7, 'sent');"])
def test_a_filter_that_raises(filtered, publisher, before):
    """Also where the server has sent nothing of the transaction, and where others are in progress beside it."""
    stream = filtered
    with publisher.connect() as other, other.transaction():
        other.execute("INSERT INTO t VALUES (3, 'commits later')")
        publisher.execute("INSERT INTO t VALUES (1, 'a')")
        publisher.execute(f"BEGIN; {before} INSERT INTO t VALUES (0, 'b'); INSERT INTO t VALUES (8, 'c'); COMMIT")
        publisher.execute("INSERT INTO t VALUES (2, 'd')")
    stream.again(stream.start_lsn)
    stream.start()
    assert ids(stream.take(1)) == [[1]]
    error = stream.failure()
    assert isinstance(error, StreamError)
    assert "division by zero" in error.message
    stream.receiver.stop()
    culprit = finish_lsns(stream, publisher)[1]
    assert error.finish_lsn == (culprit if before else None)
    assert search(stream, publisher, error.after, error.sqlstate) == culprit
    stream.open(undecodable.behind(Lsn(culprit)))
    stream.start()
    assert ids(stream.take(2)) == [[2], [3]]


def test_a_commit_record_at_the_begin_of_a_page(filtered, publisher):
    """It stands behind the page's header, and the record before ends where the page begins."""
    filtered.receiver.stop()
    after = filtered.start_lsn
    with publisher.connect() as connection:
        for _ in range(20):
            with connection.transaction():
                connection.execute("INSERT INTO t VALUES (0, 'b')")
                (room,), *_ = connection.execute("SELECT 8192 - (pg_current_wal_insert_lsn() - '0/0') % 8192")
                # a message's record has 54 bytes beside the text, and at most seven behind it
                size = int(room) - 56 if room > 64 else int(room) + 8192 - 24 - 56
                connection.execute("SELECT pg_logical_emit_message(true, '', repeat('x', %s))", (size,))
            connection.execute("TRUNCATE t")
            *_, culprit, truncated = finish_lsns(filtered, publisher)
            if culprit % 8192 == 24:
                break
            after = Lsn(truncated)
    assert culprit % 8192 == 24
    assert search(filtered, publisher, after) == culprit
    filtered.open(after)


def test_a_slot_with_two_phase(filtered, publisher):
    """The server may fail at a PREPARE, and the slot's copies at its COMMIT PREPARED, behind what commits between."""
    publisher.query("SELECT pg_create_logical_replication_slot('prepares', 'pgoutput', false, true)")
    publisher.execute("INSERT INTO t VALUES (0, 'b')")
    after = filtered.start_lsn
    arguments = (filtered.options, after, "22012")
    assert undecodable.find(publisher.conninfo, "prepares", *arguments, application_name="test") is None
    assert undecodable.find(publisher.conninfo, filtered.slot_name, *arguments, application_name="test") is not None
    publisher.query("SELECT pg_drop_replication_slot('prepares')")


@pytest.fixture
def catalog(tmp_path):
    """Of a subscription whose origin is at 0/1000, and which is to skip 0/2000."""
    made = Catalog(catalog_path(tmp_path / "state"))
    made.register("shop", enabled=True)
    made.set_slot("shop", slot_name="shop", slot_state="creating", system_identifier="7")
    made.create_origin("shop", Lsn(0x1000), "i", [], 1)
    made.set_skip_lsn("shop", Lsn(0x2000))
    yield made
    made.close()


SHOP = Subscription(name="shop", connection="", publications=("p",), warehouse="lake")
PLAIN: PgoutputOptions = {"proto_version": 1, "publication_names": ["p"]}
STREAMING: PgoutputOptions = {"proto_version": 2, "publication_names": ["p"], "streaming": "on"}


@pytest.mark.parametrize(
    ("options", "begun", "culprit", "passed"),
    [
        (PLAIN, None, 0x2000, True),
        (PLAIN, None, 0x3000, False),
        (PLAIN, 0x2000, None, True),
        (STREAMING, None, 0x2000, False),  # it failed before that commit record, and others commit between
        (STREAMING, 0x2000, None, True),
    ],
)
def test_only_where_the_server_failed_at_the_commit_record(catalog, monkeypatch, options, begun, culprit, passed):
    monkeypatch.setattr(undecodable, "find", lambda *_, **__: Lsn(culprit) if culprit else None)
    error = StreamError("division by zero", "22012", Lsn(0x1000), Lsn(begun) if begun else None)
    assert undecodable.passes(error, SHOP, options, catalog, structlog.get_logger()) is passed
    assert (catalog.remote_lsn("shop"), catalog.skip_lsn("shop")) == (
        (Lsn(0x2008), None) if passed else (Lsn(0x1000), Lsn(0x2000))
    )


def test_a_second_one_with_the_same_words_has_its_own_lsn(catalog, monkeypatch):
    """What was found before is known as long as nothing has moved."""
    asked = iter([Lsn(0x2000), Lsn(0x3000)])
    monkeypatch.setattr(undecodable, "find", lambda *_, **__: next(asked))
    named = []
    for after in (0x1000, 0x1000, 0x2008, 0x2008):
        error = StreamError("division by zero", "22012", Lsn(after))
        undecodable.name_culprit(error, SHOP, PLAIN, catalog, structlog.get_logger())
        catalog.record_error("shop", str(error), counter=None, finish_lsn=error.finish_lsn)
        catalog.advance_origin("shop", Lsn(after))
        named.append(error.finish_lsn)
    assert named == [0x2000, 0x2000, 0x3000, 0x3000]
    assert "pgbridge skip shop --lsn 0/3000" in error.hint


def test_nothing_fails(filtered, publisher):
    """An error that only `streaming` has, or that is over."""
    publisher.execute("INSERT INTO t VALUES (1, 'a')")
    filtered.receiver.stop()
    assert search(filtered, publisher, filtered.start_lsn) is None
    filtered.open(filtered.start_lsn)


@pytest.fixture
def database(publisher, often, tmp_path):
    """Makes databases of an encoding, with a stream of a table whose texts a client of no encoding writes."""
    made = []

    def make(encoding):
        name = f"{publisher.name}_{encoding.lower()}"
        publisher.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        conninfo = make_conninfo(publisher.conninfo, dbname=name, client_encoding=encoding)
        connection = psycopg.connect(conninfo, autocommit=True)
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t")
        stream = Stream(make_conninfo(publisher.conninfo, dbname=name), f"{name}_slot", tmp_path / name)
        made.append((name, connection, stream))
        return connection, stream

    yield make
    for name, connection, stream in made:
        stream.receiver.stop()
        with ReplicationConnection(stream.conninfo, application_name="test") as replication:
            replication.drop_slot(stream.slot_name)  # it waits for the walsender's end
        connection.close()
        publisher.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_sql_ascii_sends_bytes_as_they_are(database):
    """By the stream and by COPY: then `unrepresentable` decides about a value, which the error names."""
    connection, stream = database("SQL_ASCII")
    connection.execute(b"INSERT INTO t VALUES (1, 'caf\xe9'), (2, '\xc3\xa9')")
    stream.start()
    (transaction,) = stream.take(1)
    assert [inserted(row)[1] for row in transaction.rows.messages()] == [b"caf\xe9", "é".encode()]
    with (
        Publisher(stream.conninfo, application_name="test") as publisher,
        ReplicationConnection(stream.conninfo, application_name="test") as replication,
    ):
        (table,) = publisher.tables(["p"])
        snapshot = replication.create_slot("of_copy", temporary=True)
        arguments = {"conninfo": stream.conninfo, "application_name": "test", "snapshot": snapshot.name or ""}
        types = publisher.types([])

        def copied(policy):
            spec = copy_spec(table, types, **arguments, unrepresentable=policy, ranges=[""])
            return [row for batch in copy_rows(spec, range_statement(spec, 0)) for row in batch.to_pylist()]

        assert copied("null") == [{"id": 1, "v": None}, {"id": 2, "v": "é"}]
        with pytest.raises(TargetError, match=r'"public.t": column "v": value .*636166e9.* holds UTF-8 only'):
            copied("error")


def test_a_filter_that_raises_in_a_database_of_bytes(database):
    connection, stream = database("SQL_ASCII")
    connection.execute(FILTERED)
    connection.execute("INSERT INTO t VALUES (0, 'b')")
    stream.receiver.stop()
    stream.options["publication_names"] = ["filtered"]
    assert search(stream, stream, stream.start_lsn) > stream.start_lsn


def test_a_character_that_utf8_has_not(database):
    """Of another encoding: the transaction can be skipped."""
    connection, stream = database("WIN1252")
    connection.execute(b"INSERT INTO t VALUES (1, 'a')")
    connection.execute(b"INSERT INTO t VALUES (2, '\x81')")
    connection.execute(b"INSERT INTO t VALUES (3, 'b')")
    stream.start()
    error = stream.failure()
    assert isinstance(error, StreamError)
    assert 'has no equivalent in encoding "UTF8"' in error.message
    assert error.finish_lsn is not None
    stream.receiver.stop()
    stream.open(undecodable.behind(error.finish_lsn))
    stream.start()
    assert ids(stream.take(1)) == [[3]]
