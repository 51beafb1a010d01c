"""A transaction that cannot be applied stops both subscribers at the same LSN, and both skip it by that LSN.

Documentation: "Conflicts" in logical-replication.sgml. A constraint that only the subscribers' tables have stands for
whatever cannot be applied.
"""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from typing import Any

import pytest

from pgbridge.bridge.catalog import notes
from pgbridge.bridge.config import config
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import ApplyError, SkipError
from pgbridge.bridge.service import cli
from pgbridge.bridge.service.replay import replay, show_skipped
from pgbridge.bridge.spark.session import fork
from pgbridge.protocol.lsn import Lsn
from tests.oracle.delta import differences
from tests.oracle.memory_tables import MemoryTables
from tests.oracle.native import NativeSubscriber

SCHEMA = """
    CREATE TABLE test (c int PRIMARY KEY, n int, body text);
    CREATE TABLE other (c int PRIMARY KEY, n int);
    ALTER TABLE test ALTER body SET STORAGE EXTERNAL;
    CREATE PUBLICATION pub FOR TABLE test, other
"""
_CONTEXT = re.compile(r"CONTEXT:  (processing .* in transaction \d+), finished at ([0-9A-F]+/[0-9A-F]+)")


class Both:
    """A native subscriber and the bridge, whose tables take no n of 100 and more."""

    def __init__(self, spark, publisher, native, bridge):
        self.spark, self.publisher, self.native, self.bridge = spark, publisher, native, bridge
        self.name = bridge.subscription.name
        native.execute("ALTER TABLE test ADD CONSTRAINT small CHECK (n < 100)")
        if isinstance(spark, MemoryTables):
            spark.checks[bridge.path("test")] = lambda row: row["n"] is None or row["n"] < 100
        else:
            spark.sql(f"ALTER TABLE delta.`{bridge.path('test')}` ADD CONSTRAINT small CHECK (n < 100)").collect()

    def stopped_at(self, match: str = "(?i)small") -> str:
        """Run the bridge into its error; the LSN to skip, as it is printed."""
        with pytest.raises(ApplyError, match=match) as raised:
            self.bridge.catch_up()
        found = _CONTEXT.search(str(raised.value))
        assert found is not None
        error = self.bridge.catalog.last_error(self.name)
        assert str(error.finish_lsn) == found[2]
        assert found[2] in str(error.message)
        return found[2]

    def skip(self, lsn: str) -> None:
        """On both sides; the bridge's as its status says, the other's as the documentation says."""
        command = remedies.skip(self.name, lsn).split()
        config_file = self.bridge.folder / "pgbridge.toml"
        config_file.write_text(
            f'state_dir = "state"\n[subscription."{self.name}"]\nconnection = "{self.publisher.conninfo}"\n'
            'publications = ["pub"]\nwarehouse = "lake"\n'
        )
        assert config.load(config_file).state_dir == self.bridge.folder / "state"
        cli.app([*command[1:], "--config", str(config_file)], standalone_mode=False)
        self.native.execute(f"ALTER SUBSCRIPTION {self.name}_native SKIP (lsn = '{lsn}')")

    def replay(self, lsn: str, **options) -> list[str]:
        """Replay it on the shared Spark session; the printed lines."""
        settings = config.load(self.bridge.folder / "pgbridge.toml")
        (subscription,) = settings.choose(self.name)
        return list(replay(settings, subscription, lsn, started=lambda *_: nullcontext(fork(self.spark)), **options))

    def shown(self, lsn: str) -> list[dict[str, Any]]:
        """The changes of a transaction that was skipped, as `skip --show` has them."""
        settings = config.load(self.bridge.folder / "pgbridge.toml")
        (subscription,) = settings.choose(self.name)
        return [json.loads(line) for line in show_skipped(settings, subscription, lsn)][1:]

    def catch_up_and_compare(self) -> None:
        """Both at the end, and equal."""
        self.bridge.catch_up()
        self.native.wait_caught_up()
        for table in ("test", "other"):
            assert differences(self.spark, self.bridge.path(table), self.native, table) == []


@pytest.fixture
def both(request, publisher):
    """Makes both with the same options; the bridge's tables are Delta's for a test that has `spark`."""
    has_spark = "spark" in request.fixturenames
    spark = request.getfixturevalue("spark" if has_spark else "tables")
    pipeline = request.getfixturevalue("pipeline" if has_spark else "memory_pipeline")
    made = []

    def make(**options):
        publisher.execute(SCHEMA)
        publisher.execute("INSERT INTO test VALUES (0, 0, repeat('x', 3000)); INSERT INTO other VALUES (0, 0)")
        # without two_phase a prepared transaction is sent at its end, with the LSN that the bridge knows it by
        native = NativeSubscriber(publisher.conninfo, ["pub"], options={"streaming": options.get("streaming", "off")})
        made.append(native)
        native.wait_caught_up()
        bridge = pipeline(disable_on_error=True, **options)
        bridge.catch_up()
        return Both(spark, publisher, native, bridge)

    yield make
    for native in made:
        native.drop()


def test_the_whole_transaction_is_skipped_and_nothing_else(both, publisher):
    """Also what would have been no problem, in all tables; what came before it was applied; what it held is kept."""
    pair = both()
    for n in range(1, 4):
        publisher.execute(f"INSERT INTO test VALUES ({n}, {n}, 'before'); INSERT INTO other VALUES ({n}, {n})")
    publisher.execute(
        "BEGIN; INSERT INTO other VALUES (100, 1); UPDATE test SET n = 5, c = -5 WHERE c = 0; DELETE FROM other"
        " WHERE c = 1; INSERT INTO test VALUES (100, 100, 'too large'); UPDATE test SET n = 6 WHERE c = 2; COMMIT"
    )
    publisher.execute("INSERT INTO test VALUES (101, 11, 'after'); UPDATE other SET n = 12 WHERE c = 3")
    lsn = pair.stopped_at()
    row = pair.bridge.catalog.subscription(pair.name)
    assert (row.enabled, row.apply_error_count) == (False, 1)
    assert [len(pair.bridge.rows(table)) for table in ("test", "other")] == [
        4,
        4,
    ]  # not a row of it, and all that came before it
    pair.skip(lsn)
    pair.bridge.catalog.set_enabled(pair.name, enabled=True)
    pair.catch_up_and_compare()
    assert pair.bridge.catalog.skip_lsn(pair.name) is None
    assert [(change["table"], change["command"], change.get("new", {}).get("c")) for change in pair.shown(lsn)] == [
        ("public.other", "INSERT", 100),
        ("public.test", "UPDATE", -5),
        ("public.other", "DELETE", None),
        ("public.test", "INSERT", 100),
        ("public.test", "UPDATE", 2),
    ]


def test_the_definitions_of_a_transaction_that_is_skipped_undecoded_count(both, publisher):
    """Behind a value that Delta cannot hold, a table is altered and another one is announced for the first time."""
    pair = both()
    publisher.execute("ALTER TABLE test ADD d date")
    pair.native.execute("ALTER TABLE test ADD d date, ADD e text")
    publisher.execute(
        "BEGIN; INSERT INTO test VALUES (100, 100, 'x', 'infinity'); ALTER TABLE test DROP body;"
        " ALTER TABLE test ADD e text; INSERT INTO test VALUES (101, 1, NULL, 'skipped');"
        " INSERT INTO other VALUES (100, 1); COMMIT"
    )
    publisher.execute("INSERT INTO test VALUES (102, 2, '2024-01-01', 'after'); INSERT INTO other VALUES (102, 2)")
    pair.skip(pair.stopped_at("infinity"))
    pair.bridge.catalog.set_enabled(pair.name, enabled=True)
    pair.catch_up_and_compare()


@pytest.mark.soak
def test_an_origin_that_was_moved_on_leaves_the_transaction_out(both, publisher):
    """The documentation's other way: pg_replication_origin_advance to the next LSN of the finish LSN."""
    pair = both()
    publisher.execute("INSERT INTO test VALUES (200, 200, 'too large')")
    publisher.execute("INSERT INTO test VALUES (201, 1, 'after')")
    lsn = pair.stopped_at()
    pair.bridge.catalog.set_origin(pair.name, Lsn(Lsn.parse(lsn) + 1))
    pair.native.execute(f"ALTER SUBSCRIPTION {pair.name}_native SKIP (lsn = '{lsn}')")
    pair.bridge.catalog.set_enabled(pair.name, enabled=True)
    pair.catch_up_and_compare()


@pytest.mark.soak
def test_streamed_and_prepared_transactions(both, publisher):
    """Each alone, with others before, behind and between."""
    publisher.stream_everything()
    pair = both(streaming="on", two_phase=True)
    bad = "INSERT INTO other VALUES ({0}, 1); SAVEPOINT s; INSERT INTO test VALUES ({0}, 100, 'x')"
    publisher.execute(
        f"INSERT INTO test VALUES (1, 1, 'a'); BEGIN; {bad.format(10)}; COMMIT; DELETE FROM test WHERE c = 1"
    )
    pair.skip(pair.stopped_at())
    pair.bridge.catalog.set_enabled(pair.name, enabled=True)
    gid = f"{publisher.name}_bad"
    publisher.execute(f"BEGIN; {bad.format(20)}; PREPARE TRANSACTION '{gid}'")
    publisher.execute("INSERT INTO test VALUES (2, 2, 'between')")
    publisher.execute(f"COMMIT PREPARED '{gid}'")
    publisher.execute("INSERT INTO test VALUES (3, 3, 'behind')")
    pair.skip(pair.stopped_at())
    pair.bridge.catalog.set_enabled(pair.name, enabled=True)
    pair.catch_up_and_compare()
    assert pair.bridge.catalog.prepared(pair.name) == []
    assert list((pair.bridge.folder / "state" / "spool" / pair.name).iterdir()) == []


@pytest.mark.soak
def test_the_documentations_conflicts(both, publisher, spark):
    """A row in the way stops both until somebody removes it; rows that are not there are passed over, and counted."""
    pair = both()
    delta = f"delta.`{pair.bridge.path('test')}`"
    pair.native.execute("INSERT INTO test VALUES (1, 1, 'local'); DELETE FROM test WHERE c = 0")
    spark.sql(f"INSERT INTO {delta} VALUES (1, 1, 'local')").collect()
    spark.sql(f"DELETE FROM {delta} WHERE c = 0").collect()
    publisher.execute("UPDATE test SET n = 1 WHERE c = 0; DELETE FROM test WHERE c = 0")
    publisher.execute("INSERT INTO test VALUES (1, 1, 'remote')")
    with pytest.raises(ApplyError) as raised:
        pair.bridge.catch_up()
    assert str(raised.value).startswith(
        'conflict detected on relation "public.test": conflict=insert_exists\n'
        "DETAIL:  Key already exists in the target: key (c)=(1); existing local row (1, 1, local); "
        "remote row (1, 1, remote).\n"
        f'CONTEXT:  processing remote data for replication origin "pgbridge_{pair.name}" during message type "INSERT" '
        'for replication target relation "public.test" in transaction'
    )
    pair.native.execute("DELETE FROM test WHERE c = 1")
    spark.sql(f"DELETE FROM {delta} WHERE c = 1").collect()
    pair.bridge.catalog.set_enabled(pair.name, enabled=True)
    pair.catch_up_and_compare()
    counted = notes.conflicts(pair.bridge.catalog, pair.name)
    assert counted == {"insert_exists": 1, "update_missing": 1, "delete_missing": 1}


@pytest.mark.soak
def test_it_is_cleared_where_it_does_not_match(both, publisher):
    """By the next transaction that is applied, with the warning; on both sides."""
    pair = both()
    lsn = str(Lsn(pair.bridge.remote_lsn() + 0x1000000))
    pair.skip(lsn)
    publisher.execute("INSERT INTO test VALUES (1, 1, 'a')")
    pair.catch_up_and_compare()
    assert pair.bridge.catalog.skip_lsn(pair.name) is None
    assert pair.native.query("SELECT subskiplsn::text FROM pg_subscription WHERE subname = current_database()") == [
        ("0/0",)
    ]


def test_a_skipped_transaction_is_replayed(both, publisher, spark):
    """Once the constraint is gone: what it would overwrite is shown, and then the tables are the publisher's."""
    pair = both()
    publisher.execute("INSERT INTO test VALUES (1, 1, 'one'), (2, 2, 'two'); INSERT INTO other VALUES (1, 1), (2, 2)")
    publisher.execute(
        "BEGIN; UPDATE test SET n = 100 WHERE c = 0; UPDATE test SET c = -1, n = 7 WHERE c = 1; DELETE FROM test WHERE"
        " c = 2; INSERT INTO test VALUES (3, 3, 'three'); INSERT INTO other VALUES (3, 3); DELETE FROM other WHERE"
        " c = 1; UPDATE other SET n = 9 WHERE c = 2; COMMIT"
    )
    lsn = pair.stopped_at()
    pair.skip(lsn)
    pair.bridge.catalog.set_enabled(pair.name, enabled=True)
    pair.catch_up_and_compare()
    spark.sql(f"ALTER TABLE delta.`{pair.bridge.path('test')}` DROP CONSTRAINT small").collect()
    pair.bridge.catalog.close()

    shown = pair.replay(lsn, dry_run=True)
    assert shown == [
        "public.test: 2 UPDATE, 1 DELETE, 1 INSERT",
        "  rows: 1 deleted, 1 inserted, 2 updated",
        "  updated: (c=0) n: 0 -> 100",
        "  updated: (c=1) c: 1 -> -1, n: 1 -> 7",
        "  deleted: (c=2) n: 2, body: two",
        "public.other: 1 INSERT, 1 DELETE, 1 UPDATE",
        "  rows: 1 deleted, 1 inserted, 1 updated",
        "  deleted: (c=1) n: 1",
        "  updated: (c=2) n: 2 -> 9",
        f"nothing is changed; to apply it, run: {remedies.replay(pair.name, lsn)}",
    ]
    done = pair.replay(lsn)
    assert done[:-3] == shown[:-1]
    assert done[-3:] == [
        "public.test: replayed",
        "public.other: replayed",
        f"the transaction that finished at {lsn} is applied and durable",
    ]
    for table, columns in (("test", "c, n, md5(body)"), ("other", "c, n")):
        expected = sorted(publisher.query(f"SELECT {columns} FROM {table}"))
        found = spark.read.format("delta").load(f"{pair.bridge.folder}/lake/public/{table}")
        assert sorted(map(tuple, found.selectExpr(*columns.split(", ")).collect())) == expected
    with pytest.raises(SkipError, match="was replayed at"):
        pair.replay(lsn)
