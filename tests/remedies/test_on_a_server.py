"""What is to be run on the server is run there, on servers that are as badly set up as the messages say."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from structlog.testing import capture_logs

from pgbridge.bridge.check import server as check_server
from pgbridge.bridge.check.finding import Level
from pgbridge.bridge.check.known import Known
from pgbridge.bridge.check.subscription import check_subscription
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.config.tables import Alerts
from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.receive import slot_status
from pgbridge.bridge.receive.connection import connect
from pgbridge.bridge.receive.publications import apply_publications
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.receive.slot_status import SlotHistory, concern
from pgbridge.bridge.receive.slot_watch import SlotWatch
from pgbridge.bridge.runtime.errors import PublicationError, PublisherError
from pgbridge.bridge.source.options import SourceOptions, published_tables
from tests.bridge.configurations import altered
from tests.faults.standby import Standby

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbridge.bridge.check.finding import Finding

BADLY: dict[str, str | int | bool] = {
    "wal_level": "replica",
    "max_replication_slots": 1,
    "max_wal_senders": 1,
    "idle_replication_slot_timeout": "1h",
    "wal_sender_timeout": "4s",
}
SUBJECTS = {*BADLY, "max_slot_wal_keep_size", "open transactions", "password"}


def filled(statement: str, **values: str) -> str:
    """A printed statement with a value in place of each ellipsis, in order."""
    given = iter(values.values())
    return re.sub("…", lambda _: next(given), statement)


class Bad:
    """A server, and a subscription to it by a role of its own."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server = server
        self.run(
            "CREATE ROLE shop LOGIN REPLICATION PASSWORD 'old' VALID UNTIL 'infinity' IN ROLE pg_monitor;"
            "CREATE TABLE t (id int); CREATE PUBLICATION pub FOR TABLE t"
        )
        self.subscription = Subscription(
            name="shop",
            connection=make_conninfo(server.conninfo(), user="shop"),
            publications=("pub",),
            warehouse="/lake",
            alerts=Alerts(retained_bytes=0),  # nobody would be told of WAL that is held
        )

    def run(self, *statements: str) -> None:
        """Run statements as a superuser, as they are printed: several in one line are one after the other."""
        with psycopg.connect(self.server.conninfo(), autocommit=True) as connection:
            for statement in statements:
                for one in filter(None, (part.strip() for part in statement.split(";"))):
                    connection.execute(one.encode())

    def problems(self, **options: object) -> dict[str, Finding]:
        """What `pgbridge check` finds, by subject."""
        subscription = self.subscription.model_copy(update=options)
        found = check_subscription(subscription, Known(None, running=False))
        return {one.subject: one for one in found if one.level is not Level.PASS}


@pytest.fixture(scope="module")
def private_server() -> Iterator[EmbeddedPostgres]:
    """A server that is set up badly, and then better and better."""
    with EmbeddedPostgres(settings=BADLY, fsync=False) as server:
        yield server


@pytest.fixture(scope="module")
def bad(private_server) -> Bad:
    """A subscription to it; another has the only slot."""
    made = Bad(private_server)
    made.run("SELECT pg_create_physical_replication_slot('taken')")
    return made


def refusal(conninfo: str, *, senders: int = 1) -> PublisherError:
    """The error of the last of some WAL senders, or of its slot."""

    def create_slot() -> None:
        with ExitStack() as stack:
            for _ in range(senders):
                last = stack.enter_context(ReplicationConnection(conninfo, application_name="shop"))
            last.create_slot("mine")

    with pytest.raises(PublisherError) as caught:
        create_slot()
    return caught.value


def statement_of(error: PublisherError) -> str:
    (statement,) = re.findall(r"(?:server|primary): (ALTER SYSTEM SET [^;]*)", error.hint)
    return str(statement)


def test_a_server_that_was_never_set_up(bad, monkeypatch):
    """By `check`, by the first connection, and by the first slot; all that needs a restart has one."""
    conninfo = bad.subscription.connection
    with pytest.raises(PublisherError, match="wal_level") as refused:
        Publisher(conninfo, application_name="shop")
    no_slot, no_sender = refusal(conninfo), refusal(conninfo, senders=2)
    assert "wal_level" in no_slot.message
    assert "max_wal_senders = …" in no_sender.hint
    monkeypatch.setattr(check_server, "_LONG_S", -1.0)
    bad.run("ALTER ROLE shop VALID UNTIL '" + psycopg_time(bad) + "'")
    with psycopg.connect(bad.server.conninfo()) as idle:
        idle.execute("SELECT pg_current_xact_id()")
        found = bad.problems()
        assert found.keys() >= SUBJECTS
        printed = {subject: found[subject].statement for subject in SUBJECTS - {"wal_level"}}
        printed["password"] = filled(printed["password"], password="new", until="infinity")
        bad.run(*printed.values())
        with pytest.raises(psycopg.OperationalError):
            idle.execute("SELECT 1")
    (same,) = {filled(statement_of(error)) for error in (refused.value, no_slot)}
    assert "SET wal_level = logical" in found["wal_level"].remedy
    bad.run(same, statement_of(no_sender).replace("…", "10"))
    bad.server.restart()
    assert not SUBJECTS.intersection(bad.problems())
    bad.run("ALTER SYSTEM SET max_replication_slots = 1")
    bad.server.restart()
    no_room = refusal(conninfo)
    bad.run(statement_of(no_room).replace("…", "10"))
    bad.server.restart()
    with ReplicationConnection(conninfo, application_name="shop") as replication:
        assert replication.create_slot("mine").consistent_point


def psycopg_time(bad: Bad) -> str:
    """Tomorrow, by the server's clock."""
    with psycopg.connect(bad.server.conninfo()) as connection:
        ((tomorrow,),) = connection.execute("SELECT now() + '1 day'")
        return str(tomorrow)


@contextmanager
def slot(bad: Bad, name: str) -> Iterator[None]:
    bad.run(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    try:
        yield
    finally:
        bad.run(f"SELECT pg_drop_replication_slot('{name}')")


def test_a_slot_that_another_reads(bad):
    with slot(bad, "read"), closing(connect(bad.server.conninfo(), application_name="x", replication=True)) as reader:
        reader.pgconn.send_query(
            b"START_REPLICATION SLOT read LOGICAL 0/0 (proto_version '1', publication_names 'pub')"
        )
        options = {"slot_name": "read", "create_slot": False}
        found = wait_for(lambda: bad.problems(**options).get("replication slot"))
        assert found.level is Level.FAILURE
        bad.run(found.statement)
        assert wait_for(lambda: "replication slot" not in bad.problems(**options))


def wait_for(found):
    """The first answer that is one."""
    for _ in range(200):
        if answer := found():
            return answer
    raise AssertionError


def test_a_slot_that_runs_out_of_wal(bad, monkeypatch):
    """It may hold 1 MB: it is nearly lost, and at this rate soon; with more it is safe again."""
    monkeypatch.setattr(slot_status, "_LEAST_S", 0.0)
    monkeypatch.setattr(slot_status, "_LEAST_BYTES", 1)
    switched = "SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal(); "
    with slot(bad, "held"), Publisher(bad.server.conninfo(), application_name="x") as publisher:
        bad.run("ALTER SYSTEM SET max_slot_wal_keep_size = '100MB'; SELECT pg_reload_conf()")

        def told(history: SlotHistory, now_s: float):
            seen = publisher.slots(["held"])
            health = history.add(now_s, seen.by_name["held"], seen.flush_lsn)
            return concern(
                altered(bad.subscription, slot_name="held", alerts__retained_bytes=0, alerts__slot_left_s=1e9), health
            )

        history = SlotHistory()
        assert wait_for(lambda: publisher.setting("max_slot_wal_keep_size") == "100")
        assert told(history, 0.0) is None
        bad.run(switched)
        running_out = told(history, 100.0)
        assert running_out.kind == "running out"
        assert running_out.hint.startswith("raise max_slot_wal_keep_size on the server")
        bad.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'; SELECT pg_reload_conf()", *[switched] * 3)
        about_to_be = wait_for(lambda: told(SlotHistory(), 0.0))
        assert about_to_be.kind == "unreserved"
        assert about_to_be.hint.startswith("raise max_slot_wal_keep_size on the server now")
        found = bad.problems(slot_name="held", create_slot=False)["replication slot"]
        bad.run(filled(found.statement, size="50GB"))
        assert wait_for(lambda: told(history, 101.0) is None)
        assert "replication slot" not in bad.problems(slot_name="held", create_slot=False)


def test_a_transaction_that_holds_wal(bad, monkeypatch):
    """`pgbridge check` names it, as the daemon says."""
    monkeypatch.setattr(check_server, "_LONG_S", -1.0)
    with slot(bad, "kept"), psycopg.connect(bad.server.conninfo()) as idle:
        idle.execute("SELECT pg_current_xact_id()")
        with Publisher(bad.server.conninfo(), application_name="x") as publisher:
            bad.run("SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal()")
            seen = publisher.slots(["kept"])
            health = SlotHistory().add(0.0, seen.by_name["kept"], seen.flush_lsn)
            told = concern(
                altered(bad.subscription, slot_name="kept", alerts__retained_bytes=100, alerts__slot_left_s=0), health
            )
        assert told is not None
        assert told.hint.startswith("see why the subscription lags, or why a transaction stays open: pgbridge status")
        assert "is open in database" in bad.problems()["open transactions"].message


def test_a_password_that_expires(bad):
    """As the daemon says it, once."""
    bad.run(f"ALTER ROLE shop VALID UNTIL '{psycopg_time(bad)}'")
    with slot(bad, "shop"), closing(SlotWatch(lambda: [bad.subscription])) as watch:
        for told in (1, 0):
            with capture_logs() as events:
                watch._password_told_s.clear()
                watch.look()
            hints = [event["hint"] for event in events if "password" in event["event"]]
            assert len(hints) == told
            for hint in hints:
                (statement,) = re.findall("run on the server: ([^;]*)", hint)
                bad.run(filled(statement, role="shop", password="newer", until="infinity"))


def test_a_standby_without_feedback(bad):
    with Standby(bad.server, {"hot_standby_feedback": False}) as standby:
        subscription = bad.subscription.model_copy(
            update={"connection": make_conninfo(standby.conninfo(), user="shop")}
        )
        on_standby: Any = SimpleNamespace(server=standby, subscription=subscription)
        found = Bad.problems(on_standby)["hot_standby_feedback"]
        Bad.run(on_standby, found.statement)
        assert wait_for(lambda: "hot_standby_feedback" not in Bad.problems(on_standby))


def test_publications_that_do_not_exist(publisher):
    """To `check`, to the data source, and before PostgreSQL 18 to the stream."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY)")

    def created(statement):
        publisher.execute(filled(statement, table="t"))

    subscription = Subscription(
        name="shop", connection=publisher.conninfo, publications=("checked",), warehouse="/lake"
    )
    look = lambda: {  # noqa: E731 - asked twice
        one.subject: one for one in check_subscription(subscription, Known(None, running=False))
    }
    created(look()["publications"].statement)
    assert look()["publications"].level is Level.PASS
    with Publisher(publisher.conninfo, application_name="x") as opened:
        options = SourceOptions(publisher.conninfo, ("read",))
        with pytest.raises(PublisherError) as caught:
            published_tables(opened, options)
        created(caught.value.hint.partition(": ")[2])
        assert [table.name for table in published_tables(opened, options)] == ["t"]
        opened.version = 170000
        with pytest.raises(PublisherError, match="before 18") as caught:
            opened.missing(["streamed"])
        created(caught.value.hint.partition(": ")[2])
        assert opened.missing(["streamed"]) == []


def test_definitions_of_partitions_on_a_stream_of_their_root(publisher):
    publisher.execute(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE p PARTITION OF r FOR VALUES FROM (0) TO (9);"
        "CREATE TABLE q PARTITION OF r DEFAULT;"
        "CREATE PUBLICATION pub FOR TABLE r WITH (publish_via_partition_root)"
    )
    definitions = parse(
        "CREATE PUBLICATION d FOR TABLE r WHERE (id > 5) WITH (publish_via_partition_root, publish = 'insert');"
        "CREATE PUBLICATION e FOR TABLE p WITH (publish = 'delete')",
        "d.sql",
    )
    with Publisher(publisher.conninfo, application_name="x") as opened:
        applied = apply_publications(opened, ["pub"], definitions)
        with pytest.raises(PublicationError, match="need a stream of whole"):
            applied.check()
        (root,) = [one for one in applied.routing.relations.by_relid.values() if one.name == "r"]
        with pytest.raises(PublicationError) as caught:
            applied.routing.route(root)  # as when rows come under its name
        assert "publish_via_partition_root = false" in caught.value.hint
        publisher.execute("ALTER PUBLICATION pub SET (publish_via_partition_root = false)")
        apply_publications(opened, ["pub"], definitions).check()
