"""A subscription of one table, its worker, and what one looks at to know how far it is."""

from __future__ import annotations

import time

from pgbridge.protocol.lsn import Lsn

SETUP = "CREATE TABLE t (id int PRIMARY KEY, note text); CREATE PUBLICATION pub FOR TABLE t"


def ids(bridge):
    return sorted(row["id"] for row in bridge.rows("t"))


def batches(bridge):
    """The commits that batches made; a copy's has an application id of its own."""
    return [
        commit for commit in bridge.commits("t") if not commit.get("txn", {"appId": "/copy"})["appId"].endswith("/copy")
    ]


def confirmed(publisher, slot_name):
    return Lsn.parse(
        publisher.query(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (slot_name,)
        )[0][0]
    )


def released(publisher, slot):
    """Wait until the server has seen that the connection which streamed from the slot is closed."""
    deadline = time.monotonic() + 60
    while publisher.query(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'") == [(True,)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running(bridge):
    """A worker that runs until it is stopped; waits until it streams."""
    worker = bridge.worker(until_caught_up=False)
    worker.thread.start()
    name = bridge.subscription.name
    wait_until(lambda: bridge.catalog.subscription(name).state == "streaming")
    return worker


def end(worker):
    worker.stop()
    worker.thread.join(60)
    assert not worker.thread.is_alive()


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
