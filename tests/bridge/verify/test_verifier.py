"""The daemon's own verification: in parts, beside the stream, and only as often as it is of use."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.apply.published import Published
from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog import Catalog
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.catalog.verified import Begun, VerifiedRow, put, rows
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.monitor.document import subscription_status
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.bridge.runtime.threads import Turns
from pgbridge.bridge.verify import verifier as module
from pgbridge.bridge.verify.verifier import Verifier
from pgbridge.protocol.lsn import Lsn
from tests.bridge.configurations import placed
from tests.bridge.subscribed import end, running, wait_until
from tests.bridge.verify.test_verification import tables_of, verified
from tests.oracle.load import Load
from tests.oracle.memory_tables import MemoryTables

SETUP = """
CREATE TABLE large (id bigint PRIMARY KEY, note text);
INSERT INTO large SELECT n, repeat('x', 100) FROM generate_series(1, 2000) n;
CREATE TABLE uuids (id uuid PRIMARY KEY, note text);
INSERT INTO uuids SELECT (lpad(to_hex(n::bigint * 1000000), 8, '0') || repeat('0', 24))::uuid, repeat('y', 100)
  FROM generate_series(1, 2000) n;
CREATE TABLE bag (a int); INSERT INTO bag VALUES (1), (1), (2);
CREATE TABLE log (id int PRIMARY KEY);
CREATE PUBLICATION pub FOR TABLE large, uuids, bag, log;
"""
EVERY_S = 3600


@pytest.fixture
def bridge(publisher, pipeline, monkeypatch):
    monkeypatch.setattr(module, "_STEP_BYTES", 150_000)
    publisher.execute(SETUP)
    publisher.execute("VACUUM ANALYZE large, uuids")
    bridge = pipeline(workers__verify_every_h=EVERY_S / 3600, tables={"public.log": {"mode": "changelog"}})
    bridge.catch_up()
    return bridge


@contextmanager
def verifying(bridge):
    """Gives what takes a step of a verifier, beside a worker; each step is of a new process."""
    worker = running(bridge)

    def step():
        with closing_of(bridge) as verifier, capture_logs() as logs:
            after_s = verifier.turn()
        return after_s, [event for event in logs if event["log_level"] in {"warning", "error"}]

    try:
        yield step
    finally:
        end(worker)
    assert worker.error is None


@contextmanager
def closing_of(bridge):
    verifier = Verifier(bridge.subscription, bridge.spark, bridge.catalog, log.get("test"))
    try:
        yield verifier
    finally:
        verifier.stop()


def known(bridge):
    name = bridge.subscription.name
    return {rel.name: row for rel, row in rows(bridge.catalog, name, bridge.catalog.rels(name)).items()}


def all_done(bridge, step):
    """Take steps until none is due; returns what was logged, and how many steps it took."""
    events = []
    for number in range(100):
        after_s, logged = step()
        events += logged
        if after_s == module._LOOK_S:
            return events, number
    raise AssertionError(known(bridge))


def long_ago(bridge, seconds):
    for row in known(bridge).values():
        put(bridge.catalog, bridge.subscription.name, replace(row, tried_s=row.tried_s - seconds))


def problems(bridge):
    status = subscription_status(bridge.subscription, bridge.catalog, None, running=True)
    return [(each["relation"], each["message"]) for each in status["problems"] if each["kind"] == "differs"]


def test_large_tables_in_parts_under_load(publisher, bridge):
    """Rows change, come, go, and move between parts meanwhile, whose LSNs differ."""

    def change(connection, number):
        connection.execute("UPDATE large SET note = note || 'z' WHERE id %% 97 = %s", (number % 97,))
        connection.execute("UPDATE large SET id = 5000 - id WHERE id = %s", (100 + 37 * number % 1500,))
        connection.execute("INSERT INTO large VALUES (%s, 'new')", (100_000 + number,))
        connection.execute("DELETE FROM uuids WHERE id = (SELECT min(id::text)::uuid FROM uuids)")

    with verifying(bridge) as step, Load(publisher, change, pause_s=0.5):
        events, steps = all_done(bridge, step)
    assert events == []
    assert steps >= 5
    assert known(bridge).keys() == {"large", "uuids", "bag"}
    for row in known(bridge).values():
        assert row.lsn is not None, row
        assert (row.differs, row.could_not, row.begun) == (None, None, None)
    assert problems(bridge) == []


def test_a_delta_table_differs(bridge):
    large = f"delta.`{bridge.path('large')}`"
    for statement in (f"DELETE FROM {large} WHERE id = 1000", f"UPDATE {large} SET note = 'other' WHERE id = 1990"):
        bridge.spark.sql(statement).collect()
    with verifying(bridge) as step:
        events, _ = all_done(bridge, step)
        assert [(event["event"], event["relation"]) for event in events] == [
            ("a table differs from the published one", "public.large")
        ]
        assert "pgbridge verify" in events[0]["hint"]
        assert "--table public.large" in events[0]["hint"]
        ((relation, message),) = problems(bridge)
        assert relation == "public.large"
        assert message.endswith("1 changed, 1 missing")
        assert known(bridge)["large"].lsn is None
        with locked(bridge.folder / "state"):
            document = verified(bridge, "public.large")  # what the hint says
        shown = tables_of(document)["public.large"]["shown"]
        assert sorted(row["key"]["id"] for row in shown) == ["1000", "1990"]
        bridge.spark.sql(f"UPDATE {large} SET note = repeat('x', 100) WHERE id = 1990").collect()
        bridge.spark.sql(f"INSERT INTO {large} VALUES (1000, repeat('x', 100))").collect()
        long_ago(bridge, EVERY_S)
        assert all_done(bridge, step)[0] == []
    assert problems(bridge) == []
    assert known(bridge)["large"].lsn is not None


def test_only_what_has_changed_is_read_again(publisher, bridge):
    with verifying(bridge) as step:
        all_done(bridge, step)
        before = known(bridge)
        publisher.execute("INSERT INTO bag VALUES (3)")
        wait_until(lambda: len(bridge.rows("bag")) == 4)
        long_ago(bridge, EVERY_S)
        assert all_done(bridge, step) == ([], 1)
        after = known(bridge)
        assert after["bag"].lsn > before["bag"].lsn
        assert after["large"].lsn == before["large"].lsn
        long_ago(bridge, 7 * EVERY_S)
        all_done(bridge, step)
        assert all(row.lsn > before[name].lsn for name, row in known(bridge).items())


def test_what_has_not_changed_is_not_asked_for_often(bridge, monkeypatch):
    asked = []

    def version(*place):
        asked.append(place)
        return table_version(*place)

    monkeypatch.setattr(module, "table_version", version)
    with verifying(bridge) as step:
        all_done(bridge, step)
    long_ago(bridge, EVERY_S)
    bridge.catalog.set_state(bridge.subscription.name, "streaming")
    with closing_of(bridge) as verifier:
        assert [verifier.turn() for _ in range(3)] == [module._LOOK_S] * 3
    assert len(asked) == 3, "each of three tables once"


def copied_lsn(bridge):
    """Where the last copy of `large` joined the stream; 0 while it does not follow."""
    rels = bridge.catalog.rels(bridge.subscription.name)
    return max((rel.lsn for rel in rels if rel.name == "large" and rel.follows), default=Lsn(0))


def test_one_that_was_copied_since_begins_anew(publisher, bridge):
    with verifying(bridge) as step:
        while "large" not in known(bridge) or known(bridge)["large"].begun is None:
            step()
        begun, before = known(bridge)["large"].begun, copied_lsn(bridge)
        refresh.ask(bridge.catalog, bridge.subscription.name, [("public", "large")], copy_data=True)
        wait_until(lambda: copied_lsn(bridge) > before)
        publisher.execute("INSERT INTO bag VALUES (9)")
        wait_until(lambda: len(bridge.rows("bag")) == 4)
        step()
    assert known(bridge)["large"].begun.lower == begun.lower
    assert known(bridge)["large"].begun.lsn > begun.lsn


def test_a_damaged_table_does_not_silence_the_others(bridge):
    for file in Path(bridge.path("bag")).glob("*.parquet"):
        file.unlink()
    with verifying(bridge) as step:
        assert all_done(bridge, step)[0] == []
    assert "FileNotFoundException" in known(bridge)["bag"].could_not
    assert [name for name, row in known(bridge).items() if row.lsn is not None] == ["large", "uuids"]


@pytest.mark.parametrize("waits", ["for an open transaction", "for the daemon"])
def test_a_step_that_waits_ends_at_once(publisher, bridge, waits, monkeypatch):
    """It leaves no slot behind, and is not recorded."""
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pgbridge_verify%'"
    bridge.catalog.set_state(bridge.subscription.name, "streaming")  # although nothing moves the origin on
    with publisher.connect() as connection:
        connection.execute("BEGIN; INSERT INTO bag VALUES (7)")
        if waits == "for the daemon":
            connection.execute("COMMIT")
        monkeypatch.setattr(module, "_FIRST_S", 0.0)
        monkeypatch.setattr(module, "_TURNS", Turns("verify", rest=0))
        verifier = Verifier(bridge.subscription, bridge.spark, bridge.catalog, log.get("test"))
        verifier.start()
        wait_until(lambda: publisher.query(slots) == [(1,)])
        time.sleep(0.5)
        verifier.stop()
        assert verifier._answer is not None
        assert verifier._answer.done()
        wait_until(lambda: publisher.query(slots) == [(0,)])
    assert known(bridge) == {}


def test_a_server_that_does_not_answer_is_told_once(bridge):
    with closing_of(bridge) as verifier, capture_logs() as logs:
        bridge.catalog.set_state(bridge.subscription.name, "streaming")
        verifier._subscription = bridge.subscription.model_copy(update={"connection": "host=/nonexistent"})
        assert [verifier.turn() for _ in range(2)] == [module._LOOK_S] * 2
    assert [event["event"] for event in logs if event["log_level"] == "warning"] == [
        "tables cannot be verified now; they are tried again"
    ]


@pytest.mark.parametrize("error", [TypeError("no number"), PublisherError("the server has gone")])
def test_a_step_that_fails_leaves_the_other_tables_their_turn(tmp_path, monkeypatch, error):
    """Each of its tables has a step of its own then, so that one alone keeps failing."""
    steps = []

    class Verified:
        noted = ()

        def __init__(self, _, catalog, subscription, *__, **___):
            self.catalog, self.name = catalog, subscription.name

        def run(self, wanted):
            rels = [rel for rel in self.catalog.rels(self.name) if wanted(rel.qualified_name)]
            steps.append("".join(rel.name for rel in rels))
            if "b" in steps[-1]:
                raise error
            for rel in rels:
                compared(rel.name, time.time())

    monkeypatch.setattr(module, "Publisher", lambda *_, **__: nullcontext())
    monkeypatch.setattr(Published, "read", lambda *_: SimpleNamespace(tables={}))
    monkeypatch.setattr(module, "Verification", Verified)
    options = {"connection": "", "publications": ("pub",), "warehouse": "/lake"}
    subscription = Subscription(name="shop", **options, **placed({"workers__verify_every_h": 24}))

    def compared(name, tried_s, begun=None):
        put(catalog, "shop", VerifiedRow("public", name, "/t", Lsn(10), tried_s, Lsn(20), begun=begun))

    with closing(Catalog(tmp_path / "catalog.sqlite")) as catalog:
        catalog.register("shop", enabled=True)
        catalog.create_origin("shop", Lsn(0x20), "abc", [RelRow("public", name, "r", Lsn(10), "/t") for name in "abc"])
        catalog.set_state("shop", "streaming")
        spark: Any = MemoryTables()
        verifier = Verifier(subscription, spark, catalog, log.get("test"))
        with capture_logs() as logs:
            for _ in range(5):
                verifier.turn()
            compared("a", 0.0)  # looked at before that failure
            compared("c", 1.0)
            for _ in range(2):
                verifier.turn()
            compared("a", time.time(), Begun("id", "7", 20, 0.0, 1))  # after it, and not finished
            verifier.turn()
    assert steps == ["abc", "a", "b", "c", "b", "ac", "b", "b"]
    assert {event["exc_info"] for event in logs} == {isinstance(error, TypeError)}


def test_the_daemon_verifies_by_itself_and_ends_at_once(bridge, monkeypatch):
    monkeypatch.setattr(module, "_FIRST_S", 0.1)
    monkeypatch.setattr(module, "_LOOK_S", 0.1)
    monkeypatch.setattr(module, "_TURNS", Turns("verify", rest=0))
    with locked(bridge.folder / "state"):
        worker = running(bridge)
        wait_until(lambda: {row.lsn is not None for row in known(bridge).values()} == {True}, 120)
        end(worker)
    assert worker.error is None
