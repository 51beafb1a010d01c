"""Values of many megabytes, with all that looks at a row on its way, and the heap that `check` names for them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pgbridge.bridge.spark.driver import OF_A_ROW
from pgbridge.protocol.lsn import Lsn
from tests.bridge.made_daemon import wait_until

SETUP = """
CREATE TABLE big (id int PRIMARY KEY, kept bool, v text); ALTER TABLE big REPLICA IDENTITY FULL;
INSERT INTO big SELECT 1, true, {value};
CREATE PUBLICATION pub FOR TABLE big;
"""
DEFINITIONS = "CREATE PUBLICATION p FOR TABLE big WHERE (kept AND length(v) > 5);"
CHANGES = (
    "INSERT INTO big SELECT id, id <> 3, {value} FROM generate_series(2, 3) id",  # one of them does not pass
    "UPDATE big SET id = 4 WHERE id = 2",
    "UPDATE big SET kept = false WHERE id = 1",  # leaves
    "UPDATE big SET kept = true WHERE id = 3",  # comes
)

ONE = ("INSERT INTO big SELECT 2, true, {value}",)


@pytest.mark.soak  # two JVMs, and gigabytes
@pytest.mark.parametrize(("megabytes", "changes"), [(64, CHANGES), (256, ONE)])
def test_a_value_is_streamed_filtered_and_verified(publisher, daemon, megabytes, changes):
    """Streamed while its transaction is in progress, through a filter that is re-applied here; then verified.

    An UPDATE brings the row twice, because of REPLICA IDENTITY FULL.
    """
    value = f"repeat('{'0123456789abcdef' * 64}', {megabytes << 10})"
    # a row in the stream has its old tuple, too
    heap = f"{OF_A_ROW * megabytes * (2 if len(changes) > 1 else 1)}m"
    publisher.execute(SETUP.format(value=value))
    publisher.execute(f"ALTER DATABASE {publisher.name} SET logical_decoding_work_mem = '64kB'")
    bridge = daemon(
        streaming="on",
        publication_definitions="definitions.sql",
        batch__max_age_s=0.0,
        spark_conf={"spark.driver.memory": heap},
    )
    (bridge.folder / "definitions.sql").write_text(DEFINITIONS)
    bridge.start()
    bridge.wait_for("streaming", 300)
    for change in changes:
        publisher.execute(change.format(value=value))
    streamed = "SELECT stream_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = 'sub'"
    wait_until(lambda: publisher.query(streamed) == [(True,)], 120)
    ((end,),) = publisher.query("SELECT pg_current_wal_lsn()::text")
    wait_until(lambda: Lsn.parse(bridge.status()["remote_lsn"] or "0/0") >= Lsn.parse(end), 400)
    assert bridge.status()["last_error"] is None, bridge.log_tail()
    line = [sys.executable, "-m", "pgbridge", "verify", "sub", "--json", "--config", str(bridge.config)]
    verified = subprocess.run(line, capture_output=True, text=True, check=False, timeout=600)
    assert verified.returncode == 0, (verified.stdout[-2000:], verified.stderr[-2000:])
    (table,) = json.loads(verified.stdout)["subscriptions"][0]["tables"]
    assert table["equal"], table
    ((wanted,),) = publisher.query("SELECT count(*)::int FROM big WHERE kept")
    assert table["rows"] == wanted
    assert bridge.stop() == 0
    assert "Spark's JVM has died" not in bridge.log.read_text()
