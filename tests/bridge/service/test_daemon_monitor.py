"""A real daemon's life: it obeys ENABLE, DISABLE and SIGTERM, shares its state with none, and is scraped all along."""

from __future__ import annotations

import json
import signal
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.bridge.made_daemon import SETUP, command, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_bridge import DaemonProcess

HTTP = '[http]\nlisten = "127.0.0.1:0"\n'
"""The log names the port."""

IMPATIENT = """
from pgbridge.bridge.runtime import threads
threads.Latest.__init__.__kwdefaults__["interval_s"], threads._OLD_S = 0.5, 2.0
from pgbridge.bridge.__main__ import main
main()
"""
"""A daemon that misses an answer of its JVM after two seconds in place of thirty."""

PATHS = ("metrics", "healthz", "readyz", "status.json", "")
TIMEOUT_S = 30


def ask(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(url: str) -> dict[tuple[str, str], float]:
    """The values by the name and the state or phase."""
    families = text_string_to_metric_families(ask(f"{url}metrics")[1])
    return {
        (sample.name, sample.labels.get("state") or sample.labels.get("phase") or ""): sample.value
        for family in families
        for sample in family.samples
    }


def events(bridge: DaemonProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in bridge.log.read_text().splitlines() if line.startswith("{")]


@contextmanager
def jvm_stopped(pid: int) -> Iterator[None]:
    """SIGSTOP for a daemon's JVM."""
    (jvm,) = [child for child in psutil.Process(pid).children(recursive=True) if child.name() == "java"]
    jvm.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        jvm.send_signal(signal.SIGCONT)


def test_a_daemons_life(publisher, daemon):
    """It is scraped while Spark starts, while it streams, and while its JVM hangs.

    Between that: its status, a second daemon refused, a message that nobody committed on its way, disable and enable
    while it runs. It ends by SIGTERM under load.
    """
    publisher.execute(SETUP)
    bridge = daemon()
    bridge.program = (sys.executable, "-c", IMPATIENT)
    bridge.config.write_text(bridge.config.read_text() + HTTP)
    bridge.start()
    bridge.wait_for("serving metrics")
    (url,) = (event["url"] for event in events(bridge) if "serving metrics" in event["event"])
    assert ask(f"{url}readyz") == (
        503,
        json.dumps({"ready": False, "not_ready": [{"reason": "Spark is starting"}]}),
    )
    assert metrics(url)["pgbridge_subscription_state", "streaming"] == 0

    def is_streaming() -> bool:
        return metrics(url)["pgbridge_subscription_state", "streaming"] == 1

    wait_until(is_streaming, 180)
    status = bridge.status()
    assert status["state"] == "streaming"
    assert status["tables"] == [{"name": "public.t", "state": "r", "path": bridge.path("t")}]
    assert status["last_error"] is None
    second = command(bridge, "run")
    assert second.returncode == 1
    assert f"another pgbridge daemon (process {bridge.pid})" in second.stderr

    publisher.execute("SELECT pg_logical_emit_message(false, 'prefix', 'content')")
    publisher.execute("INSERT INTO t SELECT generate_series(2, 100)")
    seen: list[dict[tuple[str, str], float]] = []

    def is_applied() -> bool:
        seen.append(metrics(url))
        return seen[-1]["pgbridge_rows_applied_total", ""] >= 99

    wait_until(is_applied)
    assert all(0 <= scraped["pgbridge_lag_seconds", ""] < 60 for scraped in seen)
    assert seen[-1]["pgbridge_batch_seconds_count", "commit"] >= 1
    assert seen[-1]["pgbridge_batch_seconds_sum", "commit"] > 0
    wait_until(lambda: ("pgbridge_jvm_heap_used_bytes", "") in metrics(url))
    assert [ask(url + path)[0] for path in PATHS] == [200] * len(PATHS)
    assert [path for path in PATHS if publisher.conninfo in ask(url + path)[1]] == []

    assert "disabled (" in command(bridge, "disable", "sub").stdout, "now, or after the batch under way"
    wait_until(lambda: metrics(url)["pgbridge_subscription_state", "disabled"] == 1)
    publisher.execute("INSERT INTO t VALUES (101)")
    assert "enabled (now)" in command(bridge, "enable", "sub").stdout
    wait_until(lambda: is_streaming() and metrics(url)["pgbridge_rows_applied_total", ""] >= 100)
    # Not at once: the server itself writes a record of running transactions every 15 s.
    wait_until(lambda: bridge.status()["lag_bytes"] == 0)

    with jvm_stopped(bridge.pid):
        wait_until(lambda: ("pgbridge_jvm_heap_used_bytes", "") not in metrics(url))
        assert ask(f"{url}status.json")[0] == 200
        assert ask(f"{url}healthz")[0] == 200
    wait_until(lambda: ("pgbridge_jvm_heap_used_bytes", "") in metrics(url))

    publisher.execute("INSERT INTO t SELECT generate_series(102, 5000)")
    assert bridge.stop() == 0
    stopped = bridge.status()
    assert (stopped["state"], stopped["enabled"]) == ("stopped", True)
    assert stopped["confirmed_flush_lsn"] == stopped["remote_lsn"]
    assert events(bridge)[-1]["event"] == "stopped"
    assert all({"event", "level", "timestamp"} <= event.keys() for event in events(bridge))
