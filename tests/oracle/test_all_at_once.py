"""All that may come to tables, under load and with kill -9: at the end they are the source's, at one LSN."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import psycopg
import pytest

from pgbridge.protocol.lsn import Lsn
from tests.fix_bridge import ROOT
from tests.oracle.delta import differences
from tests.oracle.load import Load

SEED = 20261121
TABLES = ("steady", "emptied", "altered", "afresh", "later", "last")
SCHEMA = "".join(
    f"CREATE TABLE {table} (id int PRIMARY KEY, n int, note text);"
    f"INSERT INTO {table} SELECT g, 0, repeat(g::text, 9) FROM generate_series(1, 3000) g;"
    for table in TABLES
)
OPERATIONS: tuple[tuple[list[str], list[str] | None], ...] = (
    (["ALTER PUBLICATION pub ADD TABLE later"], []),
    (["TRUNCATE emptied"], None),
    (
        [
            "ALTER TABLE altered ADD c int DEFAULT 7",
            "ALTER TABLE altered RENAME note TO remark",
            "ALTER TABLE altered ALTER n TYPE bigint; ALTER TABLE altered ADD d text DEFAULT 'x'",
        ],
        None,
    ),
    (["TRUNCATE emptied, altered"], ["--resync", "afresh"]),
    (["ALTER PUBLICATION pub ADD TABLE last; ALTER TABLE last DROP COLUMN note", "ALTER TABLE later ADD e int"], []),
    (["ALTER TABLE altered DROP COLUMN d; TRUNCATE last"], ["--resync", "altered", "--resync", "last"]),
)
"""Statements, each a transaction; then what `pgbridge refresh` is asked for, or None."""

COLUMNS = (
    "SELECT attnum, attname::text FROM pg_attribute "
    "WHERE attrelid = %s::regclass AND attnum > 1 AND NOT attisdropped ORDER BY attnum"
)


def change(rng, connection):
    """A transaction over some tables: new rows, other values in any column, other keys, deletions."""
    for table in rng.sample(TABLES, 3):
        key = rng.randrange(1, 20_000)
        (column,) = rng.choice(connection.execute(COLUMNS, (table,)).fetchall())[1:]
        connection.execute(
            f"INSERT INTO {table} (id, n) SELECT g, 1 FROM generate_series({key}, {key} + 5) g "
            "ON CONFLICT (id) DO UPDATE SET n = excluded.n + 1"
        )
        connection.execute(f"UPDATE {table} SET {column} = %s WHERE id %% 101 = {key % 101}", (str(key),))
        connection.execute(f"UPDATE {table} SET {column} = NULL WHERE id % 211 = {key % 211}")
        connection.execute(f"UPDATE {table} SET id = -id WHERE id IN ({key}, {key} + 1) AND id > 5000")
        connection.execute(f"DELETE FROM {table} WHERE id % 307 = {key % 307} OR id < 0")


@pytest.mark.soak
def test_added_refreshed_truncated_altered_and_copied_afresh_under_load_with_kills(spark, publisher, daemon):
    publisher.execute(SCHEMA)
    publisher.execute("CREATE PUBLICATION pub FOR TABLE steady, emptied, altered, afresh")
    bridge = daemon(batch__max_age_s=0.1, batch__max_rows=10_000)
    chosen = random.Random(SEED)
    # a column may be dropped or renamed since it was looked for
    tolerated = (psycopg.errors.UndefinedColumn,)
    rng = random.Random(SEED)
    with Load(publisher, lambda connection, _: change(rng, connection), pause_s=0.2, tolerated=tolerated) as load:
        for statements, options in OPERATIONS:
            bridge.start()
            bridge.wait_for('"streaming"')
            for statement in statements:
                publisher.execute(statement)
                time.sleep(chosen.uniform(0.0, 1.0))
            if options is not None:
                command = [sys.executable, "-m", "pgbridge", "refresh", bridge.name, *options, "--config"]
                subprocess.run([*command, str(bridge.config)], cwd=ROOT, check=True)
            time.sleep(chosen.uniform(0.0, 9.0))
            bridge.kill()
    assert load.transactions > 100
    ((lsn,),) = publisher.query("SELECT pg_current_wal_flush_lsn()::text")
    assert bridge.run_until_caught_up() == 0, bridge.log_tail()
    status = bridge.status()
    assert Lsn.parse(status["remote_lsn"]) >= Lsn.parse(lsn)
    assert {table["name"]: table["state"] for table in status["tables"]} == {f"public.{name}": "r" for name in TABLES}
    for table in TABLES:
        columns = [name for _, name in publisher.query(COLUMNS, (table,))]
        assert differences(spark, bridge.path(table), publisher, table, ["id", *columns]) == [], table
