"""A real daemon is scraped while Spark starts, while it streams, and while its JVM hangs."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.bridge.made_daemon import SETUP, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

HTTP = '[http]\nlisten = "127.0.0.1:0"\n'
"""The log names the port."""

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


@contextmanager
def jvm_stopped(pid: int) -> Iterator[None]:
    """SIGSTOP for a daemon's JVM."""
    (jvm,) = [child for child in psutil.Process(pid).children(recursive=True) if child.name() == "java"]
    jvm.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        jvm.send_signal(signal.SIGCONT)


def test_a_daemon_that_is_scraped(publisher, daemon):
    """From its start, with a message that nobody committed on its way, to a JVM that does not answer."""
    publisher.execute(SETUP)
    bridge = daemon()
    bridge.config.write_text(bridge.config.read_text() + HTTP)
    bridge.start()
    bridge.wait_for("serving metrics")
    events = [json.loads(line) for line in bridge.log.read_text().splitlines() if line.startswith("{")]
    url = next(event["url"] for event in events if "serving metrics" in event["event"])
    assert ask(f"{url}readyz") == (
        503,
        json.dumps({"ready": False, "not_ready": [{"reason": "Spark is starting"}]}),
    )
    assert metrics(url)["pgbridge_subscription_state", "streaming"] == 0
    wait_until(lambda: metrics(url)["pgbridge_subscription_state", "streaming"] == 1, 180)

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

    with jvm_stopped(bridge.pid):
        wait_until(lambda: ("pgbridge_jvm_heap_used_bytes", "") not in metrics(url))
        assert ask(f"{url}status.json")[0] == 200
        assert ask(f"{url}healthz")[0] == 200
    wait_until(lambda: ("pgbridge_jvm_heap_used_bytes", "") in metrics(url))
    assert bridge.stop() == 0
