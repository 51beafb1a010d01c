"""What each kind of driver tells; `tests/faults/test_jvm.py` has what a daemon does when a JVM ends.

A JVM that does not answer is killed; one that answers, is slow or is dead already is not, nor is a server.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pgbridge.bridge.catalog.lock import spark_lock
from pgbridge.bridge.runtime import log
from pgbridge.bridge.spark import driver as module
from pgbridge.bridge.spark.driver import JvmWatch
from pgbridge.bridge.spark.session import driver_for, driver_of

MIB = 1 << 20
LOCAL, CLUSTER, SERVER = (driver_for(master) for master in ("local[2]", "spark://host:7077", "sc://host/;token=secret"))


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("local[4]", {}, 2048 + 384 + 400),
        ("local", {"spark.driver.memory": "512m"}, 512 + 384 + 100),
        ("local[2, 3]", {"spark.driver.memory": "8G"}, 8192 + 819 + 200),
        ("spark://host:7077", {"spark.driver.memory": "1g"}, 1024 + 384),
        ("sc://host", {"spark.driver.memory": "64g"}, 0),
    ],
)
def test_what_spark_takes_of_the_memory(master, conf, expected):
    """The heap is the driver's; Python workers are here only where the tasks are."""
    assert driver_for(master).memory_bytes(conf) // MIB == expected


def test_the_rows_for_which_the_heap_is_large_enough():
    assert LOCAL.largest_row_bytes({}) == 128 * MIB
    assert driver_for("local").largest_row_bytes({"spark.driver.memory": "4g"}) == 256 * MIB
    assert CLUSTER.largest_row_bytes({}) is None, "rows are at its executors, too"
    assert SERVER.largest_row_bytes({}) is None


def test_facts():
    drivers = (LOCAL, CLUSTER, SERVER)
    assert [driver.is_ours for driver in drivers] == [True, True, False]
    assert [driver.executors_here for driver in drivers] == [True, False, False]
    assert [driver.copied_bytes // MIB for driver in drivers] == [256, 0, 32]
    assert [driver.shown for driver in drivers] == ["local[2]", "spark://host:7077", "sc://host"]


def test_only_a_jvm_of_an_earlier_daemon_is_waited_for(tmp_path):
    """Whoever has the lock holds up the others; a server does not end with a daemon."""
    with LOCAL.lock(tmp_path) as descriptor:
        assert isinstance(descriptor, int)
        with pytest.raises(Exception, match="still runs"), spark_lock(tmp_path, patience_s=0.0):
            pass
        with SERVER.lock(tmp_path) as nothing:
            assert nothing is None


def test_a_jvm_that_lives_is_not_lost(spark, monkeypatch):
    monkeypatch.setattr(module, "_ENDING_S", 0.2)
    driver = driver_of(spark)
    assert driver.lost() is None
    assert driver.lost(ConnectionRefusedError("of somebody else")) is None
    heap = driver.heap()
    assert heap is not None
    assert 0 < heap.used_bytes <= heap.max_bytes


def watched(ask: Any, killed: threading.Event, **others: Any) -> JvmWatch:
    """The watch over a driver that answers by a function, and sets an event when it is killed."""
    driver: Any = SimpleNamespace(process=object(), heap=ask, kill=killed.set, lost=lambda: None)
    vars(driver).update(others)
    return JvmWatch(log.get(), driver, patience_s=0.2, turn_s=0.05)


def test_the_jvm_does_not_answer(capsys):
    over, killed = threading.Event(), threading.Event()
    with watched(over.wait, killed):
        assert killed.wait(60)
    over.set()
    assert "Spark's JVM does not answer; it is killed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "others"), [(1, {}), (None, {"lost": lambda: "it was killed by SIGKILL"}), (None, {"process": None})]
)
def test_one_that_answers_is_dead_or_is_not_ours(answer, others):
    """A dead one answers nothing, and needs no killing."""
    killed = threading.Event()
    with watched(lambda: answer, killed, **others):
        assert not killed.wait(0.6)
