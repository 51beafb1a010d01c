"""The server's side: hashes under a snapshot, what the stream has since, and rows that the stream tells of."""

from __future__ import annotations

from collections import Counter

import pytest

from pgbridge.bridge.receive.publisher import Publisher as Server
from pgbridge.bridge.runtime.errors import PublisherError, VerifyError
from pgbridge.bridge.sync.table_reading import Pace
from pgbridge.bridge.verify import source_table
from pgbridge.bridge.verify.source import Source
from pgbridge.bridge.verify.source_table import SourceTable
from pgbridge.bridge.verify.tables import BUCKET_BITS, FINE_BITS, VerifiedColumn, VerifiedTable, row_hash
from pgbridge.bridge.verify.window import UNCHANGED, TableWindow, Window
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.types import resolve

END = Lsn((1 << 63) - 1)


@pytest.fixture
def server(publisher):
    publisher.execute("""
        CREATE TABLE t (id int PRIMARY KEY, note text, hidden int); ALTER TABLE t ALTER note SET STORAGE EXTERNAL;
        INSERT INTO t SELECT n, repeat(md5(n::text), 100), 0 FROM generate_series(1, 50) n;
        CREATE PUBLICATION pub FOR TABLE t (id, note) WHERE (id < 1000)""")
    with Server(publisher.conninfo, application_name="test") as opened:
        yield opened


def source(publisher):
    return Source(publisher.conninfo, application_name="test")


def verified(server, opened):
    (published,) = server.tables(["pub"])
    types = [resolve(column.type_oid, column.typmod) for column in published.columns]
    columns = [
        VerifiedColumn(column.name, type_, type_.arrow) for column, type_ in zip(published.columns, types, strict=True)
    ]
    declarations = opened.declarations(published.relid)
    key = ("id",) if any(one.name == "id" for one in columns) else ()
    table = VerifiedTable(published, "/t", tuple(columns), key, declarations, hash=row_hash(opened.version))
    return SourceTable(opened, table)


def test_a_snapshot_stays(publisher, server):
    with source(publisher) as opened:
        table = verified(server, opened)
        if lock := table.extent():
            before = table.buckets(lock, (), lambda _: None)
            publisher.execute("DELETE FROM t WHERE id = 1; UPDATE t SET note = 'x' WHERE id = 2")
            assert table.buckets(lock, (), lambda _: None) == before
            rows = table.rows(lock, list(before), ())
            assert (len(rows), sum(count for count, *_ in before.values())) == (50, 50)
            sums: Counter[int] = Counter()
            for (_, hashed), number in rows.items():
                sums[table.table.bucket_of(hashed)] += hashed * number
            assert dict(sums) == {bucket: total for bucket, (_, total, _) in before.items()}
            one = next(iter(before))
            fine = table.buckets(lock, (), lambda _: None, [one], FINE_BITS)
            assert {bucket >> (FINE_BITS - BUCKET_BITS) for bucket in fine} == {one}
            assert sum(total for _, total, _ in fine.values()) == before[one][1]
            assert sum(number for _, _, number in before.values()) == sum(range(1, 51))
            assert table.with_keys([(7,), (8,), (70,), (1 << 40,)]).total() == 2
            assert table.rows(lock, list(fine), (), FINE_BITS) == table.rows(lock, [one], ())
            left_out = next(iter(rows))[0]
            without = table.buckets(lock, [left_out], lambda _: None)
            assert sum(count for count, *_ in without.values()) == 49
            assert list(table.texts([left_out], [(number,) for number in range(51)])) == list(table.texts([left_out]))
            ((key, values),) = table.texts([left_out])
            assert (key, len(values)) == (left_out, 2)


def test_rows_as_the_stream_ends_them(publisher, server):
    """They have the hashes that a later snapshot says, those with values that the stream left out, too.

    A child's row with the same key is none of the table's.
    """
    publisher.execute("CREATE TABLE child () INHERITS (t); INSERT INTO child VALUES (1, 'of the child', 0)")
    with source(publisher) as opened:
        table = verified(server, opened)
        publisher.execute("""
            UPDATE t SET hidden = 1 WHERE id = 1;
            UPDATE t SET id = 100 WHERE id = 2;
            UPDATE t SET note = 'it''s new' WHERE id = 3;
            DELETE FROM t WHERE id = 4;
            INSERT INTO t VALUES (200, NULL, 0), (2000, 'beyond the filter', 0);
            UPDATE t SET id = 3000 WHERE id = 5""")
        window = Window({("public", "t"): ("id",)}, opened.lsn, END)
        window.read(opened.changes(server.flush_lsn(), ["pub"], {}))
        touched = window.tables["public", "t"]
        ended = table.ended(touched, touched.rows)
        assert {key[0]: row is not None for key, (_, row) in ended.items()} == {
            "1": True,
            "2": False,
            "100": True,
            "3": True,
            "4": False,
            "200": True,
            "5": False,
        }
        with source(publisher) as later:
            later_table = SourceTable(later, table.table)
            lock = later_table.extent()
            buckets = later_table.buckets(lock, (), lambda _: None)
            rows = set(later_table.rows(lock, list(buckets), ()))
        for key, (key_hash, row_hash) in ended.items():
            assert ((key_hash, row_hash) in rows) is (row_hash is not None), key
        assert list(table.hashes(("id", "note"), [("200", None)])) == [ended["200",]]


def test_a_key_that_is_null(publisher, server):
    """PostgreSQL 18 lets an identity have one that is older than its NOT NULL constraint, which is NOT VALID."""
    publisher.execute("""
        CREATE TABLE nulls (id int, note text, n int); INSERT INTO nulls VALUES (NULL, 'a', 0), (7, 'b', 0);
        ALTER PUBLICATION pub SET TABLE nulls""")
    with source(publisher) as opened:
        table = verified(server, opened)
        extent = table.extent()
        buckets = table.buckets(extent, (), lambda _: None)
        assert sorted(number for _, _, number in buckets.values()) == [0, 7]
        rows = table.rows(extent, list(buckets), ())
        window = TableWindow(("id", "note", "n"), {(None,): [None, UNCHANGED, "0"]})
        (ended,) = table.ended(window, window.rows).values()
        assert ended in rows


def test_rows_of_domains(publisher, server):
    """A row that is gone has no value that a domain without NULL could take; nor do rows from before its CHECK."""
    publisher.execute("""
        CREATE DOMAIN named AS varchar(10) NOT NULL; CREATE DOMAIN code AS named;
        CREATE TABLE coded (id int PRIMARY KEY, code code, n int);
        INSERT INTO coded VALUES (1, 'old', 0), (2, 'old', 0);
        ALTER DOMAIN code ADD CHECK (VALUE <> 'old') NOT VALID;
        ALTER PUBLICATION pub SET TABLE coded""")
    with source(publisher) as opened:
        table = verified(server, opened)
        publisher.execute("DELETE FROM coded WHERE id = 1; INSERT INTO coded VALUES (3, 'new', 0)")
        window = Window({("public", "coded"): ("id",)}, opened.lsn, END)
        window.read(opened.changes(server.flush_lsn(), ["pub"], {}))
        touched = window.tables["public", "coded"]
        touched.rows["2",] = ["2", "old", "0"]
        ended = table.ended(touched, touched.rows)
        assert {key[0]: row is not None for key, (_, row) in ended.items()} == {"1": False, "2": True, "3": True}
        extent = table.extent()
        assert ended["2",] in set(table.rows(extent, list(table.buckets(extent, (), lambda _: None)), ()))


def test_a_table_with_many_columns(publisher, server):
    """A SELECT has at most 1664 expressions, and each value is asked for in two forms."""
    columns = [f"c{number}" for number in range(900)]
    publisher.execute(f"""
        CREATE TABLE wide (id int PRIMARY KEY, {", ".join(f"{name} int" for name in columns)});
        INSERT INTO wide (id, c0, c899) VALUES (1, 5, 7);
        ALTER PUBLICATION pub SET TABLE wide""")
    with source(publisher) as opened:
        table = verified(server, opened)
        ((key, _),) = table.rows(table.extent(), range(1 << BUCKET_BITS), ())
        ((found, values),) = table.texts([key])
    assert (found, [text for _, text in values]) == (key, ["1", "5", *[None] * 898, "7"])


def test_a_refused_statement_ends_the_attempt_and_a_lost_connection_all(publisher):
    with source(publisher) as opened:
        with pytest.raises(VerifyError, match="division by zero"), opened.attempt():
            list(opened.query("SELECT 1 / 0"))
        ((pid,),) = opened.query("SELECT pg_backend_pid()")
        publisher.query("SELECT pg_terminate_backend(%s, 10000)", (pid,))
        with pytest.raises(PublisherError), opened.attempt():
            list(opened.query("SELECT 1"))


@pytest.fixture
def answers(monkeypatch):
    """The rows of each statement."""
    got: list[list[object]] = []
    query = Source.query

    def recorded(opened, statement, parameters=None):
        got.append(list(query(opened, statement, parameters)))
        return got[-1]

    monkeypatch.setattr(Source, "query", recorded)
    return got


def test_many_large_rows_of_the_stream_are_hashed_in_several_statements(publisher, server, answers, monkeypatch):
    with source(publisher) as opened:
        table = verified(server, opened)
        rows = [(str(number), str(number) * 100) for number in range(50)]
        at_once = list(table.hashes(("id", "note"), rows))
        for characters, statements in ((1, 50), (1 << 20, 1)):
            answers.clear()
            monkeypatch.setattr(source_table, "_CHARACTERS_AT_ONCE", characters)
            assert (list(table.hashes(("id", "note"), rows)), len(answers)) == (at_once, statements)


def test_equal_rows_are_counted_by_the_server(publisher, server, answers):
    publisher.execute("""
        CREATE TABLE bag (a int); INSERT INTO bag SELECT n % 2 FROM generate_series(1, 1000) n;
        ALTER PUBLICATION pub SET TABLE bag""")
    with source(publisher) as opened:
        table = verified(server, opened)
        extent = table.extent()
        answers.clear()
        rows = table.rows(extent, range(1 << BUCKET_BITS), ())
    assert (sorted(rows.values()), sum(map(len, answers))) == ([500, 500], 2)


def test_what_a_slot_would_send(publisher, server):
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (publisher.name,))
    publisher.execute("INSERT INTO t VALUES (300, 'a', 0)")
    with source(publisher) as opened:
        for _ in range(2):  # it is not consumed
            window = Window({("public", "t"): ("id",)}, Lsn(0), END)
            window.read(opened.waiting(publisher.name, opened.lsn, ["pub"], {}))
            assert window.tables["public", "t"].rows == {("300",): ["300", "a"]}
        with pytest.raises(PublisherError, match="cannot read what the stream has"):
            list(opened.waiting("no_such", opened.lsn, ["pub"], {}))


def test_what_a_slot_with_two_phase_commit_would_send(publisher, server):
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", (publisher.name,))
    with publisher.connect() as connection:
        for gid, number in (("kept", 400), ("taken back", 401)):
            connection.execute("BEGIN")
            connection.execute(f"INSERT INTO t VALUES ({number}, 'a', 0)")
            connection.execute(f"PREPARE TRANSACTION '{publisher.name} {gid}'")
        publisher.execute(f"ROLLBACK PREPARED '{publisher.name} taken back'")
        with pytest.raises(VerifyError, match=r"a transaction that was open 0\.1 s ago has not ended"):
            Source(publisher.conninfo, application_name="test", patience_s=0.1)
        publisher.execute(f"COMMIT PREPARED '{publisher.name} kept'")
    with source(publisher) as opened:
        window = Window({("public", "t"): ("id",)}, Lsn(0), END)
        window.read(opened.waiting(publisher.name, opened.lsn, ["pub"], {}))
        assert window.tables["public", "t"].rows == {("400",): ["400", "a"]}


def test_pace():
    slept: list[float] = []
    Pace(None, slept.append).read(1 << 30, 0.0)
    Pace(100.0, slept.append).read(1000, 4.0)
    Pace(100.0, slept.append).read(1000, 11.0)
    assert slept == [6.0]


def test_a_table_that_is_rewritten_after_the_snapshot_is_not_read(publisher, server):
    """The snapshot shows no rows of it, which must not be taken for the truth."""
    publisher.execute("""
        CREATE TABLE altered (id int PRIMARY KEY); INSERT INTO altered VALUES (1);
        CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (10); INSERT INTO parted VALUES (1);
        CREATE TABLE held (id int PRIMARY KEY);
        ALTER PUBLICATION pub ADD TABLE altered, parted, held""")
    tables = {table.name: table for table in server.tables(["pub"])}
    names = ("t", "altered", "part", "held")
    with source(publisher) as opened:
        publisher.execute("ALTER TABLE altered ALTER id TYPE bigint; TRUNCATE part")
        publisher.execute("VACUUM FULL t")  # whose rows the snapshot still shows
        with publisher.connect() as other, other.transaction():
            other.execute("LOCK TABLE held")
            found = opened.hold(tables[name] for name in names)
    assert {name: found.get(tables[name].relid, "").partition(" (")[0] for name in names} == {
        "t": "",
        "altered": "it was rewritten meanwhile",
        "part": "it was rewritten meanwhile",
        "held": "another session has locked it",
    }


@pytest.mark.parametrize(("publish", "leaves_out"), [("insert, update, delete, truncate", False), ("insert", True)])
def test_a_publication_that_leaves_out_kinds_of_changes(publisher, server, publish, leaves_out):
    publisher.execute(f"ALTER PUBLICATION pub SET (publish = '{publish}')")
    with source(publisher) as opened:
        assert opened.leaves_out_changes(["pub"]) is leaves_out
