"""The script that is printed makes a role that can do what pgbridge does, and no more."""

from __future__ import annotations

import re

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgbridge import sql
from pgbridge.bridge.check.finding import Level
from pgbridge.bridge.check.known import Known
from pgbridge.bridge.check.report import RoleNames, filled_in
from pgbridge.bridge.check.subscription import check_subscription
from pgbridge.bridge.config.config import Subscription
from tests.hostile import NAMES

SCRIPT = sql.load_script("role")


def statements(names: RoleNames) -> list[str]:
    return [line for line in filled_in(SCRIPT, names).splitlines() if not line.startswith("--")]


def test_names_are_filled_in():
    tables = [("public", "a"), ("public", "b"), ("hr", 'x"y')]
    assert statements(RoleNames("repl", "shop", missing_publications=["p"], tables=tables)) == [
        'CREATE ROLE "repl" LOGIN REPLICATION;',
        'GRANT CONNECT ON DATABASE "shop" TO "repl";',
        'GRANT USAGE ON SCHEMA "public" TO "repl";',
        'GRANT USAGE ON SCHEMA "hr" TO "repl";',
        'GRANT SELECT ON "public"."a" TO "repl";',
        'GRANT SELECT ON "public"."b" TO "repl";',
        'GRANT SELECT ON "hr"."x""y" TO "repl";',
        'CREATE PUBLICATION "p" FOR TABLE "public"."a", "public"."b", "hr"."x""y";',
    ]


def test_hostile_names_are_filled_in():
    """None is taken for a variable, or for the usage that is left out."""
    names = (*NAMES, ':"role"', ':"schema".:"table"', "psql -v", "pgbridge check --sql")
    text = filled_in(SCRIPT, RoleNames("repl", "shop", missing_publications=names, tables=[(n, n) for n in names]))
    for name in names:
        quoted = '"' + name.replace('"', '""') + '"'
        assert f'\nGRANT SELECT ON {quoted}.{quoted} TO "repl";\n' in text
        assert f"\nCREATE PUBLICATION {quoted} FOR TABLE " in text


def test_what_exists_is_not_created():
    found = statements(RoleNames("repl", "shop", role_exists=True, tables=[("public", "a")]))
    assert found[0] == 'ALTER ROLE "repl" LOGIN REPLICATION;'
    assert not any("PUBLICATION" in line for line in found)


def test_unknown_tables_are_left_to_the_operator():
    assert "GRANT SELECT ON public.… TO" in filled_in(SCRIPT, RoleNames("repl", "shop"))


def test_no_variable_is_left():
    text = filled_in(SCRIPT, RoleNames("r", "d", missing_publications=["p"], tables=[("s", "t")]))
    assert not re.search(r':"', text)
    assert "psql -v" not in text


def test_no_comment_is_about_nothing():
    """The publication exists, so nothing is said of it."""
    text = filled_in(SCRIPT, RoleNames("r", "d", tables=[("s", "t")]))
    assert text.endswith('GRANT SELECT ON "s"."t" TO "r";\n')


def test_the_role_passes_the_check(publisher):
    """Made by the script, it streams and copies; without the script, it fails."""
    role = f"{publisher.name}_repl"
    publisher.execute("CREATE SCHEMA hr; CREATE TABLE hr.t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE hr.t, u")
    names = RoleNames(role, publisher.name, tables=[("hr", "t"), ("public", "u")])
    try:
        for statement in statements(names):
            publisher.execute(statement)
        publisher.execute(f"ALTER ROLE {role} PASSWORD 'secret'")
        conninfo = make_conninfo(publisher.conninfo, user=role, password="secret")
        subscription = Subscription(name="s", connection=conninfo, publications=("pub",), warehouse="/nonexistent")
        with psycopg.connect(conninfo) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM hr.t")
        found = list(check_subscription(subscription, Known(None, running=False)))
        assert [one for one in found if one.level is Level.FAILURE] == []
        publisher.execute(f"REVOKE SELECT ON hr.t FROM {role}; ALTER ROLE {role} NOREPLICATION")
        found = list(check_subscription(subscription, Known(None, running=False)))
        assert [one.subject for one in found if one.level is Level.FAILURE] == ["replication", "hr.t"]
    finally:
        publisher.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
