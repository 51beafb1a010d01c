"""A subscription is looked at on a real server, and nothing is created there."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.check.finding import Finding, Level
from pgbridge.bridge.check.known import Known
from pgbridge.bridge.check.subscription import _adding_tables, check_subscription
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.publication.publication import Publication
from pgbridge.bridge.publication.reapply import reapply
from pgbridge.bridge.publication.tables import Relations
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.protocol.lsn import Lsn
from tests.bridge.configurations import placed
from tests.bridge.made_daemon import wait_until


@pytest.fixture
def look(publisher, tmp_path):
    """Returns the findings of a subscription to `pub`, with options."""

    def check(catalog: Catalog | None = None, *, running: bool = False, **options) -> list[Finding]:
        settings = {"connection": publisher.conninfo, "publications": ("pub",), "warehouse": str(tmp_path / "lake")}
        subscription = Subscription(name=publisher.name, **placed(options, settings))
        return list(check_subscription(subscription, Known(catalog, running)))

    return check


def problems(found: list[Finding]) -> dict[str, Finding]:
    """Without what the test server's own settings give."""
    own = {"role", "max_slot_wal_keep_size", "open transactions"}
    return {one.subject: one for one in found if one.level is not Level.PASS and one.subject not in own}


def test_a_sound_subscription(look, publisher):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, j jsonb, d date); CREATE PUBLICATION pub FOR TABLE t")
    found = look()
    assert problems(found) == {}
    assert {one.subject: one.message for one in found}["public.t"] == '3 columns; as strings: "j"'
    found = look(target__jsonb="variant")
    assert {one.subject: one.message for one in found}["public.t"] == "3 columns"
    assert publisher.query("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]


@pytest.fixture
def private_server():
    """A server as initdb leaves it: its wal_level is too low."""
    with EmbeddedPostgres(settings={"wal_level": "replica"}, fsync=False) as server:
        yield server


def test_an_untouched_server(look, private_server):
    """Everything that is in the way is told at once: the server is restarted only once, and the tables are known."""
    with psycopg.connect(private_server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a int); CREATE PUBLICATION pub FOR TABLE t")
    found = problems(look(connection=private_server.conninfo()))
    assert {subject: one.level for subject, one in found.items()} == {
        "wal_level": Level.FAILURE,
        "public.t": Level.WARNING,
    }


def test_no_server(look):
    (found,) = look(connection="host=/nonexistent")
    assert (found.subject, found.level) == ("connection", Level.FAILURE)


def test_no_connection_string(look):
    (found,) = look(connection="password=p4ss word=x host")
    assert (found.subject, found.level) == ("connection", Level.FAILURE)
    assert "p4ss" not in found.message


def test_publications_that_do_not_exist_or_publish_nothing(look, publisher):
    publisher.execute("CREATE PUBLICATION pub")
    found = look()
    assert [(one.message, one.statement) for one in found if one.subject == "publications"] == [
        ("nothing is published to this subscription", 'ALTER PUBLICATION "pub" ADD TABLE …;')
    ]
    publisher.execute("CREATE PUBLICATION everything FOR ALL TABLES")  # which the statement cannot be run on
    assert problems(look(publications=("everything",)))["publications"].statement == ""
    missing = problems(look(publications=("pub", "gone")))["publications"]
    assert missing.level in {Level.WARNING, Level.FAILURE}  # an error before PostgreSQL 18


def test_a_publication_of_sequences_alone_is_given_tables():
    """PostgreSQL 19 refuses ADD TABLE of it."""
    nothing = reapply(None, [Publication("p", all_sequences=True)], Relations({}, frozenset(), 190000))
    assert _adding_tables(nothing) == 'ALTER PUBLICATION "p" SET ALL TABLES, ALL SEQUENCES;'


def test_sequences(look, publisher, tmp_path):
    publisher.execute("CREATE TABLE t (id serial PRIMARY KEY); CREATE PUBLICATION pub FOR ALL TABLES")
    file = tmp_path / "definitions.sql"
    file.write_text("CREATE PUBLICATION mine FOR ALL SEQUENCES, ALL TABLES")
    found = look(publication_definitions=str(file))
    assert problems(found) == {}
    (note,) = [one.message for one in found if one.subject == "sequences"]
    assert note.startswith('publication "mine" has ALL SEQUENCES')


def test_tables_with_problems(look, publisher):
    publisher.execute("CREATE TABLE t (a int)")
    publisher.execute('CREATE TABLE "Clash" (id int PRIMARY KEY, "ID" int)')
    publisher.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    found = problems(look(tables={"public.t": Table(partition_by=("b",))}))
    assert found.keys() == {"public.t", "public.Clash"}
    assert 'it has no column "b"' in found["public.t"].message


def test_definitions_that_cannot_be_reapplied(look, publisher, tmp_path):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, note text); CREATE PUBLICATION pub FOR TABLE t")
    publisher.execute("CREATE TABLE missing (id int PRIMARY KEY)")
    file = tmp_path / "definitions.sql"
    file.write_text("CREATE PUBLICATION mine FOR TABLE t WHERE (note ~ '(?=x)y' AND id > 1), missing;")
    found = problems(look(publication_definitions=str(file)))
    assert "row filter of public.t" in found
    assert "invalid publication WHERE expression" in found["row filter of public.t"].message
    messages = [one.message for one in look(publication_definitions=str(file)) if one.level is Level.WARNING]
    assert any("public.missing" in message for message in messages)


def test_options_that_the_server_lacks(look, publisher):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    assert "options" not in problems(look(streaming="on", two_phase=True, origin="none"))


def test_what_the_state_directory_knows(look, publisher, tmp_path):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    name = publisher.name
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register(name, enabled=True)
        catalog.set_slot(name, slot_name=name, slot_state="creating", system_identifier="1")
        catalog.create_origin(name, Lsn(0x100), "incarnation", [])
        found = problems(look(catalog))
    assert "another server" in found["replication"].message
    assert "does not exist on the publisher" in found["replication slot"].message


@pytest.mark.parametrize("state", ["streaming", "copying", "error", "disabled"])
def test_a_stranger_streams_from_the_slot(look, publisher, tmp_path, state):
    """That a daemon runs does not say that it is the one which reads the slot; a stream may begin before it says so."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    name = publisher.name
    with (
        closing(Catalog(catalog_path(tmp_path))) as catalog,
        ReplicationConnection(publisher.conninfo, application_name=name) as replication,
    ):
        lsn = replication.create_slot(name, export_snapshot=False).consistent_point
        catalog.register(name, enabled=True)
        catalog.create_origin(name, lsn, "incarnation", [])
        catalog.set_state(name, state)
        start = f"START_REPLICATION SLOT \"{name}\" LOGICAL 0/0 (proto_version '1', publication_names 'pub')"
        replication.connection.pgconn.send_query(start.encode())
        wait_until(
            lambda: publisher.query("SELECT active FROM pg_replication_slots WHERE slot_name = %s", (name,))[0][0], 20
        )
        found = [one for one in look(catalog, running=True) if one.subject == "replication slot"]
        assert [one.level for one in found] == [Level.PASS if state in {"streaming", "copying"} else Level.FAILURE]
        assert ("does not stream here" in found[0].message) == (state in {"error", "disabled"})


def test_tables_that_are_not_copied(look, publisher):
    """The role needs no SELECT for the stream."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    role = f"{publisher.name}_role"
    publisher.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        levels = [
            problems(look(connection=f"{publisher.conninfo} user={role}", copy_data=copied))["public.t"].level
            for copied in (True, False)
        ]
        assert levels == [Level.FAILURE, Level.WARNING]
    finally:
        publisher.execute(f"DROP ROLE {role}")


def test_what_is_not_followed_as_it_is_published(look, publisher, tmp_path):
    """And before the first start, an identity that is none."""
    publisher.needs(18)
    publisher.execute("CREATE TABLE t (a int, v int); ALTER TABLE t ADD CONSTRAINT nn NOT NULL a NOT VALID")
    publisher.execute("CREATE UNIQUE INDEX ti ON t (a); ALTER TABLE t REPLICA IDENTITY USING INDEX ti")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE t")
    assert any("is not an identity" in one.message for one in look() if one.subject == "public.t")
    name = publisher.name
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register(name, enabled=True)
        catalog.create_origin(name, Lsn(0x100), "abc", [RelRow("public", "gone", "r", Lsn(1), "/lake/gone", 1)])
        messages = {one.subject: one.message for one in look(catalog) if one.level is Level.WARNING}
    assert messages["public.gone"].startswith('table "public.gone" does not exist on the publisher any more')
    assert messages["public.t"] == 'table "public.t" is published and not followed'


def test_an_adopted_table(look, publisher, tmp_path):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    log = tmp_path / "lake" / "public" / "t" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text('{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}')
    assert problems(look()).keys() == {"Delta table of public.t"}
    assert problems(look(target__adopt=True)) == {}
