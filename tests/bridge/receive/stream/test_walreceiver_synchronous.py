"""`synchronous_standby_names` has the subscription's name: a COMMIT returns once its changes are durable here."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.receive.slot_watch import SlotWatch
from pgbridge.bridge.receive.stream import walreceiver
from tests.bridge.receive.streams import PATIENCE_S, SETTLED_S, Stream


@pytest.fixture(scope="module")
def private_server():
    """A server where the commits of sessions that ask for it wait for the standby `lake`."""
    settings: dict[str, str | int | bool] = {"synchronous_standby_names": "lake", "synchronous_commit": "local"}
    with EmbeddedPostgres(settings=settings, fsync=False) as server:
        yield server


@pytest.mark.parametrize("over", ["unix", "tcp"])
def test_a_synchronous_commit_waits_for_what_is_durable(private_server, tmp_path, monkeypatch, over):
    """No status update is due by itself, so the one that ends the wait is that of `confirm`."""
    monkeypatch.setattr(walreceiver, "STATUS_INTERVAL_S", 3600.0)
    monkeypatch.setattr(walreceiver, "IDLE_STATUS_INTERVAL_S", 3600.0)
    conninfo = private_server.conninfo() if over == "unix" else private_server.tcp_conninfo()
    with psycopg.connect(private_server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS s (a int)")
        connection.execute("DROP PUBLICATION IF EXISTS p; CREATE PUBLICATION p FOR TABLE s")
        stream = Stream(make_conninfo(conninfo, application_name="lake"), over, tmp_path)
        committed = threading.Event()

        def commit() -> None:
            connection.execute("SET synchronous_commit = on")
            connection.execute("INSERT INTO s VALUES (1)")
            connection.execute("SET synchronous_commit = local")
            committed.set()

        thread = threading.Thread(target=commit)
        try:
            stream.start()
            thread.start()
            (transaction,) = stream.take(1)
            assert not committed.wait(SETTLED_S)
            stream.progress.durable(transaction.end_lsn)
            stream.receiver.confirm()
            assert committed.wait(PATIENCE_S)
        finally:
            stream.receiver.stop()
            thread.join()


def test_the_page_is_told_of_it(private_server):
    """In each round of the watch, because the setting may be reloaded while a subscription streams."""
    asked = [
        Subscription(name=name, connection=private_server.conninfo(), publications=("p",), warehouse="/lake")
        for name in ("Lake", "other")
    ]
    with closing(SlotWatch(lambda: asked)) as watch:
        check_told(watch, private_server)


def check_told(watch, private_server):
    """The setting that the server has is seen, and another one after a reload."""
    watch.look()
    assert {name: health.synchronous for name, health in watch.health().items()} == {"Lake": True, "other": False}
    with psycopg.connect(private_server.conninfo(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
    deadline = time.monotonic() + PATIENCE_S
    while not watch.health()["other"].synchronous:
        assert time.monotonic() < deadline
        watch.look()
