"""What a server says of itself is read from a real one."""

from __future__ import annotations

import pytest

from pgbridge.bridge.receive.connection import connect
from pgbridge.bridge.receive.server_facts import identify, read_facts, read_privileges
from pgbridge.bridge.runtime.errors import PublisherError


def test_facts(publisher):
    facts = read_facts(publisher.conninfo, application_name="test")
    shown = dict(publisher.query("SELECT name, setting FROM pg_settings WHERE name LIKE 'max_%s'"))
    assert facts.settings["max_wal_senders"] == shown["max_wal_senders"]
    assert facts.settings["wal_level"] == "logical"
    assert (facts.database, facts.in_recovery, facts.superuser) == (publisher.name, False, True)
    assert abs(facts.clock_ahead_s) < 5
    assert facts.security.local
    assert not facts.security.tls


def test_open_transactions(publisher):
    publisher.execute("CREATE TABLE t (id int)")
    with publisher.connect() as connection:
        connection.autocommit = False
        connection.execute("INSERT INTO t VALUES (1)")
        (found,) = [
            one
            for one in read_facts(publisher.conninfo, application_name="test").open_transactions
            if one.database == publisher.name
        ]
        assert (found.prepared, found.name) == (False, str(connection.info.backend_pid))
        assert found.age_s is not None
        connection.rollback()


def test_prepared_transactions(publisher):
    publisher.execute("CREATE TABLE t (id int)")
    gid = f"{publisher.name} it's"
    with publisher.connect() as connection:
        connection.autocommit = False
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("PREPARE TRANSACTION '" + gid.replace("'", "''") + "'")
    try:
        facts = read_facts(publisher.conninfo, application_name="test")
        assert [one.name for one in facts.open_transactions if one.prepared] == [gid]
    finally:
        publisher.execute("ROLLBACK PREPARED '" + gid.replace("'", "''") + "'")


def test_privileges(publisher):
    publisher.execute("CREATE TABLE t (a int, b int)")
    relid = publisher.query("SELECT 't'::regclass::oid")[0][0]
    with connect(publisher.conninfo, application_name="test") as connection:
        assert read_privileges(connection, [relid, 4_000_000_000])[relid].unreadable == ()
        connection.execute("CREATE ROLE privileges_test")
        try:
            connection.execute("GRANT SELECT (a) ON public.t TO privileges_test")
            connection.execute("ALTER TABLE public.t ENABLE ROW LEVEL SECURITY")
            connection.execute("SET ROLE privileges_test")
            found = read_privileges(connection, [relid])[relid]
            assert (found.usage, found.unreadable, found.row_security) == (True, ("b",), True)
        finally:
            connection.execute("RESET ROLE")
            connection.execute("DROP OWNED BY privileges_test")
            connection.execute("DROP ROLE privileges_test")


def test_identify(publisher):
    expected = publisher.query("SELECT system_identifier::text FROM pg_control_system()")[0][0]
    assert identify(publisher.conninfo, application_name="test").system_identifier == expected


def test_a_server_that_does_not_answer():
    with pytest.raises(PublisherError, match="cannot connect to the publisher"):
        read_facts("host=/nonexistent", application_name="test")
