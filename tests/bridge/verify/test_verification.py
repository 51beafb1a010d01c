"""`pgbridge verify` finds what was planted by hand, and nothing where nothing differs."""

from __future__ import annotations

import io
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.config.config import Config, Subscription
from pgbridge.bridge.lake import writes
from pgbridge.bridge.publication.published_table import PublishedTable
from pgbridge.bridge.runtime.errors import VerifyError
from pgbridge.bridge.spark.session import fork
from pgbridge.bridge.sync.table_reading import Pace
from pgbridge.bridge.verify import command, table_comparison, target, verification
from pgbridge.bridge.verify.comparison import Verdict
from pgbridge.bridge.verify.source import Source
from pgbridge.bridge.verify.tables import VerifiedTable
from pgbridge.bridge.verify.target import TargetVersion
from pgbridge.bridge.verify.window import Window
from pgbridge.protocol.codec.messages import Begin, Column, Commit, Insert, Relation, Value, ValueKind
from pgbridge.protocol.codec.pgoutput import encode
from pgbridge.protocol.lsn import Lsn
from tests.bridge.subscribed import end, running
from tests.documented import block_with
from tests.oracle.load import Load
from tests.oracle.memory_tables import MemoryTables
from tests.protocol.sampled import OWN_TYPES, SAMPLES

TABLE = VerifiedTable(PublishedTable(1, "public", "t", "r", "d", (), ()), "/t", (), ("id",))
PAGE = (Path(__file__).parents[3] / "docs" / "verify.md").read_text(encoding="utf-8")


def printed(document):
    """What the command prints, without the line of the LSN."""
    output = io.StringIO()
    Console(file=output, width=120).print(command.render(document))
    return [line.rstrip() for line in output.getvalue().splitlines()[1:]]


def verified(bridge, *tables, **options):
    @contextmanager
    def started(*_):
        yield bridge.spark

    config = Config(state_dir=bridge.folder / "state", subscription={bridge.subscription.name: bridge.subscription})
    return command.collect(config, [bridge.subscription], tables=tables, started=started, **options)


def tables_of(document):
    return {table["relation"]: table for one in document["subscriptions"] for table in one["tables"]}


def test_planted_differences(spark, publisher, pipeline, monkeypatch):
    publisher.execute("""
        CREATE TABLE t (id int PRIMARY KEY, note text, price numeric(8, 2), raw bytea);
        INSERT INTO t SELECT n, 'note ' || n, n / 7.0, '\\x00ff' FROM generate_series(1, 2000) n;
        CREATE TABLE bag (a int, b text);
        INSERT INTO bag SELECT n % 5, 'x' FROM generate_series(1, 50) n;
        CREATE TABLE vip (id int PRIMARY KEY, name text, level int);
        INSERT INTO vip SELECT n, 'name', n FROM generate_series(1, 100) n;
        CREATE TABLE more (id int, part smallint, note text, PRIMARY KEY (part, id));
        INSERT INTO more VALUES (1, 1, 'a');
        CREATE TABLE twice (id int PRIMARY KEY, note text); INSERT INTO twice VALUES (1, 'a');
        CREATE TABLE orders (id int PRIMARY KEY, total numeric(8, 2));
        INSERT INTO orders SELECT n, 99.99 FROM generate_series(1, 8000) n;
        CREATE PUBLICATION pub FOR TABLE t, bag, vip (id, level) WHERE (level > 50), orders, more, twice""")
    bridge = pipeline()
    bridge.catch_up()
    equal = verified(bridge, "bag", "vip")
    assert equal["exit_code"] == command.EQUAL
    assert {name: table["rows"] for name, table in tables_of(equal).items()} == {"public.bag": 50, "public.vip": 50}
    t, bag, vip, orders = (f"delta.`{bridge.path(name)}`" for name in ("t", "bag", "vip", "orders"))
    for statement in (
        f"DELETE FROM {t} WHERE id = 17",
        f"INSERT INTO {t} VALUES (5000, 'planted', 1, NULL)",
        f"UPDATE {t} SET note = 'changed' WHERE id = 99",
        f"UPDATE {t} SET raw = NULL, price = 0 WHERE id = 100",
        f"INSERT INTO {bag} VALUES (0, 'x')",
        f"DELETE FROM {vip} WHERE id = 60",
        f"UPDATE {orders} SET total = 120 WHERE id = 2",
        f"DELETE FROM {orders} WHERE id = 7",
        f"INSERT INTO delta.`{bridge.path('more')}` VALUES (-7, 2, 'only here')",
        f"INSERT INTO delta.`{bridge.path('twice')}` VALUES (1, 'a')",
    ):
        spark.sql(statement).collect()
    document = verified(bridge)
    found = tables_of(document)
    assert document["exit_code"] == command.DIFFERENT
    assert {name: table["differences"] for name, table in found.items()} == {
        "public.t": {"missing": 1, "extra": 1, "changed": 2},
        "public.bag": {"extra": 1},
        "public.vip": {"missing": 1},
        "public.orders": {"changed": 1, "missing": 1},
        "public.more": {"extra": 1},
        "public.twice": {"extra": 1},
    }
    shown = {(one["outcome"], one["key"]["id"]): one["columns"] for one in found["public.t"]["shown"]}
    assert shown == {
        ("missing", "17"): {},
        ("extra", "5000"): {},
        ("changed", "99"): {"note": {"source": "note 99", "delta": "changed"}},
        ("changed", "100"): {
            "price": {"source": "14.29", "delta": "0.00"},
            "raw": {"source": "\\x00ff", "delta": None},
        },
    }
    assert found["public.bag"]["shown"][0]["key"] == {"a": "0", "b": "x"}
    assert found["public.more"]["shown"] == [{"outcome": "extra", "key": {"id": "-7", "part": "2"}, "columns": {}}]
    monkeypatch.setattr(table_comparison, "lone_keys", lambda *_: [])
    for most, partly in ((10, False), (1, True)):  # buckets with more rows are divided, and only so many rows looked at
        monkeypatch.setattr(table_comparison, "_ROWS_AT_ONCE", most)
        again = tables_of(verified(bridge, "t"))["public.t"]
        assert (again["partly"], again["differences"] == found["public.t"]["differences"]) == (partly, not partly)
    monkeypatch.undo()
    of_the_page = verified(bridge, "orders")
    assert list(tables_of(of_the_page)) == ["public.orders"]
    lines = [line.replace(bridge.subscription.name, "shop_pub") for line in printed(of_the_page)]
    assert lines == block_with(PAGE, "$ pgbridge verify shop_pub --table orders --max-rate 50MB")[1:]
    repaired = tables_of(verified(bridge, repaired=True))
    assert {name: table["repaired"] for name, table in repaired.items()} == {
        "public.t": True,
        "public.bag": False,
        "public.vip": True,
        "public.orders": True,
        "public.more": True,
        "public.twice": False,
    }
    assert repaired["public.twice"]["unrepaired"].startswith("Delta has several rows with one key")
    again = tables_of(verified(bridge))
    assert {name: table["differences"] for name, table in again.items()} == {
        "public.t": {},
        "public.bag": {"extra": 1},
        "public.vip": {},
        "public.orders": {},
        "public.more": {},
        "public.twice": {"extra": 1},
    }
    with pytest.raises(VerifyError, match='no subscription follows table "nothing"'):
        verified(bridge, "nothing")


def test_without_a_daemon_what_is_not_applied_yet_is_left_out(publisher, pipeline):
    publisher.execute("""
        CREATE TABLE t (id int PRIMARY KEY, note text); INSERT INTO t SELECT n, 'a' FROM generate_series(1, 20) n;
        CREATE TABLE bag (a int); INSERT INTO bag VALUES (1), (1); ALTER TABLE bag REPLICA IDENTITY FULL;
        CREATE PUBLICATION pub FOR TABLE t, bag""")
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute(
        "UPDATE t SET note = 'b' WHERE id < 4; DELETE FROM t WHERE id = 9; INSERT INTO t VALUES (30, 'c')"
    )
    publisher.execute("INSERT INTO bag VALUES (7); DELETE FROM bag WHERE a = 1")
    document = verified(bridge)
    assert document["exit_code"] == command.EQUAL
    assert tables_of(document)["public.t"]["left_out"] == 5
    bridge.spark.sql(f"UPDATE delta.`{bridge.path('t')}` SET note = 'z' WHERE id = 12").collect()
    assert tables_of(verified(bridge))["public.t"]["differences"] == {"changed": 1}


def verification_of(**options):
    """Without Spark and a catalog."""
    nothing: Any = None
    spark: Any = MemoryTables()
    subscription = Subscription(name="shop", connection="", publications=("pub",), warehouse="/lake")
    return verification.Verification(spark, nothing, subscription, nothing, lambda: False, Pace(), 0.0, 0, **options)


@pytest.mark.parametrize("running", [False, True])
def test_only_without_a_daemon_the_windows_memory_is_bounded(monkeypatch, running):
    """A daemon's is bounded by the WAL. Without one the subscription's slot may have any number of changes."""
    columns = (Column("id", 23, -1, is_key=True), Column("note", 25, -1, is_key=False))
    relation = Relation(1, "public", "t", "d", columns)
    row = Insert(1, (Value(ValueKind.TEXT, b"1"), Value(ValueKind.TEXT, b"a")))
    stream = [encode(each) for each in (Begin(Lsn(19), 0, 7), relation, row, row, Commit(0, Lsn(19), Lsn(20), 0))]
    source: Any = SimpleNamespace(changes=lambda *_: stream, waiting=lambda *_: stream)
    lsns = (Lsn(10), Lsn(50)) if running else (Lsn(50), Lsn(10))

    def rows():
        window = verification_of()._window(source, *lsns, [TABLE])
        return window.tables["public", "t"].rows

    assert rows() == {("1",): ["1", "a"] if running else None}
    monkeypatch.setattr(verification, "MOST_BYTES", 2000)
    with nullcontext() if running else pytest.raises(VerifyError, match="too many rows have changed"):
        rows()


def test_a_mistake_with_one_table_is_logged_and_ends_no_others(monkeypatch):
    def version_at(*_, **__):
        raise TypeError("no number\nat all")

    monkeypatch.setattr(verification, "version_at", version_at)
    nothing: Any = None
    with capture_logs() as logs:
        verdict = verification_of()._verdict(
            Verdict("public.t", "/t"), nothing, TABLE, Window({}, Lsn(1), Lsn(2)), Lsn(1), Lsn(2), "app"
        )
    assert verdict == Verdict("public.t", "/t", why="an unexpected error, TypeError: no number")
    assert [(event["relation"], str(event["exc_info"])) for event in logs] == [("public.t", "no number\nat all")]


@pytest.mark.parametrize("located", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_differences_inside_and_outside_of_what_the_stream_has(publisher, pipeline, monkeypatch, located):
    """Of a row that changed since the snapshot the source's values are the stream's, with what that leaves out."""
    publisher.execute("""
        CREATE TABLE t (id int PRIMARY KEY, note text, large text STORAGE EXTERNAL);
        INSERT INTO t SELECT n, 'a', repeat('x', 3000) FROM generate_series(1, 20) n;
        CREATE PUBLICATION pub FOR TABLE t""")
    bridge = pipeline()
    bridge.catch_up()
    read: list[object] = []
    texts = TargetVersion.texts

    def later(*arguments, **options):
        opened = Source(*arguments, **options)
        publisher.execute(
            "UPDATE t SET note = 'b' WHERE id = 3; INSERT INTO t VALUES (30, 'c'); DELETE FROM t WHERE id = 5"
        )
        bridge.catch_up()
        table = f"delta.`{bridge.path('t')}`"
        for statement in (
            f"UPDATE {table} SET note = 'a' WHERE id = 3",  # as it was
            f"UPDATE {table} SET note = 'z' WHERE id = 12",
            f"DELETE FROM {table} WHERE id = 30",
            f"INSERT INTO {table} VALUES (5, 'a', NULL)",
        ):
            bridge.spark.sql(statement).collect()
        return opened

    def recorded(target, keys, numbers=()):
        read.append(sorted(numbers))
        return texts(target, keys, numbers)

    monkeypatch.setattr(verification, "Source", later)
    monkeypatch.setattr(TargetVersion, "texts", recorded)
    if not located:
        monkeypatch.setattr(table_comparison, "lone_keys", lambda *_: [])
    table = tables_of(verified(bridge))["public.t"]
    assert {(one["outcome"], one["key"]["id"]): one["columns"] for one in table["shown"]} == {
        ("changed", "3"): {"note": {"source": "b", "delta": "a"}},
        ("changed", "12"): {"note": {"source": "a", "delta": "z"}},
        ("missing", "30"): {},
        ("extra", "5"): {},
    }
    # read by their keys, without a scan, if all are known
    assert read == [[(3,), (5,), (12,), (30,)] if located else []]


@pytest.mark.soak  # 30 s; the tests above have what the stream may have, one by one
def test_beside_a_running_daemon_under_load(publisher, pipeline):
    """Hot rows, key changes, large values that the stream leaves out, and rows without keys."""
    publisher.execute("""
        CREATE TABLE hot (id int PRIMARY KEY, n int, large text);
        ALTER TABLE hot ALTER large SET STORAGE EXTERNAL;
        INSERT INTO hot SELECT n, 0, repeat(md5(n::text), 200) FROM generate_series(1, 30) n;
        CREATE TABLE bag (a int, b text); ALTER TABLE bag REPLICA IDENTITY FULL;
        INSERT INTO bag SELECT n % 3, 'b' FROM generate_series(1, 30) n;
        CREATE PUBLICATION pub FOR TABLE hot, bag""")
    bridge = pipeline()

    def change(connection, number):
        connection.execute("UPDATE hot SET n = n + 1 WHERE id %% 10 = %s", (number % 10,))
        connection.execute("UPDATE hot SET id = id + 1000 WHERE id = (SELECT min(id) FROM hot)")
        connection.execute("INSERT INTO bag VALUES (%s, 'c')", (number % 3,))
        connection.execute("DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)")

    worker = running(bridge)
    try:
        with locked(bridge.folder / "state"), Load(publisher, change, pause_s=0.02):
            documents = [verified(bridge, patience_s=60) for _ in range(3)]
    finally:
        end(worker)
    assert worker.error is None
    for document in documents:
        assert {name: (table["could_not"], table["shown"]) for name, table in tables_of(document).items()} == {
            "public.hot": (None, []),
            "public.bag": (None, []),
        }
        assert document["exit_code"] == command.EQUAL
    assert documents[0]["subscriptions"][0]["lsn"] != documents[2]["subscriptions"][0]["lsn"]


def test_every_type_has_the_same_text_on_both_sides(publisher, pipeline):
    """The values of `tests.protocol.sampled`, those that Delta holds and those that become NULL."""
    types = list(SAMPLES)
    columns = {f"c{number}": declaration for number, declaration in enumerate(types)}
    with publisher.connect() as connection, connection.transaction():
        for statement in OWN_TYPES:
            connection.execute(statement)
        listed = ", ".join(f"{name} {declaration}" for name, declaration in columns.items())
        connection.execute(f"CREATE TABLE public.every (id int PRIMARY KEY, {listed})")
        most = max(map(len, SAMPLES.values()))
        for number in range(most + 1):
            values = [SAMPLES[one][number] if number < len(SAMPLES[one]) else None for one in types]
            given = ", ".join(f"%s::{declaration}" for declaration in types)
            connection.execute(f"INSERT INTO public.every VALUES (%s, {given})", (number, *values))
    publisher.execute("CREATE PUBLICATION pub FOR TABLE public.every")
    bridge = pipeline(unrepresentable="null")
    bridge.catch_up()
    document = verified(bridge)
    table = tables_of(document)["public.every"]
    wrong = {name for one in table["shown"] for name in one["columns"]}
    assert (table["could_not"], {columns[name] for name in wrong}, table["differences"]) == (None, set(), {})
    assert table["rows"] == most + 1


def test_tables_that_are_not_compared_as_a_whole(publisher, pipeline):
    """The cases are tables of one subscription; what is wrong with one does not end the others.

    A row of `refused` is older than a constraint of its domain, and PostgreSQL does not take its text then. What Delta
    reads as NULL in a partition column is NULL on both sides. VARIANT is left out, and said so.
    """
    publisher.execute("""
        CREATE DOMAIN code AS text;
        CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1);
        CREATE TABLE refused (codes code[]); ALTER TABLE refused REPLICA IDENTITY FULL;
        INSERT INTO refused VALUES ('{old}');
        ALTER DOMAIN code ADD CHECK (VALUE <> 'old') NOT VALID;
        CREATE TABLE days (id int PRIMARY KEY, day date);
        INSERT INTO days VALUES
            (1, '2024-02-29'), (2, '5874897-12-31'), (3, 'infinity'), (4, NULL), (5, '0001-01-01');
        CREATE TABLE documents (doc jsonb); INSERT INTO documents VALUES ('{}');
        CREATE TABLE areas (id int PRIMARY KEY, area text, doc jsonb);
        INSERT INTO areas VALUES (1, '', '{}'), (2, 'north', '[1.50]'), (3, '__HIVE_DEFAULT_PARTITION__', NULL);
        CREATE PUBLICATION pub FOR TABLE a, refused, days, documents, areas""")
    layout = {"public.areas": {"partition_by": ["area"]}}
    bridge = pipeline(unrepresentable="null", target__jsonb="variant", target__adopt=True, tables=layout)
    path = bridge.folder / "lake" / "public" / "days"
    bridge.spark.sql(f"CREATE TABLE delta.`{path}` (id int, day timestamp_ntz) USING delta").collect()
    bridge.catch_up()
    publisher.execute("DELETE FROM refused")
    document = verified(bridge)
    found = tables_of(document)
    assert document["exit_code"] == command.UNVERIFIED
    assert "violates check constraint" in found["public.refused"]["could_not"]
    assert found["public.documents"]["could_not"] == "it has no column that can be compared"
    assert {
        name: (found[f"public.{name}"]["equal"], found[f"public.{name}"]["rows"]) for name in ("a", "days", "areas")
    } == {
        "a": (True, 1),
        "days": (True, 5),
        "areas": (True, 3),
    }
    assert found["public.areas"]["left_out_columns"] == ["doc"]
    assert any("yes (without doc: VARIANT)" in line for line in printed(document))
    bridge.spark.sql(f"UPDATE delta.`{bridge.path('areas')}` SET area = 'south' WHERE id = 1").collect()
    table = tables_of(verified(bridge, "areas", repaired=True))["public.areas"]
    assert table["differences"] == {"changed": 1}
    assert (table["repaired"], table["unrepaired"]) == (
        False,
        'column "doc" of table "public.areas" is not compared, so not repaired',
    )


def test_rows_that_another_writer_changes_meanwhile_are_not_repaired(publisher, pipeline, monkeypatch):
    publisher.execute("""
        CREATE TABLE t (id int PRIMARY KEY, note text);
        INSERT INTO t SELECT n, 'note' FROM generate_series(1, 5) n; CREATE PUBLICATION pub FOR TABLE t""")
    bridge = pipeline()
    bridge.catch_up()
    table = f"delta.`{bridge.path('t')}`"
    bridge.spark.sql(f"UPDATE {table} SET note = 'wrong' WHERE id < 3").collect()
    waiting = [f"UPDATE {table} SET note = 'theirs' WHERE id = 1"]

    other = fork(bridge.spark)  # without the repair's stamp

    def merge_into(*args):
        if waiting:
            other.sql(waiting.pop()).collect()
        return writes.merge_into(*args)

    monkeypatch.setattr(target, "merge_into", merge_into)
    refused = tables_of(verified(bridge, repaired=True))["public.t"]
    assert (refused["repaired"], refused["unrepaired"]) == (
        False,
        'another writer changed rows of table "public.t" while they were compared',
    )
    assert sorted(row["note"] for row in bridge.rows("t")) == ["note"] * 3 + ["theirs", "wrong"]
    assert tables_of(verified(bridge, repaired=True))["public.t"]["repaired"]
    assert {row["note"] for row in bridge.rows("t")} == {"note"}
