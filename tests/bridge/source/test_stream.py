"""`pgbridge.stream(…).to_delta(…)`: a copy and its changes, whatever happens to a row."""

from __future__ import annotations

import shutil

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.errors import StreamingQueryException

import pgbridge
from pgbridge.bridge.runtime.errors import ConfigError, PublisherError
from pgbridge.bridge.source.merge import MergeInto
from tests.bridge.source.without_spark import eventually
from tests.oracle.delta import differences

TABLE = """
    CREATE TABLE t (id int PRIMARY KEY, note text, price numeric(9, 2), day date, at timestamptz, local timestamp,
        tags text[], data bytea, big text);
    ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
    INSERT INTO t SELECT n, 'note ' || n, n / 7.0, '2026-01-01'::date + n,
        '2026-01-01'::timestamptz + n * '1 min'::interval, '1500-01-01'::timestamp + n * '1 day'::interval,
        ARRAY['a', NULL], '\\x00ff', repeat(n::text, 3000) FROM generate_series(1, 50) n;
    CREATE PUBLICATION p FOR TABLE t"""


class Followed:
    """A published table, and a query that has a Delta table follow it."""

    def __init__(self, spark, publisher, folder) -> None:
        self.spark, self.publisher, self.folder = spark, publisher, folder
        self.slot = f"follow_{publisher.name}"[:63].lower()
        publisher.execute(TABLE)

    @property
    def path(self):
        return str(self.folder / "t")

    def stream(self, **options):
        place = {"connection": self.publisher.conninfo, "publication": "p", "table": "public.t", "slot": self.slot}
        return pgbridge.stream(self.spark, **{**place, **options})

    def run(self, **options):
        """Run the query until it has what is there now."""
        checkpoint = str(self.folder / "checkpoint")
        assert eventually(self.is_free, 60)
        query = self.stream(**options).to_delta(self.path, checkpoint=checkpoint, availableNow=True)
        query.awaitTermination()

    def is_free(self):
        query = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        return self.publisher.query(query) != [(True,)]

    def differences(self):
        return differences(self.spark, self.path, self.publisher, "t")


@pytest.fixture
def followed(spark, publisher, tmp_path):
    return Followed(spark, publisher, tmp_path)


def test_a_table_is_copied_and_followed(followed):
    """Values that the server does not send, keys that change, rows that come again, in one batch and in several."""
    execute = followed.publisher.execute
    followed.run()
    assert followed.differences() == []
    execute("INSERT INTO t (id, note) VALUES (100, 'new'); UPDATE t SET note = 'kept' WHERE id = 1")
    execute("UPDATE t SET id = 101 WHERE id = 2; UPDATE t SET id = 102, note = 'twice' WHERE id = 101")
    execute("DELETE FROM t WHERE id = 3; INSERT INTO t (id, big) VALUES (3, 'again')")
    execute("DELETE FROM t WHERE id > 40 AND id < 50")
    execute("INSERT INTO t (id) VALUES (200); DELETE FROM t WHERE id = 200; UPDATE t SET id = -id WHERE id < 30")
    followed.run()
    assert followed.differences() == []
    execute("UPDATE t SET id = 2 WHERE id = 102; UPDATE t SET price = 1 WHERE id = 2")
    followed.run()
    assert followed.differences() == []


def test_truncate_and_what_comes_after_it(followed):
    followed.run()
    followed.publisher.execute("UPDATE t SET note = 'x'; TRUNCATE t")
    followed.run()
    assert followed.differences() == []
    followed.publisher.execute("INSERT INTO t (id) VALUES (7); TRUNCATE t")
    followed.publisher.execute("INSERT INTO t (id, big) VALUES (8, 'b'), (9, NULL)")
    followed.publisher.execute("UPDATE t SET note = 'y' WHERE id = 8; DELETE FROM t WHERE id = 9")
    followed.run()
    assert followed.differences() == []


def test_a_batch_that_comes_again_is_left_out(followed, monkeypatch):
    """Killed between Delta's commit and Spark's: a row that moved with a value that is not sent is not there again."""
    commit = MergeInto.__call__

    def fail(self, batch, batch_id):
        commit(self, batch, batch_id)
        raise RuntimeError("killed here")

    followed.run()
    followed.publisher.execute("UPDATE t SET id = 1000 WHERE id = 1; UPDATE t SET note = 'n' WHERE id = 2")
    with monkeypatch.context() as patch:
        patch.setattr(MergeInto, "__call__", fail)
        with pytest.raises(StreamingQueryException, match="killed here"):
            followed.run()
    assert followed.differences() == []
    followed.run()
    assert followed.differences() == []


def test_a_column_that_is_added_is_added(followed):
    followed.run()
    followed.publisher.execute("ALTER TABLE t ADD COLUMN more text; INSERT INTO t (id, more) VALUES (60, 'm')")
    followed.run()
    assert followed.differences() == []


def test_a_copy_that_fails_leaves_no_slot(followed, monkeypatch):
    """So that the next one begins as this one did."""
    monkeypatch.setattr("pgbridge.bridge.source.merge.MICROSECONDS", {"spark.sql.ansi.enabled": "perhaps"})
    with pytest.raises(Exception, match="perhaps"):
        followed.run()
    slots = f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{followed.slot}'"
    assert followed.publisher.query(slots) == [(0,)]
    monkeypatch.undo()
    followed.run()
    assert followed.differences() == []


def test_a_slot_without_its_copy_is_refused(followed):
    """A copy that was killed: its slot is there, and nothing says where its copy is."""
    followed.publisher.query(f"SELECT pg_create_logical_replication_slot('{followed.slot}', 'pgoutput')")
    with pytest.raises(PublisherError, match=f'"{followed.slot}" exists, and {followed.path} does not') as caught:
        followed.run()
    statement = caught.value.hint.partition("on the server by: ")[2]
    followed.publisher.query(statement.removesuffix(";"))
    followed.run()
    assert followed.differences() == []


def test_a_checkpoint_without_its_table_is_refused(followed):
    """Nothing is copied and no slot created, which would be in the way of what helps."""
    followed.run()
    shutil.rmtree(followed.path)
    assert eventually(followed.is_free, 60)
    followed.publisher.query(f"SELECT pg_drop_replication_slot('{followed.slot}')")
    with pytest.raises(ConfigError, match=f"checkpoint of a query .* no Delta table at {followed.path}"):
        followed.run()
    assert followed.publisher.query("SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ 'follow'") == [(0,)]
    shutil.rmtree(followed.folder / "checkpoint")
    followed.run()
    assert followed.differences() == []


def test_the_role_needs_no_more_than_what_is_read(followed):
    """Other tables of the publication may be nobody's to read."""
    role = f"reader_{followed.publisher.name}"[:63].lower()
    followed.publisher.execute("CREATE TABLE other (id int PRIMARY KEY); ALTER PUBLICATION p ADD TABLE other")
    followed.publisher.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'; GRANT SELECT ON t TO {role}")
    try:
        conninfo = make_conninfo(followed.publisher.conninfo, user=role, password="x")
        with pgbridge.export_snapshot(conninfo, "p", table="public.t") as snapshot:
            assert snapshot.tables == ("public.t",)
        with pytest.raises(PublisherError, match="permission denied for table other"):
            pgbridge.export_snapshot(conninfo, "p").__enter__()
        stream = followed.stream(connection=conninfo)
        query = stream.to_delta(followed.path, checkpoint=str(followed.folder / "checkpoint"), availableNow=True)
        query.awaitTermination()
        assert followed.differences() == []
    finally:
        assert eventually(followed.is_free, 60)
        followed.publisher.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_table_without_its_slot_is_refused(followed):
    """Its changes since the copy are lost; a new slot would hide that."""
    followed.run()
    assert eventually(followed.is_free, 60)
    followed.publisher.query(f"SELECT pg_drop_replication_slot('{followed.slot}')")
    with pytest.raises(PublisherError, match="the changes since its copy are lost"):
        followed.run()
    with pytest.raises(ConfigError, match="creates its slot"):
        followed.run(create_slot=True)


def test_a_new_checkpoint_is_refused(followed):
    """The slot stays one batch behind the table, so the batch would come again, and Delta could not tell."""
    followed.run()
    followed.publisher.execute("UPDATE t SET id = 1000 WHERE id = 1")
    followed.run()
    shutil.rmtree(followed.folder / "checkpoint")
    with pytest.raises(StreamingQueryException, match="checkpoint that it had; without that, begin again"):
        followed.run()
    assert followed.differences() == []


def test_an_identity_that_is_altered_is_refused(followed):
    """The server then sends old rows without the key: a DELETE would find nothing."""
    followed.publisher.execute("ALTER TABLE t ADD COLUMN mail text NOT NULL DEFAULT ''; UPDATE t SET mail = 'm' || id")
    followed.run()
    followed.publisher.execute(
        "CREATE UNIQUE INDEX by_mail ON t (mail); ALTER TABLE t REPLICA IDENTITY USING INDEX by_mail"
    )
    followed.publisher.execute("DELETE FROM t WHERE id = 1; DELETE FROM t WHERE id = 2")
    merge = pgbridge.merge_into(followed.path, key=["id"])
    query = followed.stream().changes.writeStream.foreachBatch(merge)
    with pytest.raises(StreamingQueryException, match='has no value of "id", a column of the key'):
        query.option("checkpointLocation", str(followed.folder / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()


def test_a_type_that_the_table_does_not_hold_is_refused(followed):
    """Spark would round, without an error."""
    followed.run()
    followed.publisher.execute(
        "ALTER TABLE t ALTER price TYPE numeric(12, 4); UPDATE t SET price = 1.2345 WHERE id = 1"
    )
    with pytest.raises(StreamingQueryException, match=r'column "price" is decimal\(12,4\) now'):
        followed.run()


def test_a_partitioned_table_is_emptied_as_a_whole(followed, monkeypatch):
    """Also in a session that overwrites partitions by themselves."""
    followed.publisher.execute(
        "ALTER TABLE t ADD COLUMN kind text; UPDATE t SET kind = CASE WHEN id < 9 THEN 'a' ELSE 'b' END"
    )
    source = followed.stream()
    source.copy_to(followed.path)
    rows = followed.spark.read.format("delta").load(followed.path).collect()
    frame = followed.spark.createDataFrame(rows, followed.spark.read.format("delta").load(followed.path).schema)
    shutil.rmtree(followed.path)
    frame.write.format("delta").partitionBy("kind").save(followed.path)
    followed.publisher.execute("TRUNCATE t; INSERT INTO t (id, kind) VALUES (1, 'a')")
    followed.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        followed.run()
    finally:
        followed.spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert followed.differences() == []


def test_names_that_parquet_does_not_allow(followed):
    followed.publisher.execute('ALTER TABLE t ADD COLUMN "first name" text; UPDATE t SET "first name" = note')
    followed.run()
    followed.publisher.execute('ALTER TABLE t ADD COLUMN "a, b" int; INSERT INTO t (id, "a, b") VALUES (70, 1)')
    followed.run()
    assert followed.differences() == []


def test_what_cannot_be_merged_is_refused(followed):
    followed.publisher.execute("CREATE TABLE bag (v int); ALTER PUBLICATION p ADD TABLE bag")
    with pytest.raises(ConfigError, match="no primary key"):
        followed.run(table="public.bag")
    with pytest.raises(ConfigError, match='no option "maxBytes"'):
        followed.stream(maxBytes=5)
    with pytest.raises(PublisherError, match="is not published"):
        followed.run(table="public.nothing")


def test_it_says_what_it_is_without_the_password(followed):
    made = pgbridge.stream(
        followed.spark, connection="dbname=x password=secret", publication="p", table="public.t", slot="s"
    )
    assert repr(made) == "<changes of public.t, published by p>"
