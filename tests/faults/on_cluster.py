"""A subscription on a Spark cluster whose executors are killed at named moments.

    python -m tests.faults.on_cluster MASTER CONNINFO FOLDER SETTINGS STEPS WORKER_PID…

It is a program, because a process has one Spark only. It prints a line for each step; an assertion that fails ends it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest

from pgbridge.bridge.lake import source
from pgbridge.bridge.receive.stream import copy_both
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.bridge.spark import session
from pgbridge.bridge.spark.cluster import Cluster
from tests.bridge.configurations import altered
from tests.fix_bridge import Pipeline
from tests.fix_cluster import executors_of
from tests.oracle.delta import differences
from tests.oracle.native import DatabaseRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.oracle.native import Row

SETUP = """
CREATE TABLE docs (id int PRIMARY KEY, body text, n numeric(8, 2), at timestamp);
CREATE TABLE facts (n int, body text);
CREATE TABLE chosen (id int PRIMARY KEY, v text);
ALTER TABLE chosen REPLICA IDENTITY FULL;
CREATE PUBLICATION pub FOR TABLE docs, facts, chosen;
INSERT INTO docs SELECT n, repeat(md5(n::text), 8), n / 3.0 FROM generate_series(1, 150000) AS n;
INSERT INTO facts SELECT n, 'f' FROM generate_series(1, 1000) AS n;
INSERT INTO chosen SELECT n, 'v' || n FROM generate_series(1, 100) AS n
"""
DEFINITIONS = "CREATE PUBLICATION pub FOR TABLE docs, facts, chosen WHERE (id % 2 = 0 AND v <> 'v4');\n"
BATCH = """
UPDATE docs SET n = n + 1 WHERE id % 10 = 0;
DELETE FROM docs WHERE id % 97 = 0;
INSERT INTO facts SELECT n, 'g' FROM generate_series(1001, 1500) AS n;
UPDATE chosen SET v = 'w' || id WHERE id < 50
"""
WIDE = "INSERT INTO facts SELECT n, repeat('h', 20) FROM generate_series(2001, 82000) AS n; UPDATE docs SET n = 0"
LARGE = """
UPDATE docs SET body = reverse(body) WHERE id <= 3000;
INSERT INTO facts SELECT n, repeat('l', 100) FROM generate_series(1, 3000) AS n;
DELETE FROM docs WHERE id <= 500;
INSERT INTO chosen SELECT n, repeat('s', 50) FROM generate_series(1001, 2000) AS n
"""
REFUSED = "INSERT INTO facts VALUES (0, 'no'); INSERT INTO docs VALUES (200001, 'b', 1)"
COPYING = "SELECT count(*) FROM pg_stat_progress_copy WHERE tuples_processed > 0"


class Source(DatabaseRows):
    """The publisher, for the bridge and for `differences`."""

    name = "sub"

    def execute(self, statements: str) -> None:
        """Run statements in one transaction."""
        with psycopg.connect(self.conninfo) as connection:
            connection.execute(statements.encode())

    def rows(self, table: str, columns: Iterable[str] | None = None) -> list[Row]:
        """A table's rows; of the filtered one, those that pass."""
        found = super().rows(table, columns)
        if table != "public.chosen":
            return found
        return [row for row in found if int(row[0] or 0) % 2 == 0 and row[1] != "v4"]


class Kills:
    """Kills all executors, once for each time that it is armed."""

    def __init__(self, workers: Iterable[int]) -> None:
        self._workers = [psutil.Process(pid) for pid in workers]
        self.done = 0

    def now(self) -> None:
        """Kill them."""
        for executor in executors_of(self._workers):
            executor.kill()
            self.done += 1

    @contextmanager
    def once(self, *points: str) -> Iterator[None]:
        """Kill at the first reach of each of these fault points within; there must be one."""
        left, before, lock = set(points), self.done, threading.Lock()

        def reached(point: str) -> None:
            with lock:
                if point in left:
                    left.discard(point)
                    self.now()

        faults.install(reached)
        try:
            yield
        finally:
            faults.install(lambda _: None)
        assert not left, left
        assert self.done > before

    def when(self, condition: Callable[[], bool]) -> threading.Thread:
        """Kill as soon as a condition holds, in a thread."""

        def run() -> None:
            while not condition():
                time.sleep(0.01)
            self.now()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


class Scenario:
    """One subscription, step by step."""

    def __init__(self, spark: Any, source: Source, folder: Path, kills: Kills) -> None:
        self.spark, self.source, self.kills, self.folder = spark, source, kills, folder
        definitions = folder / "definitions.sql"
        definitions.write_text(DEFINITIONS)
        options = {
            "batch__max_bytes": 200_000_000,
            "publication_definitions": str(definitions),
            "workers__retry_max_s": 2,
        }
        publisher: Any = source  # a Publisher has more
        self.bridge = Pipeline(spark, publisher, folder, **options)
        self._began_s = time.monotonic()

    def assert_equal(self, step: str) -> None:
        """Compare all tables."""
        for table in ("docs", "facts", "chosen"):
            found = differences(self.spark, self.bridge.path(table), self.source, f"public.{table}")
            assert found == [], (step, table, len(found), found[:3])
        self._tell(f"{step}: equal")

    def _tell(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:.1f} s: {text}", flush=True)

    def copy(self) -> None:
        """Executors die while they copy."""
        self.source.execute(SETUP)
        with psycopg.connect(self.source.conninfo, autocommit=True) as connection:
            copying = self.kills.when(lambda: connection.execute(COPYING).fetchone() != (0,))
            self.bridge.catch_up()
            copying.join(0)
            assert not copying.is_alive()
        self.assert_equal("copy")

    def batches(self) -> None:
        """They die before a commit, with rows in the plan, and beyond that."""
        for name, statements in (("batch", BATCH), ("wide batch", WIDE)):
            self.source.execute(statements)
            with self.kills.once("table_begun"):
                self.bridge.catch_up()
            self.assert_equal(name)

    def large(self) -> None:
        """They die with the checkpoints of a transaction's parts: it is formed again, from the stream."""
        copy_both._BUFFER_BYTES = 1 << 14
        self.bridge.subscription = altered(self.bridge.subscription, batch__max_bytes=100_000)
        checkpointed, made = source.checkpointed, list[Any]()

        def counted(frame: Any) -> Any:
            made.append(checkpointed(frame))
            if len(made) == 4:
                self.kills.now()
            return made[-1]

        replaced: Any = source
        replaced.checkpointed, Cluster.piece_bytes = counted, 20_000
        self.source.execute(LARGE)
        self.bridge.catch_up()
        self.assert_equal("large transaction")
        replaced.checkpointed, Cluster.piece_bytes = checkpointed, 64 << 20
        self._tell(f"{len(made)} parts; {self.bridge.catalog.subscription('sub')}")
        assert len(made) > 8

    def refused(self) -> None:
        """They die while a batch is undone."""
        docs = self.bridge.path("docs")
        self.spark.sql(f"INSERT INTO delta.`{docs}` VALUES (200001, 'of somebody else', 0, NULL)").collect()
        before = len(self.bridge.rows("facts"))
        self.source.execute(REFUSED)
        with self.kills.once("undo_begun"), pytest.raises(ApplyError, match="insert_exists") as raised:
            self.bridge.catch_up()
        finish_lsn = raised.value.context.finish_lsn
        assert finish_lsn is not None
        self.bridge.catalog.set_skip_lsn("sub", finish_lsn)
        assert len(self.bridge.rows("facts")) == before
        self.source.execute("INSERT INTO facts VALUES (-1, 'after')")
        self.bridge.catch_up()
        assert len(self.bridge.rows("facts")) == before + 1
        self._tell("refused transaction: undone and skipped")


def main() -> None:
    """Run the steps."""
    master, conninfo, folder, settings, steps, *workers = sys.argv[1:]
    spark = session.start(master, json.loads(settings), log=Path(folder, "spark.log"))
    scenario = Scenario(spark, Source(conninfo), Path(folder), Kills(map(int, workers)))
    for step in steps.split():
        getattr(scenario, step)()
    session.driver_of(spark).stop(spark)


if __name__ == "__main__":
    main()
