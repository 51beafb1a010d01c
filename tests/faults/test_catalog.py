"""A daemon whose tables are in a Hive metastore: it is killed, and the next one finds its tables there."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fix_bridge import ROOT
from tests.oracle.delta import differences
from tests.oracle.native import DatabaseRows, NativeSubscriber
from tests.oracle.test_workload_equal import repeated
from tests.oracle.workload import TABLES, Workload

SETUP = """
CREATE TABLE docs (id int PRIMARY KEY, body text);
INSERT INTO docs SELECT i, 'body ' || i FROM generate_series(1, 50) i;
CREATE PUBLICATION pub FOR TABLE docs;
"""


@pytest.fixture
def in_metastore(daemon, tmp_path):
    """Makes daemons over a metastore of Derby's in the test's folder."""

    def make(**options):
        settings = {
            "spark.sql.warehouse.dir": str(tmp_path / "tables"),
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true",
        }
        return daemon(warehouse="catalog:spark_catalog.shop", spark_conf=settings, **options)

    return make


def check(bridge):
    """What `pgbridge check` prints of the warehouse."""
    command = [sys.executable, "-m", "pgbridge", "check", "--config", str(bridge.config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return next(line for line in done.stdout.splitlines() if "warehouse:" in line)


@pytest.mark.soak  # two JVMs; `tests/oracle/test_catalog.py` has a crash at this point in every run
def test_a_metastore_keeps_the_tables(spark, publisher, in_metastore, tmp_path):
    """The daemon is killed between a table's commit and its record; the next one waits for its JVM, and goes on."""
    publisher.execute(SETUP)
    bridge = in_metastore()
    assert "creates the metastore at the first start" in check(bridge)
    bridge.start(fault="batch_committed")
    bridge.wait_for('"streaming"')
    publisher.execute("UPDATE docs SET body = 'changed' WHERE id % 2 = 0; DELETE FROM docs WHERE id = 1")
    assert bridge.wait() == -signal.SIGKILL, bridge.log_tail()
    assert bridge.run_until_caught_up() == 0, bridge.log_tail()
    (table,) = bridge.status()["tables"]
    assert table["path"] == "catalog:spark_catalog.shop.docs"
    assert differences(spark, f"{tmp_path}/tables/shop.db/docs", DatabaseRows(publisher.conninfo), "public.docs") == []


@pytest.mark.soak  # a JVM each
def test_check_asks_the_metastore(publisher, in_metastore):
    publisher.execute(SETUP)
    bridge = in_metastore()
    assert bridge.run_until_caught_up() == 0, bridge.log_tail()
    assert "catalog:spark_catalog.shop can be read" in check(bridge)
    for warehouse, words in {
        "catalog:spark_catalog.other": "the namespace does not exist yet",
        "catalog:nowhere": 'Spark knows no catalog "nowhere"',
    }.items():
        bridge.config.write_text(bridge.config.read_text().replace("catalog:spark_catalog.shop", warehouse))
        assert words in check(bridge)
        bridge.config.write_text(bridge.config.read_text().replace(warehouse, "catalog:spark_catalog.shop"))


@pytest.mark.soak
@pytest.mark.parametrize("seed", [20261124, 20261125])
def test_random_workload_with_kills(spark, publisher, in_metastore, tmp_path, seed):
    """SIGKILL while tables are created, while they are copied and while they follow, under load."""
    with Workload(publisher.conninfo, seed) as workload:
        workload.create_tables()
        workload.publication("pub")
        workload.step(100)
        with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
            bridge = in_metastore(batch__max_age_s=0.1, batch__max_rows=1500)
            moments = random.Random(seed)
            for life in range(8):
                with repeated(lambda: workload.step(1), 0.25):
                    bridge.start()
                    bridge.wait_for('"table copy started"' if life == 0 else '"streaming"')
                    time.sleep(moments.uniform(0.0, 3.0 if life == 0 else 12.0))
                    bridge.kill()
            assert bridge.run_until_caught_up() == 0, bridge.log_tail()
            native.wait_caught_up()
            for table in TABLES:
                place = Path(tmp_path, "tables", "shop.db", table.rpartition(".")[2].strip('"').lower())
                assert differences(spark, str(place), native, table) == []
            status = bridge.status()
            assert (status["apply_error_count"], status["sync_error_count"]) == (0, 0), bridge.log_tail()
