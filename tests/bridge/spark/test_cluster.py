"""What a driver does when its cluster gives it nothing: it tells, and after minutes another one is started."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.runtime import log
from pgbridge.bridge.spark import cluster
from pgbridge.bridge.spark.cluster import ClusterState, ClusterWatch
from pgbridge.bridge.spark.session import driver_for

WORKS = ClusterState(stopped=False, executors=2, jobs=1)
IDLE = ClusterState(stopped=False, executors=0, jobs=0)
WAITS = ClusterState(stopped=False, executors=0, jobs=3)
ENDED = ClusterState(stopped=True, executors=0, jobs=0)


class Watched:
    """A watch with a clock, and the state of a cluster that a test sets."""

    def __init__(self, monkeypatch) -> None:
        self.now_s = 0.0
        self.state: ClusterState | None = WORKS
        monkeypatch.setattr(cluster, "cluster_state", self._look)
        spark: Any = None
        self._watch = ClusterWatch(spark, log.get("test"), now_s=lambda: self.now_s)

    def _look(self, _: object) -> ClusterState | None:
        return self.state

    def after(self, seconds: float, state: ClusterState | None) -> tuple[str | None, list[str]]:
        """The verdict after some seconds in a state, by a look every second; and what was logged."""
        self.state = state
        verdict = None
        with capture_logs() as logs:
            for _ in range(int(seconds)):
                self.now_s += 1
                verdict = verdict or self._watch.turn()
        return verdict, [f"{entry['log_level']}: {entry['event']}" for entry in logs]


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def test_jobs_without_executors_are_told_once_and_given_up_after_minutes(watched):
    assert watched.after(60, WORKS) == (None, [])
    assert watched.after(20, WAITS) == (None, [])
    assert watched.after(60, WAITS) == (None, ["warning: no executor runs pgbridge's jobs, so they wait"])
    assert watched.after(10, WORKS) == (None, ["info: the cluster gives executors again"])
    assert watched.after(290, WAITS)[0] is None
    assert watched.after(20, WAITS)[0] == "the cluster gives no executors"


def test_an_idle_driver_may_have_no_executors(watched):
    """With dynamic allocation the cluster takes them back."""
    assert watched.after(3600, IDLE) == (None, [])
    assert watched.after(29, WAITS) == (None, [])


def test_an_application_that_the_cluster_has_ended(watched):
    assert watched.after(6, ENDED)[0] == "the cluster has ended pgbridge's application"


def test_a_jvm_that_ends_is_not_this_watchs_business(watched):
    assert watched.after(600, None) == (None, [])


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", "sc://a"])
def test_a_master_that_is_no_cluster_of_ours_is_not_looked_at(monkeypatch, master):
    monkeypatch.setattr(cluster, "cluster_state", lambda _: ENDED)
    spark: Any = None
    assert driver_for(master).watch(spark, log.get("test")) is None
    cluster_of_ours = driver_for("spark://a:7077").watch(spark, log.get("test"))
    assert cluster_of_ours is not None
    assert cluster_of_ours() == "the cluster has ended pgbridge's application"


def test_the_state_of_a_driver(spark):
    """Of a local one, which is its own executor."""
    assert cluster.cluster_state(spark) == ClusterState(stopped=False, executors=0, jobs=0)
