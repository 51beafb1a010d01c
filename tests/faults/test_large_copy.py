"""A large table's copy is killed again and again while its rows change; hardly a row is read twice."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress

import pytest

from tests.bridge.made_daemon import wait_until
from tests.fix_bridge import ROOT

ROWS = 20_000_000
KILLS = 5
SETUP = f"""
CREATE TABLE t (id bigint PRIMARY KEY, note text, large text);
INSERT INTO t SELECT 10 * g, md5(g::text), NULL FROM generate_series(1, {ROWS}) g;
CREATE PUBLICATION pub FOR TABLE t;
"""
CHANGES = f"""
INSERT INTO t SELECT 10 * g + %s, 'new', NULL FROM generate_series(1, {ROWS}, {ROWS // 1000}) g;
UPDATE t SET note = note || '+' WHERE id IN (SELECT 10 * g FROM generate_series(3, {ROWS}, {ROWS // 1000}) g);
DELETE FROM t WHERE id IN (SELECT 10 * g + 20 * %s FROM generate_series(5, {ROWS}, {ROWS // 1000}) g);
UPDATE t SET id = 10 * {ROWS} - id + %s, large = 'moved'
 WHERE id IN (SELECT 10 * g FROM generate_series(%s, {ROWS} - 1000, {ROWS // 1000}) g);
"""
"""In each part of the table; rows move from either half to the other."""


def ranges_read(bridge) -> int:
    path = bridge.folder / "state" / "catalog.sqlite"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(lsn) FROM copied_range").fetchone()[0])
    return 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_copy_that_is_killed_five_times(publisher, daemon, capsys):
    publisher.execute(SETUP)
    publisher.execute("VACUUM ANALYZE t")
    ((sequential, by_index),) = publisher.query("SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables")
    bridge = daemon()
    # with the compilers that short tests do without
    bridge.config.write_text(re.sub(r'"spark\.(sql\.codegen|driver\.extraJava)[^\n]*\n', "", bridge.config.read_text()))
    began_s, held_bytes = time.monotonic(), 0
    for number in range(1, KILLS + 1):
        before = ranges_read(bridge) if number > 1 else 0
        bridge.start()
        wait_until(lambda least=before + 5: ranges_read(bridge) >= least, 300)
        bridge.kill()
        publisher.execute(CHANGES % (number, number, number, 100 * number))
        ((held,),) = publisher.query(
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots"
        )
        held_bytes = max(held_bytes, held)
    bridge.start("--until-caught-up")
    assert bridge.wait(1800) == 0, bridge.log_tail()
    took_s = time.monotonic() - began_s
    ((later, fetched),) = publisher.query("SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables")
    read = later - sequential + fetched - by_index
    with capsys.disabled():
        sys.stdout.write(f"\n{read / ROWS:.3f} copies read, {held_bytes >> 20} MiB of WAL held, {took_s:.0f} s\n")
    assert read <= 1.2 * ROWS
    verify = [sys.executable, "-m", "pgbridge", "verify", "sub", "--config", str(bridge.config)]
    result = subprocess.run(verify, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
