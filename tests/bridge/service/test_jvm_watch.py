"""A JVM that does not answer is killed; one that answers, is slow or is dead already is not."""

from __future__ import annotations

import threading

import pytest

from bridge.runtime import log
from bridge.service.jvm_watch import JvmWatch
from bridge.spark import session


@pytest.fixture
def killed(monkeypatch):
    """Set when the JVM is killed."""
    event = threading.Event()
    monkeypatch.setattr(session, "kill", event.set)
    monkeypatch.setattr(session, "died", lambda: None)
    return event


def test_the_jvm_does_not_answer(killed, capsys):
    over = threading.Event()
    with JvmWatch(log.get(), ask=over.wait, patience_s=0.2, turn_s=0.05):
        assert killed.wait(5)
    over.set()
    assert "Spark's JVM does not answer; it is killed" in capsys.readouterr().out


def test_one_that_answers(killed):
    with JvmWatch(log.get(), ask=lambda: 1, patience_s=0.2, turn_s=0.05):
        assert not killed.wait(0.6)


def test_one_that_is_dead(killed, monkeypatch):
    """It answers nothing, and needs no killing."""
    monkeypatch.setattr(session, "died", lambda: "it was killed by SIGKILL")
    with JvmWatch(log.get(), ask=lambda: None, patience_s=0.2, turn_s=0.05):
        assert not killed.wait(0.6)
