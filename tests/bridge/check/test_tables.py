"""Each rule on a table: what the role cannot read, what Delta cannot hold, what the server will refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgbridge.bridge.check.finding import Level
from pgbridge.bridge.check.tables import check_tables
from pgbridge.bridge.publication.published_table import PublishedColumn, PublishedTable
from pgbridge.bridge.receive.publisher import Publisher, quoted_name
from pgbridge.bridge.receive.server_facts import Privileges, read_privileges

ID = PublishedColumn("id", 23, -1, in_primary_key=True, in_replica_identity_index=False)
NOTE = PublishedColumn("note", 25, -1, in_primary_key=False, in_replica_identity_index=False)
TABLE = PublishedTable(1, "public", "t", "r", "d", (ID, NOTE), ())
ALL = Privileges(usage=True, unreadable=(), row_security=False)


def look(table=TABLE, privileges=ALL, *, changing=True, as_text=(), copied=True):
    sent = [table] if changing else []
    found = check_tables([table], {1: privileges}, {"public.t": as_text}, role="repl", sent=sent, copied=copied)
    return [(one.level, one.message, one.statement) for one in found]


def test_a_good_table():
    assert look() == [(Level.PASS, "2 columns", "")]


def test_columns_that_become_strings_are_named_ten_at_most():
    assert look(as_text=["j"])[0][1] == '2 columns; as strings: "j"'
    assert look(as_text=[f"c{number}" for number in range(12)])[0][1].endswith('"c9" and 2 more')


@pytest.mark.parametrize(
    ("privileges", "statement"),
    [
        (replace(ALL, usage=False), 'GRANT USAGE ON SCHEMA "public" TO "repl";'),
        (replace(ALL, unreadable=("note", "unpublished")), 'GRANT SELECT ON "public"."t" TO "repl";'),
        (replace(ALL, row_security=True), 'ALTER ROLE "repl" BYPASSRLS;'),
    ],
)
def test_a_table_that_cannot_be_copied_whole(privileges, statement):
    ((level, _, said),) = look(privileges=privileges)
    assert (level, said) == (Level.FAILURE, statement)
    ((level, message, said),) = look(privileges=privileges, copied=False)
    assert (level, said) == (Level.WARNING, statement)
    assert "a resync" in message


def test_a_column_that_is_not_published_need_not_be_readable():
    assert look(privileges=replace(ALL, unreadable=("unpublished",)))[0][0] is Level.PASS


def test_a_table_without_a_replica_identity():
    keyless = replace(TABLE, columns=(NOTE,))
    ((level, message, statement),) = look(keyless)
    assert level is Level.WARNING
    assert "the server refuses its UPDATEs and DELETEs" in message
    assert 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL;' in statement
    assert look(keyless, changing=False)[0][0] is Level.PASS
    assert look(replace(keyless, replica_identity="f"))[0][0] is Level.PASS


def test_a_column_list_without_the_key():
    cut = replace(TABLE, columns=(NOTE,), unpublished_keys=(ID,))
    assert '"id" of the replica identity' in look(cut)[0][1]


def test_a_table_that_delta_cannot_hold():
    clashing = replace(TABLE, columns=(ID, replace(NOTE, name="ID")))
    assert look(clashing)[0][0] is Level.WARNING
    assert "differ only in case" in look(clashing)[0][1]


def test_names_are_quoted_in_statements():
    hostile = replace(TABLE, namespace="public", name='a"; drop table x; --', columns=(NOTE,))
    (found,) = check_tables([hostile], {1: ALL}, {}, role="repl", sent=[hostile])
    assert '"public"."a""; drop table x; --"' in found.statement


def test_the_statements_let_the_role_read(publisher):
    """One after the other, until nothing is found; of names that have to be quoted."""
    role = f'{publisher.name} "reader"'
    grantee = quoted_name(role)
    publisher.execute('CREATE SCHEMA "My s"; CREATE TABLE "My s"."My t" (id int PRIMARY KEY, note text)')
    publisher.execute('ALTER TABLE "My s"."My t" ENABLE ROW LEVEL SECURITY; CREATE PUBLICATION pub FOR ALL TABLES')
    publisher.execute(f"CREATE ROLE {grantee}")
    run: list[str] = []
    try:
        with Publisher(publisher.conninfo, application_name="test") as server:
            (table,) = server.tables(["pub"])
            while True:
                server.connection.execute(f"SET ROLE {grantee}".encode())
                privileges = read_privileges(server.connection, [table.relid])
                found = check_tables([table], privileges, {}, role=role, sent=[table])
                statements = [one.statement for one in found if one.level is Level.FAILURE]
                if not statements:
                    break
                assert len(run) < 5, statements
                run.append(statements[0])
                publisher.execute(statements[0])
        assert [" ".join(statement.split()[:2]) for statement in run] == ["GRANT USAGE", "GRANT SELECT", "ALTER ROLE"]
    finally:
        publisher.execute(f"DROP OWNED BY {grantee}; DROP ROLE {grantee}")
