"""A JVM that does not answer is killed; one that answers, is slow or is dead already is not, nor is a server."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.runtime import log
from bridge.service.jvm_watch import JvmWatch


def watched(ask: Any, killed: threading.Event, **others: Any) -> JvmWatch:
    """The watch over a driver that answers by a function, and sets an event when it is killed."""
    driver: Any = SimpleNamespace(process=object(), heap=ask, kill=killed.set, lost=lambda: None)
    vars(driver).update(others)
    return JvmWatch(log.get(), driver, patience_s=0.2, turn_s=0.05)


def test_the_jvm_does_not_answer(capsys):
    over, killed = threading.Event(), threading.Event()
    with watched(over.wait, killed):
        assert killed.wait(5)
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
