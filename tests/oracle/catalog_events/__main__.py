"""Runs seeds by hand, each beside a native subscriber, on a server of their own.

.venv/bin/python -m tests.oracle.catalog_events --seeds 200      # Delta tables in memory
.venv/bin/python -m tests.oracle.catalog_events --seed 17        # with its statements and all that was said
.venv/bin/python -m tests.oracle.catalog_events --spark          # Delta tables
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.spark import session
from tests.fix_postgres import TEST_SETTINGS, Server
from tests.fix_spark import YOUNG_JVM
from tests.oracle.catalog_events.beside import outcome_of
from tests.oracle.memory_tables import in_memory


def main() -> None:
    """Run seeds, and print those that fail with all that happened."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.catalog_events")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, action="append", help="this one, and print all of it; may be repeated")
    parser.add_argument("--spark", action="store_true", help="with Delta tables, not with tables in memory")
    options = parser.parse_args()
    failed = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        embedded = stack.enter_context(EmbeddedPostgres(settings=TEST_SETTINGS, fsync=False))
        server = Server(str(embedded.folder), embedded.port, embedded.user, None, embedded)
        tables: Any = None
        if options.spark:
            tables = session.start("local[2]", {**YOUNG_JVM, "spark.sql.warehouse.dir": str(folder / "warehouse")})
            stack.callback(tables.stop)
        else:
            tables = stack.enter_context(in_memory())
        for seed in options.seed or range(options.first, options.first + options.seeds):
            begin_s = time.monotonic()
            outcome = outcome_of(tables, server, folder, seed)
            if outcome.failures:
                failed.append(seed)
            text = str(outcome) if outcome.failures or options.seed else f"seed {seed}:"
            print(text, dict(outcome.kinds), f"{time.monotonic() - begin_s:.1f} s", flush=True)
    print(f"{len(failed)} failed: {failed}")


if __name__ == "__main__":
    main()
