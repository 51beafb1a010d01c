"""Schema changes on the publisher: at the end the Delta tables have its columns and rows, without anybody's help.

The oracle is the publisher's own tables: a native subscriber would have to be altered by hand, in step.
"""

from __future__ import annotations

import datetime as dt
import random
import threading
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import psycopg
import pyarrow as pa
import pytest

from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes, Subscribed
from pgbridge.bridge.catalog import refresh, reset
from pgbridge.bridge.effects.events import INSERT, UPDATE
from pgbridge.bridge.evolution.alterations import AddColumn, RenameColumn
from pgbridge.bridge.evolution.tracker import DefinitionTracker
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.runtime.errors import ApplyError, NeedsResync
from pgbridge.bridge.targets.target import Target, target_schema
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec.messages import Begin, Commit, Relation, Type
from pgbridge.protocol.codec.pgoutput import decode
from pgbridge.protocol.codec.walsender import XLogData, encode_xlog_data
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.stream.transactions import Transaction
from pgbridge.protocol.values.types import resolve
from tests.oracle.delta import differences
from tests.oracle.native import text_rows

if TYPE_CHECKING:
    from collections.abc import Callable

T = """
CREATE TABLE t (
    id int PRIMARY KEY, a text, n smallint, f real, d date, m numeric(6,2), gone text, v varchar(10), padded char(4)
);
INSERT INTO t SELECT i, 'a' || i, i, i + 0.1, '2024-01-01', i + 0.25, 'g' || i, 'v', 'p'
    FROM generate_series(1, 4) AS i;
"""
U = """
CREATE TABLE u (id int PRIMARY KEY, x int, old text);
INSERT INTO u SELECT i, i, 'old' FROM generate_series(1, 3) AS i;
"""

BEFORE = (
    "INSERT INTO t (id, a) VALUES (10, 'before'); UPDATE t SET a = 'updated before' WHERE id = 1",
    "INSERT INTO u VALUES (10, 10, 'before')",
)
IN_ONE_TRANSACTION = """
BEGIN;
INSERT INTO t (id, a, gone) VALUES (20, 'in the transaction', 'still there');
ALTER TABLE t ALTER n TYPE int, ALTER f TYPE double precision, ALTER d TYPE timestamp, ALTER m TYPE numeric(12,3),
    ALTER v TYPE varchar(80), ALTER id TYPE bigint;
INSERT INTO t (id, n, f, m, d, v) VALUES (3000000000, 70000, 0.1, 123456.125, '2024-01-01 12:00', repeat('v', 60));
UPDATE t SET id = id + 4000000000 WHERE id IN (4, 20);
ALTER TABLE t ADD c int DEFAULT 7, ADD at timestamp DEFAULT '2024-05-06 07:08:09.5', ADD list int[] DEFAULT '{1,NULL}';
UPDATE t SET c = NULL WHERE id = 2;
INSERT INTO t (id, c) VALUES (21, 1), (22, NULL);
ALTER TABLE t RENAME a TO b;
UPDATE t SET b = 'by its new name' WHERE id = 3;
INSERT INTO t (id, b) VALUES (23, 'by its new name');
ALTER TABLE t DROP gone;
INSERT INTO t (id) VALUES (24);
UPDATE t SET id = 25 WHERE id = 24;
DELETE FROM t WHERE id = 21;
COMMIT
"""
"""Types first: the server rewrites the table for them, and its catalog forgets constant defaults from before."""
COMES_AND_GOES = """
BEGIN;
ALTER TABLE u ADD c int DEFAULT 1;
INSERT INTO u VALUES (20, 20, 'o', 5);
ALTER TABLE u DROP c;
INSERT INTO u VALUES (21, 21, 'o');
ALTER TABLE u ADD c text DEFAULT 'two';
INSERT INTO u VALUES (22, 22, 'o', 'three');
ALTER TABLE u DROP old, ADD "with space, and Ä" text DEFAULT '';
INSERT INTO u VALUES (23, 23, 'c', NULL);
UPDATE u SET id = 30 WHERE id = 1;
COMMIT
"""
IN_LATER_BATCHES = (
    # names go round, one in other letters
    "ALTER TABLE t RENAME b TO w; ALTER TABLE t RENAME v TO b; ALTER TABLE t RENAME w TO v",
    'ALTER TABLE t RENAME m TO "M"',
    "INSERT INTO t (id, b, v, \"M\") VALUES (40, 'b', 'v', 1.125)",
    "UPDATE u SET id = 31 WHERE id = 30; ALTER TABLE u ALTER x TYPE numeric(20,2)",
    "INSERT INTO u VALUES (41, 0.25, 'c', '')",
)
"""Two of the columns that were dropped are still in the targets: keys change with them."""


@pytest.fixture
def equal(publisher):
    """Whether a table is the publisher's, in the publisher's columns."""

    def compare(bridge, table):
        query = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        columns = [name for (name,) in publisher.query(query, (table,))]
        assert differences(bridge.spark, bridge.path(table), publisher, table, columns) == []

    return compare


def test_every_kind_of_change(publisher, pipeline, equal):
    """In one batch and in one transaction; then in later lives, which know the columns from before."""
    publisher.execute(T + U + "CREATE PUBLICATION pub FOR ALL TABLES")
    bridge = pipeline()
    bridge.catch_up()
    for statements in (*BEFORE, IN_ONE_TRANSACTION, COMES_AND_GOES):
        publisher.execute(statements)
    bridge.catch_up()
    equal(bridge, "t")
    equal(bridge, "u")
    rows = {row["id"]: row for row in bridge.rows("t")}
    assert {id_: rows[id_]["gone"] for id_ in (1, 4000000004, 4000000020, 25)} == {
        1: "g1",
        4000000004: "g4",
        4000000020: "still there",
        25: None,
    }
    others = {row["id"]: (row["old"], row["c_dropped"]) for row in bridge.rows("u")}
    assert (others[30], others[20], others[23]) == (("old", None), ("o", 5), (None, None))
    for statements in IN_LATER_BATCHES:
        publisher.execute(statements)
    bridge.catch_up()
    equal(bridge, "t")
    equal(bridge, "u")
    others = {row["id"]: (row["old"], row["c_dropped"]) for row in bridge.rows("u")}
    assert others[31] == ("old", None)
    # what cannot be followed makes the table wait, with the remedy; what came before it is applied
    publisher.execute(
        "INSERT INTO u VALUES (50, 0, 'c', ''); ALTER TABLE u ALTER c DROP DEFAULT, ALTER c TYPE int USING length(c)"
    )
    publisher.execute("INSERT INTO u VALUES (51, 0, 1, '')")
    with pytest.raises(
        NeedsResync, match='column "c" of table "public.u" changed its type from text to int4'
    ) as caught:
        bridge.catch_up()
    assert caught.value.hint == f"copy the table afresh: pgbridge refresh {publisher.name} --resync public.u"
    assert 50 in {row["id"] for row in bridge.rows("u")}


FOLLOWED = """
CREATE TABLE again (id int PRIMARY KEY, c int, d text DEFAULT 'd'); INSERT INTO again VALUES (1, 10);
CREATE TABLE away (id int PRIMARY KEY, a int, c int); INSERT INTO away VALUES (1, 1, 1);
CREATE TABLE twins (a int, b int); ALTER TABLE twins REPLICA IDENTITY FULL; INSERT INTO twins VALUES (1, 1);
CREATE TABLE shape (id int PRIMARY KEY); CREATE TABLE doomed (id int PRIMARY KEY); CREATE TABLE old_name (id int);
"""
WHILE_STOPPED = (
    "INSERT INTO again VALUES (2, 20); UPDATE again SET c = 11 WHERE id = 1",
    "ALTER TABLE again DROP c, ADD c int DEFAULT 7",
    "INSERT INTO again (id) VALUES (3); UPDATE again SET c = 12 WHERE id = 1",
    "INSERT INTO twins VALUES (1, 1), (1, 1), (2, 2); DELETE FROM twins WHERE ctid = (SELECT min(ctid) FROM twins)",
    "ALTER TABLE twins RENAME a TO x; ALTER TABLE twins RENAME b TO a; ALTER TABLE twins RENAME x TO b",
    "UPDATE twins SET a = 5 WHERE ctid = (SELECT max(ctid) FROM twins); DELETE FROM twins WHERE a = 1",
    "ALTER TABLE twins ADD PRIMARY KEY (a)",
    "UPDATE twins SET a = 6; INSERT INTO twins (a) VALUES (7)",
    "ALTER TABLE shape ADD p point",
    "INSERT INTO shape VALUES (1, '(1,2)')",
    "ALTER TABLE shape DROP p",
    "INSERT INTO shape VALUES (2)",
    "INSERT INTO doomed VALUES (1), (2)",
    "DROP TABLE doomed",
    "INSERT INTO old_name VALUES (1)",
)
"""Each is a transaction of its own, and the catalog is ahead of all of them when they are streamed."""


@pytest.mark.parametrize("own_definitions", [False, True], ids=["server", "definitions"])
def test_all_of_it_while_the_bridge_is_stopped(publisher, memory_pipeline, equal, tmp_path, own_definitions):
    """A column replaced by its like, or unpublished for a while; a later key; a type of text only; a dropped table.

    A column that was replaced twice is not among them: which one the stream speaks of cannot be told, only warned of.
    """
    tables = "again, twins, shape, doomed, old_name"
    publisher.execute(FOLLOWED)
    publisher.execute(f"CREATE PUBLICATION pub FOR TABLE {tables}, away")
    file = tmp_path / "definitions.sql"
    file.write_text(f"CREATE PUBLICATION pub FOR TABLE {tables}, away;")
    bridge = memory_pipeline(**({"publication_definitions": str(file)} if own_definitions else {}))
    bridge.catch_up()
    for statement in WHILE_STOPPED:
        publisher.execute(statement)
    if own_definitions:
        publisher.execute("ALTER TABLE old_name RENAME TO new_name")
    else:
        others = tables.replace("doomed, ", "")
        publisher.execute(f"ALTER PUBLICATION pub SET TABLE {others}, away (id, a)")
        publisher.execute("INSERT INTO away VALUES (2, 2, 2); UPDATE away SET a = 10 WHERE id = 1")
        publisher.execute(f"ALTER PUBLICATION pub SET TABLE {others}, away")
        publisher.execute("INSERT INTO away VALUES (3, 3, 3); UPDATE away SET c = 20 WHERE id = 2")
    bridge.catch_up()
    for table in ("again", "twins", "shape", "away"):
        equal(bridge, table)
    assert sorted(row["id"] for row in bridge.rows("doomed")) == [1, 2]
    assert [row["id"] for row in bridge.rows("old_name")] == [1]
    assert set(bridge.rows("away")[0]) == {"id", "a", "c"}


@pytest.mark.parametrize("copied", ["a table", "all tables"])
def test_a_dropped_column_that_a_copy_left_is_not_the_new_one_of_its_name(publisher, memory_pipeline, copied):
    """Existing rows have the new one's default, as they would have without the copy."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, b int); INSERT INTO t VALUES (1, 1)")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE t")
    bridge = memory_pipeline()
    bridge.catch_up()
    name = bridge.subscription.name
    publisher.execute("ALTER TABLE t DROP b; INSERT INTO t VALUES (2)")
    if copied == "a table":
        refresh.ask(bridge.catalog, name, [("public", "t")], copy_data=True)
    else:
        reset.start_afresh(bridge.catalog, name, {("public", "t")})
        publisher.query("SELECT pg_drop_replication_slot(%s)", (bridge.subscription.slot_name,))
    bridge.catch_up()
    publisher.execute("ALTER TABLE t ADD b int DEFAULT 7; INSERT INTO t VALUES (3, 3)")
    bridge.catch_up()
    assert sorted((row["id"], row["b"]) for row in bridge.rows("t")) == [(1, 7), (2, 7), (3, 3)]


def test_a_renamed_column_comes_first_by_a_partition_that_is_new(publisher, memory_pipeline, tmp_path):
    """The table is its root's by definitions, so what is known of the root counts for a partition without a past."""
    definitions = tmp_path / "publications.sql"
    definitions.write_text("CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root);")
    publisher.execute("""
        CREATE TABLE t (id int, part int, gone int, b text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
        CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);
        INSERT INTO t VALUES (1, 1, 0, 'x'); ALTER TABLE t DROP gone; CREATE PUBLICATION pub FOR TABLE t;
    """)
    bridge = memory_pipeline(publication_definitions=str(definitions))
    bridge.catch_up()
    publisher.execute("ALTER TABLE t RENAME b TO c; CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2)")
    publisher.execute("INSERT INTO t VALUES (2, 2, 'y')")
    bridge.catch_up()
    assert sorted((row["id"], row["c"]) for row in bridge.rows("t")) == [(1, "x"), (2, "y")]
    publisher.execute("ALTER TABLE t ADD b int DEFAULT 7; INSERT INTO t VALUES (3, 2, 'z')")
    bridge.catch_up()
    publisher.execute("CREATE TABLE t3 PARTITION OF t FOR VALUES IN (3); INSERT INTO t VALUES (4, 3, 'new', 4)")
    publisher.execute("INSERT INTO t VALUES (5, 1, 'old', 5)")
    bridge.catch_up()
    expected = [(1, "x", 7), (2, "y", 7), (3, "z", 7), (4, "new", 4), (5, "old", 5)]
    assert sorted((row["id"], row["c"], row["b"]) for row in bridge.rows("t")) == expected
    assert all("b_dropped" not in row for row in bridge.rows("t"))


def test_a_table_that_is_not_copied_has_a_column_renamed(publisher, memory_pipeline):
    """Before the stream brings its first change."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, b text); CREATE PUBLICATION pub FOR TABLE t")
    bridge = memory_pipeline()
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (1, 'x')")
    bridge.catch_up()
    name = bridge.subscription.name
    bridge.subscription = bridge.subscription.model_copy(update={"copy_data": False})
    reset.forget(bridge.catalog, name)
    bridge.catalog.register(name, enabled=True)
    bridge.catalog.set_enabled(name, enabled=True)
    publisher.query("SELECT pg_drop_replication_slot(%s)", (bridge.subscription.slot_name,))
    bridge.catch_up()
    publisher.execute("ALTER TABLE t RENAME b TO c; INSERT INTO t VALUES (2, 'y')")
    bridge.catch_up()
    assert sorted((row["id"], row["c"]) for row in bridge.rows("t")) == [(1, "x"), (2, "y")]


def test_strict_is_postgresqls_own_rule(publisher, memory_pipeline):
    """A column that the target lacks is an error; one that the publisher lacks is left alone."""
    publisher.execute(U + "CREATE PUBLICATION pub FOR ALL TABLES")
    bridge = memory_pipeline(schema_evolution="strict")
    bridge.catch_up()
    publisher.execute("ALTER TABLE u DROP old")
    publisher.execute("INSERT INTO u VALUES (5, 5); UPDATE u SET id = 6 WHERE id = 1")
    bridge.catch_up()
    assert {row["id"]: row["old"] for row in bridge.rows("u")} == {2: "old", 3: "old", 5: None, 6: "old"}
    publisher.execute('ALTER TABLE u ADD c int, ADD "D" int')
    publisher.execute("INSERT INTO u VALUES (7)")
    with pytest.raises(
        ApplyError, match='logical replication target relation "public.u" is missing replicated columns: "c", "D"'
    ):
        bridge.catch_up()


class Altered:
    """A table `r` whose rows and columns change at random; the same seed makes the same statements.

    Some things are left out, because they leave their mark in warnings instead of in values: in one transaction, a name
    that several columns have, and a new column that is renamed; and a type for which the server rewrites the table
    before the stream has told of a new column's default. With `reuses_names`, few names go from column to column, of
    the same type and of others, and each statement is a transaction of its own.
    """

    TYPES = ("int", "text", "numeric(10,2)", "date")
    VALUES: ClassVar = {
        "bigint": "{0}0000000000",
        "text": "'t{0}'",
        "date": "'2024-01-01'::date + {0}",
        "timestamp": "'2024-01-01 12:00'::timestamp + {0} * interval '1 hour'",
    }
    WIDER: ClassVar = {
        "int": "bigint",
        "bigint": "numeric(30,0)",
        "numeric(10,2)": "numeric(16,4)",
        "date": "timestamp",
    }

    def __init__(self, publisher, seed, *, reuses_names=False):
        self.reuses_names = reuses_names
        self.random = random.Random(seed)
        self.publisher = publisher
        self.columns: dict[str, str] = {}
        self.names: set[str] = set()
        self.new: set[str] = set()
        self.keys: set[int] = set()
        self.next_key = 0
        self.rewrites = False
        publisher.execute("CREATE TABLE r (id int PRIMARY KEY)")

    def value(self, type_):
        if self.random.random() < 0.2:
            return "NULL"
        return self.VALUES.get(type_, "{0}").format(self.random.randrange(99))

    def next_life(self, number):
        """All so far has been streamed."""
        self.rewrites = number % 2 == 1
        self.names = set(self.columns)
        self.new.clear()

    def transaction(self):
        steps = [self.random.choice((self.change, self.change, self.change, self.alter)) for _ in range(4)]
        if self.reuses_names:
            for step in steps:
                self.publisher.execute(step())
            return
        self.publisher.execute("; ".join(["BEGIN", *filter(None, (step() for step in steps)), "COMMIT"]))

    def change(self):
        some = self.random.sample(sorted(self.columns), self.random.randrange(len(self.columns) + 1))
        kind = self.random.choice(["insert", "insert", "update", "delete", "key"])
        if kind == "insert" or not self.keys:
            self.next_key += 1
            self.keys.add(self.next_key)
            values = [str(self.next_key), *(self.value(self.columns[name]) for name in some)]
            return f"INSERT INTO r ({', '.join(['id', *some])}) VALUES ({', '.join(values)})"
        key = self.random.choice(sorted(self.keys))
        if kind == "update" and some:
            assignments = ", ".join(f"{name} = {self.value(self.columns[name])}" for name in some)
            return f"UPDATE r SET {assignments} WHERE id = {key}"
        self.keys.remove(key)
        if kind == "key":
            self.next_key += 1
            self.keys.add(self.next_key)
            return f"UPDATE r SET id = {self.next_key} WHERE id = {key}"
        return f"DELETE FROM r WHERE id = {key}"

    def alter(self):
        names = sorted(self.columns)
        kind = self.random.choice(["add", "add", "drop", "rename", "type"])
        name = self.random.choice("abc" if self.reuses_names else "abcdefghij")
        if self.reuses_names:
            self.names, self.new = set(self.columns), set()
        if kind == "add" or not names:
            type_ = self.random.choice(self.TYPES)
            if name in self.names:
                return ""
            self.columns[name] = type_
            self.names.add(name)
            self.new.add(name)
            default = f" DEFAULT {self.value(type_)}" if self.random.random() < 0.5 and not self.rewrites else ""
            return f"ALTER TABLE r ADD {name} {type_}{default}"
        old = self.random.choice(names)
        if kind == "rename" and name not in self.names and old not in self.new:
            self.columns[name] = self.columns.pop(old)
            self.names.add(name)
            return f"ALTER TABLE r RENAME {old} TO {name}"
        if kind == "type" and self.rewrites and self.columns[old] in self.WIDER:
            type_ = self.columns[old] = self.WIDER[self.columns[old]]
            return f"ALTER TABLE r ALTER {old} TYPE {type_}"
        if kind == "drop":
            del self.columns[old]
            return f"ALTER TABLE r DROP {old}"
        return ""


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 12))
def test_random_changes(publisher, pipeline, equal, seed):
    """Several lives; in each the catalog is ahead of what is streamed."""
    table = Altered(publisher, seed)
    publisher.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    bridge = pipeline()
    for life in range(4):
        bridge.catch_up()
        equal(bridge, "r")
        table.next_life(life)
        for _ in range(15):
            table.transaction()
        publisher.execute("INSERT INTO r (id) VALUES (-1); DELETE FROM r WHERE id = -1")  # tells of the last columns
    bridge.catch_up()
    equal(bridge, "r")


class Model:
    """A target as Delta would have it, in a dictionary by key: for many histories, where Spark would take minutes."""

    def __init__(self):
        self.rows: dict[int, dict[str, object]] = {}
        self.columns = ["id"]

    def apply(self, changes):
        for step in changes.alterations:
            if isinstance(step, RenameColumn):
                assert step.new_name.lower() not in {name.lower() for name in self.columns}
                self.columns[self.columns.index(step.name)] = step.new_name
                for row in self.rows.values():
                    row[step.new_name] = row.pop(step.name)
            elif isinstance(step, AddColumn):
                assert step.name.lower() not in {name.lower() for name in self.columns}
                self.columns.append(step.name)
                for row in self.rows.values():
                    row[step.name] = None if step.value is None else step.value.as_py()
            else:
                for row in self.rows.values():
                    row[step.name] = _widened(row[step.name], step.type)
        assert sorted([field.name for field in changes.target.schema]) == sorted(self.columns)
        names = [column.name for column in changes.columns]
        (key,) = changes.key
        for change in changes.changes.to_pylist():
            new = {name: change[f"new_{i}"] for i, name in enumerate(names) if not change.get(f"unchanged_{i}", False)}
            if change["op"] == INSERT:
                self.rows[new["id"]] = dict.fromkeys(self.columns) | new
                continue
            old = change[f"old_{key}"] if change["old"] else change[f"new_{key}"]
            row = self.rows.pop(old)
            if change["op"] == UPDATE:
                self.rows[new["id"]] = row | new

    def texts(self, columns):
        """As `text_rows` gives them, as far as values of the workload go."""
        return sorted(repr([row[name] for name in columns]) for row in self.rows.values())


def _widened(value, type_):
    """What Delta makes of a value when its column is widened."""
    if isinstance(value, dt.date):
        return dt.datetime(value.year, value.month, value.day)  # noqa: DTZ001 - of a column without a zone
    if isinstance(value, int) and pa.types.is_decimal(type_):
        value = Decimal(value)  # it is of an integer type that pyarrow cannot know
    return pa.array([value]).cast(type_)[0].as_py()


def transactions(publisher, slot):
    """What a slot has, as the receiver would hand it on. It is not confirmed yet."""
    query = (
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'pub')"
    )
    made = []
    for (data,) in publisher.query(query, (slot,)):
        message = decode(bytes(data))
        if isinstance(message, Begin):
            made.append(Transaction(message.xid, message.final_lsn, 0, message.final_lsn))
        elif isinstance(message, Relation):
            made[-1].events.append((len(made[-1].rows), message))
        elif isinstance(message, Commit):
            made[-1].end_lsn = message.end_lsn
        elif not isinstance(message, Type):
            made[-1].rows.extend(MessageArray.of([encode_xlog_data(XLogData(Lsn(1), Lsn(1), 0, bytes(data)))]))
    return made


def confirm(publisher, slot):
    """All that a slot has is durable. The CHECKPOINT writes which transactions run: its catalog_xmin may advance."""
    publisher.execute("CHECKPOINT")
    publisher.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", (slot,))


def _follow(waiting, former, model, rng):
    while waiting:
        some = waiting[: rng.randrange(1, 7)]
        waiting = waiting[len(some) :]
        batch = former.form(some, Lsn(1))
        if rng.random() < 0.25:
            former.rewind(batch)
            batch = former.form(some, Lsn(1))
        for changes in batch.tables:
            model.apply(changes)


@pytest.mark.parametrize(
    ("seeds", "reuses_names"),
    [
        (range(4), False),
        (range(4), True),
        pytest.param(range(4, 60), False, marks=pytest.mark.soak),
        pytest.param(range(4, 40), True, marks=pytest.mark.soak),
    ],
    ids=["few", "few, same names", "many", "many, same names"],
)
def test_random_changes_without_spark(publisher, seeds, reuses_names):
    """Batches of a few transactions, of which one in four is formed twice, as after a batch that was divided.

    With few names a column may be taken for another: then a warning says so, or an error whose remedy is a fresh copy.
    """
    equal = 0
    publisher.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    with Publisher(publisher.conninfo, application_name="test") as catalog:
        for seed in seeds:
            publisher.execute("DROP TABLE IF EXISTS r")
            table, model = Altered(publisher, seed, reuses_names=reuses_names), Model()
            slot = f"{publisher.name}_{seed}"
            publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
            warnings: list[str] = []
            former = _former(catalog, slot, warnings)
            for life in range(6 if seed % 2 else 50):
                table.next_life(life)
                for _ in range(12 if seed % 2 else 1):
                    table.transaction()
                publisher.execute("INSERT INTO r (id) VALUES (-1); DELETE FROM r WHERE id = -1")
                try:
                    _follow(transactions(publisher, slot), former, model, table.random)
                except ApplyError as error:
                    if not reuses_names:
                        raise
                    warnings.append(error.hint)
                confirm(publisher, slot)
                told = [text for text in warnings if "is assumed to be" in text or "copy the table afresh" in text]
                if reuses_names and told:
                    break
                columns = ["id", *table.columns]
                equal += 1
                expected = text_rows(publisher.conninfo, "r", columns)
                readers = [_READERS.get(table.columns.get(name, "int"), Decimal) for name in columns]
                assert model.texts(columns) == sorted(
                    repr([None if text is None else read(text) for read, text in zip(readers, row, strict=True)])
                    for row in expected
                ), (seed, life)
            publisher.query("SELECT pg_drop_replication_slot(%s)", (slot,))
    assert equal >= 2 * len(seeds)


def keys_of(publisher, catalog, slot):
    """The key of each transaction that a slot has, and that changes rows of the table `r`."""
    schema = target_schema([(name, pa.int32()) for name in ("id", "b", "c")])
    routes = Routes({("public", "r"): Subscribed(Target("public", "r", "/lake/public/r", schema), INVALID)})
    former = Batcher("pgbridge_shop", routes, _resolved, primary_key=partial(catalog.primary_key, slot_name=slot))
    formed = [former.form([item], Lsn(1)).tables for item in transactions(publisher, slot)]
    confirm(publisher, slot)
    return [[part.columns[k].name for k in part.key] for (part,) in filter(None, formed)]


def test_a_primary_key_finds_no_rows_from_before_it(publisher):
    """Under REPLICA IDENTITY FULL rows may be twins until it is added, and another column may have its name."""
    slot = publisher.name
    publisher.execute("CREATE TABLE r (id int, b int PRIMARY KEY); ALTER TABLE r REPLICA IDENTITY FULL")
    publisher.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    with Publisher(publisher.conninfo, application_name="test") as catalog:
        publisher.execute("INSERT INTO r VALUES (1, 1), (1, 2)")
        assert keys_of(publisher, catalog, slot) == [["b"]], "a key from before the slot counts from the first row on"
        for statement in (
            "ALTER TABLE r DROP CONSTRAINT r_pkey",
            "INSERT INTO r VALUES (1, 2)",
            "DELETE FROM r WHERE ctid = (SELECT max(ctid) FROM r)",
            "ALTER TABLE r RENAME id TO x; ALTER TABLE r RENAME b TO id; ALTER TABLE r RENAME x TO b",
            "UPDATE r SET b = 3",
            "ALTER TABLE r ADD PRIMARY KEY (id)",
            "UPDATE r SET b = 4",
        ):
            publisher.execute(statement)
        assert keys_of(publisher, catalog, slot) == [[], [], [], []]
        publisher.execute("UPDATE r SET b = 5")
        assert keys_of(publisher, catalog, slot) == [["id"]]


@pytest.mark.parametrize("own_xid_first", [False, True], ids=["ALTER has the lower xid", "ALTER has the higher xid"])
def test_transactions_that_wait_for_each_other_are_not_in_the_order_of_their_ids(publisher, own_xid_first):
    """ALTER TABLE has its id before it has its lock: with either order, the writer of before is told from after."""
    slot = publisher.name
    publisher.execute("CREATE TABLE r (id int, b int, c int); ALTER TABLE r REPLICA IDENTITY FULL")
    publisher.execute("INSERT INTO r VALUES (1, 1, 7), (1, 1, 7)")
    publisher.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    (relid,) = publisher.query("SELECT 'r'::regclass::oid")[0]
    with (
        psycopg.connect(publisher.conninfo) as writer,
        psycopg.connect(publisher.conninfo, autocommit=True) as altering,
        Publisher(publisher.conninfo, application_name="test") as catalog,
    ):
        writer.execute("LOCK TABLE r IN ROW EXCLUSIVE MODE")
        if own_xid_first:
            writer.execute("SELECT pg_current_xact_id()")
        altered = threading.Thread(
            target=altering.execute, args=("ALTER TABLE r ADD PRIMARY KEY (id), DROP c, ADD c int",)
        )
        altered.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s AND pid = %s"
        while publisher.query(waits, (relid, altering.info.backend_pid)) != [(1,)]:
            pass
        writer.execute("DELETE FROM r WHERE ctid = (SELECT min(ctid) FROM r)")
        ((xid,),) = writer.execute("SELECT pg_current_xact_id()::xid::text::int").fetchall()
        writer.commit()
        altered.join()
        ((altered_by,),) = publisher.query("SELECT xmin::text::int FROM pg_constraint WHERE conname = 'r_pkey'")
        assert (altered_by < xid) is not own_xid_first
        now = catalog.attributes(relid, xid, slot_name=slot)
        assert [(column.name, column.settled) for column in now] == [
            ("id", False),  # it is NOT NULL now
            ("b", True),
            (None, False),
            ("c", False),
        ]
        assert keys_of(publisher, catalog, slot) == [[]], "the key would find both twins"
        publisher.execute("UPDATE r SET b = 2")
        xid = int(publisher.query("SELECT xmin::text FROM r")[0][0])
        assert all(column.settled for column in catalog.attributes(relid, xid, slot_name=slot))
        assert keys_of(publisher, catalog, slot) == [["id"]]


def test_nothing_is_settled_for_a_transaction_that_cannot_be_seen_yet(publisher):
    """Its COMMIT is sent before others see it: what it altered looks as before."""
    publisher.execute("CREATE TABLE r (id int PRIMARY KEY)")
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (publisher.name,))
    (relid,) = publisher.query("SELECT 'r'::regclass::oid")[0]
    with (
        psycopg.connect(publisher.conninfo) as altering,
        Publisher(publisher.conninfo, application_name="test") as catalog,
    ):
        ((xid,),) = altering.execute("SELECT pg_current_xact_id()::xid::text::int").fetchall()
        for later in (False, True):
            if later:
                publisher.execute("INSERT INTO r VALUES (1)")
            found = catalog.primary_key(relid, xid, slot_name=publisher.name)
            assert found is not None
            assert not found.settled
            assert not any(column.settled for column in catalog.attributes(relid, xid, slot_name=publisher.name))
        altering.commit()
        for asked, slot, expected in (
            (xid, publisher.name, True),
            (xid, "other", False),
            (None, publisher.name, False),
        ):
            found = catalog.primary_key(relid, asked, slot_name=slot)
            assert found is not None
            assert found.settled is expected
            assert [column.settled for column in catalog.attributes(relid, asked, slot_name=slot)] == [expected]


_READERS: dict[str, Callable[[str], object]] = {
    "int": int,
    "bigint": int,
    "text": str,
    "date": dt.date.fromisoformat,
    "timestamp": dt.datetime.fromisoformat,
}


def _former(catalog, slot, warnings):
    """Of the table `r`, which has one column so far."""
    target = Target("public", "r", "/lake/public/r", target_schema([("id", pa.int32())]))
    tracker = DefinitionTracker(
        "shop",
        known={},
        attributes=partial(catalog.attributes, slot_name=slot),
        types=_resolved,
        warn=lambda _, warning, __: warnings.append(warning),
    )
    routes = Routes({("public", "r"): Subscribed(target, INVALID, ("id",))})
    return Batcher("pgbridge_shop", routes, _resolved, tracker=tracker)


def _resolved(wanted):
    return [resolve(*item) for item in wanted]
