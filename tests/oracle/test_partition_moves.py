"""Partitions change their roots while changes wait: the rows are those of a native subscriber, or it is said.

In server mode the publisher maps a partition's changes to its root, by the catalog of then. With definitions the bridge
does, from a stream of partitions. The tables are in memory, as in `test_catalog_events`.
"""

from __future__ import annotations

import re
import shlex
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from structlog.testing import capture_logs

from pgbridge.bridge.commands import refresh as command
from pgbridge.protocol.lsn import Lsn
from tests.fix_bridge import WithoutCommitLog
from tests.oracle.memory_tables import MemoryTables, in_memory
from tests.oracle.native import NativeSubscriber

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.fix_bridge import Pipeline
    from tests.fix_postgres import Publisher

VIA_ROOT = "WITH (publish_via_partition_root)"
PUBLICATION = f"CREATE PUBLICATION p FOR TABLE {{}} {VIA_ROOT}"
COLUMNS = "(id int PRIMARY KEY, v text)"
PARTITIONED = "PARTITION BY RANGE (id)"
LOW = "FOR VALUES FROM (0) TO (10)"
LONE = f"CREATE TABLE l {COLUMNS}"
LEAF = f"CREATE TABLE l PARTITION OF r {LOW}"
SUBROOT = f"CREATE TABLE m PARTITION OF r {LOW} {PARTITIONED}; CREATE TABLE l PARTITION OF m DEFAULT"
ATTACH = f"ALTER TABLE r ATTACH PARTITION l {LOW}"
DETACH = "ALTER TABLE r DETACH PARTITION l"
WAIT = "wait"
"""Until the bridge that runs has everything."""


class Case(NamedTuple):
    """What happens to a root `r`, which has a partition `k` for ids from 100 to 200.

    Attributes:
        before: Statements before the copy.
        changes: Transactions.
    """

    before: str
    changes: tuple[str, ...]


def insert(table: str, key: int) -> str:
    return f"INSERT INTO {table} VALUES ({key}, '{table}')"


def large(table: str, key: int) -> str:
    """An INSERT that is streamed."""
    return f"INSERT INTO {table} SELECT {key}, string_agg(md5(g::text), '') FROM generate_series(1, 9000) g"


EXACT = {
    "attached": Case(LONE, (insert("l", 1), ATTACH, insert("r", 2), "UPDATE r SET v = 'new' WHERE id < 3")),
    "attached_last": Case(LONE, (insert("l", 1), ATTACH)),
    "attached_first": Case(LONE, (ATTACH, insert("r", 1))),
    "attached_empty": Case(LONE, (insert("l", 1), "DELETE FROM l", ATTACH, insert("r", 1))),
    "attached_among_others": Case(
        LONE,
        (
            *(insert("l", 1), "CREATE INDEX ON l (v)", insert("l", 2), ATTACH, insert("l", 3)),
            *("CREATE INDEX ON l (v)", insert("r", 4)),
        ),
    ),
    "attached_within": Case(LONE, (f"{ATTACH}; {insert('r', 1)}",)),
    "attached_between": Case(LONE, (f"{insert('l', 1)}; {ATTACH}; {insert('r', 2)}", insert("r", 3))),
    "attached_known": Case(
        LONE, (insert("l", 1), f"{insert('l', 2)}; {ATTACH}; {insert('r', 3)}; UPDATE r SET v = 'x' WHERE id = 3")
    ),
    "attached_streamed": Case(
        LONE,
        (
            insert("l", 3),
            f"BEGIN; {large('l', 1)}; {ATTACH}; {large('r', 2)}; COMMIT",
            large("r", 4),
        ),
    ),
    "attached_later": Case(LONE, (insert("l", 1), WAIT, ATTACH, large("r", 2))),
    "made_and_attached": Case("SELECT 1", (LONE, insert("l", 1), ATTACH, insert("r", 2))),
    "detached": Case(LEAF, (insert("r", 1), DETACH, insert("l", 2), "DELETE FROM l")),
    "detached_last": Case(LEAF, (insert("r", 1), DETACH)),
    "detached_first": Case(LEAF, (DETACH, insert("l", 1))),
    "detached_altered": Case(
        LEAF,
        (insert("r", 1), DETACH, insert("l", 2), "ALTER TABLE l ADD c int", insert("l", 3), "GRANT ALL ON l TO public"),
    ),
    "detached_concurrently": Case(LEAF, (insert("r", 1), f"{DETACH} CONCURRENTLY", insert("l", 2))),
    "detached_renamed": Case(LEAF, (insert("r", 1), DETACH, "ALTER TABLE l RENAME TO x")),
    "dropped": Case(LEAF, (insert("r", 1), "DROP TABLE l")),
    "dropped_truncated": Case(LEAF, (insert("r", 1), insert("r", 101), "DROP TABLE l", "TRUNCATE r", insert("r", 102))),
    "replaced": Case(LONE, (insert("l", 1), "DROP TABLE l", LEAF, insert("r", 2))),
    "another_root": Case(
        f"{LEAF}; CREATE TABLE s {COLUMNS} {PARTITIONED}",
        (insert("r", 1), f"{DETACH}; {ATTACH.replace(' r ', ' s ')}", insert("s", 2), "UPDATE s SET v = 'n'"),
    ),
    "second_level": Case(
        "SELECT 1",
        (
            f"CREATE TABLE m {COLUMNS} {PARTITIONED}; CREATE TABLE l PARTITION OF m DEFAULT",
            *(insert("m", 1), ATTACH.replace(" l ", " m "), insert("r", 2), insert("m", 3)),
        ),
    ),
    "second_level_detached": Case(SUBROOT, (insert("r", 1), DETACH.replace(" l", " m"), insert("m", 2))),
    "second_level_dropped": Case(SUBROOT, (insert("r", 1), "DROP TABLE m")),
    "truncated": Case(
        LONE, (insert("l", 1), insert("r", 101), "TRUNCATE r", insert("r", 102), ATTACH, "TRUNCATE l", insert("r", 3))
    ),
    "truncated_within": Case("SELECT 1", (f"TRUNCATE r; {LEAF}; {insert('r', 1)}",)),
    "truncated_attached": Case(LONE, (f"TRUNCATE r; {ATTACH}; {insert('r', 1)}",)),
    "truncated_before": Case("SELECT 1", ("TRUNCATE r", insert("r", 102), LEAF, insert("r", 1))),
    "truncated_detached": Case(LEAF, (insert("r", 1), DETACH, "TRUNCATE r", insert("l", 2))),
    "switched": Case(
        LONE,
        (
            *(insert("l", 1), "ALTER PUBLICATION broad SET (publish_via_partition_root)", insert("r", 101), ATTACH),
            *(insert("r", 2), "ALTER PUBLICATION broad SET (publish_via_partition_root = false)", insert("r", 3)),
        ),
    ),
}
SAID = {
    "attached_detached": Case(LONE, (ATTACH, insert("r", 1), DETACH)),
    "attached_detached_within": Case(LONE, (ATTACH, f"{insert('r', 1)}; {DETACH}")),
    "attached_dropped": Case(LONE, (ATTACH, insert("r", 1), "DROP TABLE l")),
    "attached_replaced": Case(LONE, (ATTACH, insert("r", 1), "DROP TABLE l", LONE)),
    "made_and_detached": Case("SELECT 1", (LEAF, insert("r", 1), DETACH)),
    "made_and_dropped": Case("SELECT 1", (LEAF, insert("r", 1), "DROP TABLE l")),
    "attached_again": Case(LEAF, (insert("r", 1), DETACH, insert("l", 2), ATTACH, insert("r", 3))),
    "attached_in_subtransaction": Case(LONE, (f"BEGIN; SAVEPOINT a; {ATTACH}; RELEASE a; {insert('r', 1)}; COMMIT",)),
}
"""What cannot be told from the catalog of now, and what looks have seen."""
CASES = EXACT | SAID
ROOTS = [*(f"{case}_r" for case in CASES), "another_root_s"]


def named(case: str, statement: str) -> str:
    """A statement with the case's tables, whose last column tells them from other cases'."""
    statement = statement.replace(COLUMNS, f"{COLUMNS[:-1]}, {case}_ int)")
    return re.sub(r"\b([klmrsx])\b(?=[ ;(]|$)", rf"{case}_\1", statement)


def prepare(publisher, folder) -> str:
    """Make the tables and publications; return the native subscriber's tables."""
    made = []
    for case, (before, _) in CASES.items():
        own = f"CREATE TABLE r {COLUMNS} {PARTITIONED}; CREATE TABLE k PARTITION OF r FOR VALUES FROM (100) TO (200)"
        made.append(named(case, f"{own}; {before}; {insert('r', 100)}"))
    publisher.execute(";".join(made))
    publisher.execute(
        f"{PUBLICATION.format(', '.join(ROOTS))}; CREATE PUBLICATION broad FOR ALL TABLES;"
        f"ALTER DATABASE {publisher.name} SET logical_decoding_work_mem = '64kB';"
        f"CREATE TABLE q {COLUMNS} {PARTITIONED}; CREATE TABLE q_1 PARTITION OF q DEFAULT;"
        f"CREATE PUBLICATION q FOR TABLE q {VIA_ROOT}"
    )
    (folder / "definitions.sql").write_text(PUBLICATION.format(", ".join(ROOTS)))
    plain = [f"CREATE TABLE {table} {COLUMNS}" for table in ("q", "q_1")]
    for case in CASES:
        plain += [named(case, f"CREATE TABLE {table} {COLUMNS}") for table in "rs" if f"{case}_{table}" in ROOTS]
    return ";".join(plain)


def wrong(
    tables: MemoryTables, bridge: Pipeline, right: NativeSubscriber | Publisher, roots: Iterable[str]
) -> dict[str, object]:
    """The roots that differ, with both sides' rows."""
    found: dict[str, object] = {}
    for root in roots:
        held = {(str(row["id"]), row["v"]) for row in tables.arrow(bridge.path(root)).to_pylist()}
        wanted = set(right.rows(f"public.{root}", ["id", "v"]))
        if held != wanted:
            found[root] = {one[0] for one in held}, {one[0] for one in wanted}
    return found


def wait_for(bridge: Pipeline, publisher) -> None:
    """Wait until a bridge that runs has applied all that is written."""
    ((lsn,),) = publisher.query("SELECT pg_current_wal_insert_lsn()::text")
    deadline_s = time.monotonic() + 60
    while bridge.remote_lsn() < Lsn.parse(lsn):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def typed(bridge: Pipeline, words: str) -> None:
    """Type a printed `refresh`."""
    tables = shlex.split(words)[3::2]
    command.ask(bridge.subscription, bridge.catalog, resync=tables, copy_data=None, when="now")


def test_rows_go_where_a_native_subscribers_go(publisher, tmp_path):
    """In server mode and with definitions while the bridge is stopped, and with definitions while it runs."""
    plain = prepare(publisher, tmp_path)
    own = {"streaming": "on", "publications": ("broad",), "publication_definitions": str(tmp_path / "definitions.sql")}
    modes = {"server": {"publications": ("p", "q")}, "own": own, "running": own}
    bridges: dict[str, Pipeline] = {}
    with (
        in_memory() as tables,
        NativeSubscriber(publisher.conninfo, ["p", "q"], schema=plain) as native,
        ExitStack() as closing,
    ):
        for mode, options in modes.items():
            slot = f"{publisher.name}_{mode}"
            bridges[mode] = WithoutCommitLog(tables, publisher, tmp_path / mode, slot_name=slot, **options)  # type: ignore[arg-type]
            closing.callback(bridges[mode].catalog.close)
            bridges[mode].catch_up()
        native.wait_caught_up()
        with capture_logs() as ran, psycopg.connect(publisher.conninfo, autocommit=True) as connection:
            running = bridges["running"].worker(until_caught_up=False)
            running.thread.start()
            for case, (_, changes) in CASES.items():
                for change in changes:
                    if change == WAIT:
                        wait_for(bridges["running"], publisher)
                    else:
                        connection.execute(named(case, change).encode())
            for value in ("true", "false", "true"):
                publisher.execute(f"ALTER PUBLICATION q SET (publish_via_partition_root = {value})")
                publisher.execute("INSERT INTO q SELECT count(*) FROM q")
            native.wait_caught_up()
            running.stop()
            running.thread.join()
        for mode, bridge in bridges.items():
            with capture_logs() as events:
                bridge.catch_up()
            different = wrong(tables, bridge, native, [*ROOTS, "q"] if mode == "server" else ROOTS)
            may_differ = {} if mode == "server" else SAID
            assert different.keys() <= {f"{case}_r" for case in may_differ}, (mode, different)
            events += ran if mode == "running" else []
            said = " ".join(str(event) for event in events if event["log_level"] == "warning" and "hint" in event)
            silent = [root for root in different if not re.search(rf"--resync [^;]*public\.{root}\b", said)]
            assert silent == [], (mode, silent, different)
            for table in different:
                typed(bridge, re.findall(rf"pgbridge (refresh [^';]*--resync public\.{table}\b[^';]*)", said)[0])
            bridge.catch_up()
            assert wrong(tables, bridge, publisher, different) == {}
