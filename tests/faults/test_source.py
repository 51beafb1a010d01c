"""kill -9 of a Spark program with the data source, at random moments under load; and a cluster of processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.bridge.source.replay import replayed, served
from tests.oracle.workload import Workload

KILLS = 12


class Program:
    """The program as a process of its own, with its JVM in its process group."""

    def __init__(self, *arguments, log):
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.source_query", *arguments],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def batches(self):
        return self.log.read_text().count("\nbatch ")

    def kill(self):
        """End it, its JVM and its Python workers, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.mark.soak
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_killed_under_load(publisher, spark, tmp_path, master):
    """Every change comes once, whatever was killed: replaying the Delta table gives the server's tables."""
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    slot = f"killed_{publisher.name}"
    kills = KILLS if master.startswith("local[") else 3
    stop = threading.Event()
    with Workload(publisher.conninfo, seed) as workload:
        workload.create_tables()
        publication = workload.publication()
        publisher.query(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")

        def load():
            while not stop.is_set():
                workload.step(5)
                time.sleep(0.1)

        thread = threading.Thread(target=load)
        thread.start()
        arguments = (publisher.conninfo, publication, slot, str(tmp_path), master)
        log = tmp_path / "program.log"
        try:
            for _ in range(kills):
                before = log.read_text().count("\nbatch ") if log.exists() else 0
                program = Program(*arguments, log=log)
                end_s = time.monotonic() + 180
                while program.batches() <= before and program.process.poll() is None and time.monotonic() < end_s:
                    time.sleep(0.1)
                assert program.process.poll() is None, log.read_text()[-4000:]
                time.sleep(dice.uniform(0, 6))
                program.kill()
        finally:
            stop.set()
            thread.join()
        last = Program(*arguments, "--once", log=log)
        assert last.process.wait(300) == 0, log.read_text()[-4000:]
        changes = spark.read.format("delta").load(str(tmp_path / "changes"))
        rows = changes.toArrow().to_pylist()  # `collect` gives times without their zone, and bytea as bytearray
        print(f"seed {seed}, {kills} kills, {len(rows)} changes, {dict(workload.counts)}")
        assert replayed(rows) == served(publisher.query), f"seed {seed}"
