"""Fixtures of the tests of faults."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.runtime import process, threads
from pgbridge.bridge.spark.driver import Driver
from tests.faults.lives import Lives
from tests.faults.on_call import SETUP, OnCall
from tests.faults.standby import ForkedServer
from tests.oracle.memory_tables import in_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def on_call(publisher, tmp_path, pgbridge, monkeypatch) -> Iterator[Callable[..., OnCall]]:
    """Makes a daemon on a Spark session, or with tables in memory; both tables are copied, and followed."""
    monkeypatch.setattr(process, "keep_freed", lambda: None)
    monkeypatch.setattr(threads, "share_interpreter", lambda _: None)
    monkeypatch.setattr(Driver, "stop", lambda *_: None)
    with ExitStack() as stack:

        def make(spark: Any = None) -> OnCall:
            spark = spark or stack.enter_context(in_memory())
            monkeypatch.setattr(Driver, "start", lambda *_, **__: spark)
            made = OnCall(spark, publisher, tmp_path, pgbridge)
            made.execute(SETUP)
            stack.enter_context(capture_logs())  # else it would stand between the commands' lines
            stack.callback(made.stop)
            made.start()
            made.wait_for_state("streaming")
            return made

        yield make


@pytest.fixture
def shop(on_call) -> OnCall:
    """For what Delta has no part in."""
    made: OnCall = on_call()
    return made


@pytest.fixture
def delta_shop(spark, on_call) -> OnCall:
    made: OnCall = on_call(spark)
    return made


@pytest.fixture
def private_server() -> Iterator[ForkedServer]:
    """A server that earlier copies of itself can replace."""
    with ForkedServer() as server:
        yield server


@pytest.fixture
def make_lives(private_server, tmp_path, pgbridge, monkeypatch) -> Iterator[Callable[..., Lives]]:
    """Makes the subscription to that server; a life gives up after one error of applying."""
    monkeypatch.setattr("pgbridge.bridge.service.subscriber._GIVE_UP_APPLYING_AFTER", 1)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # crashes of threads are meant
    made: list[Lives] = []

    def make(spark: Any, **options: Any) -> Lives:
        made.append(Lives(spark, private_server, tmp_path / f"lives{len(made)}", pgbridge, **options))
        return made[-1]

    yield make
    for item in made:
        item.bridge.catalog.close()


@pytest.fixture
def lives(tables, make_lives) -> Callable[..., Lives]:
    """Makes the subscription, with tables in memory: `lives(**options)`."""
    return partial(make_lives, tables)


@pytest.fixture
def delta_lives(spark, make_lives) -> Callable[..., Lives]:
    return partial(make_lives, spark)
