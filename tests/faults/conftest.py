"""Fixtures of the tests of faults."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from bridge.service import daemon as daemon_module
from bridge.spark import session
from tests.faults.lives import Lives
from tests.faults.on_call import SETUP, OnCall
from tests.faults.standby import ForkedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def shop(spark, publisher, tmp_path, pgbridge, monkeypatch) -> Iterator[OnCall]:
    """Both tables are copied, and their changes followed."""
    monkeypatch.setattr(session, "start", lambda *_, **__: spark)
    monkeypatch.setattr(session, "stop", lambda _: None)
    for name in ("keep_freed", "share_interpreter"):  # settings of the whole process
        monkeypatch.setattr(daemon_module, name, lambda: None)
    on_call = OnCall(spark, publisher, tmp_path, pgbridge)
    on_call.execute(SETUP)
    with capture_logs():  # else it would stand between the commands' lines
        on_call.start()
        try:
            on_call.wait_for_state("streaming")
            yield on_call
        finally:
            on_call.stop()


@pytest.fixture
def private_server() -> Iterator[ForkedServer]:
    """A server that earlier copies of itself can replace."""
    with ForkedServer() as server:
        yield server


@pytest.fixture
def lives(spark, private_server, tmp_path, pgbridge, monkeypatch) -> Iterator[Callable[..., Lives]]:
    """Makes the subscription to that server: `lives(**options)`; a life gives up after one error of applying."""
    monkeypatch.setattr("bridge.service.subscriber._GIVE_UP_APPLYING_AFTER", 1)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # crashes of threads are meant
    made: list[Lives] = []

    def make(**options: Any) -> Lives:
        made.append(Lives(spark, private_server, tmp_path / f"lives{len(made)}", pgbridge, **options))
        return made[-1]

    yield make
    for item in made:
        item.bridge.catalog.close()
