"""The process: it stops cleanly, obeys ENABLE and DISABLE, and does not share its state directory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

SETUP = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE PUBLICATION pub FOR TABLE t"


def command(bridge, *arguments):
    """Run another command on the daemon's configuration."""
    line = [sys.executable, "-m", "bridge", *arguments, "--config", str(bridge.config)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.3)


def test_a_daemons_life(spark, publisher, daemon):
    """Start, status, a second daemon refused, disable and enable while it runs, SIGTERM under load, kill -9."""
    publisher.execute(SETUP)
    bridge = daemon()
    bridge.start()
    bridge.wait_for('"streaming"')
    status = bridge.status()
    assert status["state"] == "streaming"
    assert status["tables"] == [{"name": "public.t", "state": "r", "path": bridge.path("t")}]
    assert status["last_error"] is None

    second = command(bridge, "run")
    assert second.returncode == 1
    assert f"another pgbridge daemon (process {bridge.pid})" in second.stderr

    assert "disabled (now)" in command(bridge, "disable", "sub").stdout
    wait_until(lambda: bridge.status()["state"] == "disabled")
    publisher.execute("INSERT INTO t VALUES (2)")
    assert "enabled (now)" in command(bridge, "enable", "sub").stdout
    wait_until(lambda: bridge.status()["state"] == "streaming" and bridge.status()["lag_bytes"] == 0)

    publisher.execute("INSERT INTO t SELECT generate_series(3, 5000)")
    assert bridge.stop() == 0
    stopped = bridge.status()
    assert (stopped["state"], stopped["enabled"]) == ("stopped", True)
    assert stopped["confirmed_flush_lsn"] == stopped["remote_lsn"]
    events = [json.loads(line) for line in bridge.log.read_text().splitlines() if line.startswith("{")]
    assert events[-1]["event"] == "stopped"
    assert all({"event", "level", "timestamp"} <= event.keys() for event in events)

    publisher.execute("INSERT INTO t VALUES (5001)")
    assert bridge.run_until_caught_up(fault="table_committed") == -signal.SIGKILL
    assert bridge.run_until_caught_up() == 0
    assert spark.read.format("delta").load(bridge.path("t")).count() == 5001


def test_a_failing_subscription_makes_until_caught_up_fail(publisher, daemon):
    bridge = daemon(publications=["nothing"])
    assert bridge.run_until_caught_up() == 1
    assert 'publication "nothing" does not exist' in bridge.status()["last_error"]["message"]


def test_a_second_signal_ends_it_at_once(publisher, daemon):
    publisher.execute(SETUP)
    bridge = daemon()
    bridge.start()
    bridge.wait_for('"starting Spark"')
    bridge._process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    bridge._process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    bridge.wait(30)
    assert time.monotonic() - started < 10
