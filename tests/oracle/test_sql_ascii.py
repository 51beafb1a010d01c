"""Texts of a SQL_ASCII database that are no UTF-8: what is masked, filtered and filled in has them as they are."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.catalog.refresh import copy_afresh
from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.runtime.errors import ApplyError, NeedsResync, TargetError
from tests.fix_bridge import WithoutCommitLog

SALT = "0123456789abcdef0123456789"


@pytest.fixture
def salted(tmp_path):
    """The options of a salt."""
    file = tmp_path / "salt"
    file.write_text(SALT)
    file.chmod(0o600)
    return {"target__mask_salt_file": str(file)}


@pytest.fixture
def database(publisher, tables, tmp_path):
    """A connection to a SQL_ASCII database, and what makes a subscription to it."""
    name = f"{publisher.name}_ascii"
    publisher.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING SQL_ASCII LOCALE 'C'")
    source: Any = SimpleNamespace(name=name, conninfo=publisher.server.conninfo(name))
    made: list[WithoutCommitLog] = []

    def make(**options):
        made.append(WithoutCommitLog(tables, source, tmp_path / f"pipeline{len(made)}", **options))
        return made[-1]

    with psycopg.connect(source.conninfo, client_encoding="SQL_ASCII", autocommit=True) as connection:
        yield connection, make
    for pipeline in made:
        pipeline.catalog.close()


def test_masks_see_the_bytes(database, salted):
    """The copy has what the stream has: only what a mask leaves has to be UTF-8."""
    connection, make = database
    connection.execute(
        b"CREATE TABLE t (id int PRIMARY KEY, email text, name text, note text); CREATE PUBLICATION pub FOR TABLE t;"
        b"INSERT INTO t VALUES (1, 'secret\xe9', 'caf\xe9', 'a\xe9'), (2, 'e', 'f', NULL)"
    )
    mask = {"email": "sha256", "name": {"first": 3}, "note": {"text": "hidden"}}
    bridge = make(**salted, tables={"public.t": Table(mask=mask)})
    bridge.catch_up()
    connection.execute(b"INSERT INTO t SELECT id + 2, email, name, note FROM t")
    bridge.catch_up()
    rows = [tuple(row.values())[1:] for row in bridge.rows("t")]
    hashes = [hashlib.sha256(SALT.encode() + email).hexdigest() for email in (b"secret\xe9", b"e")]
    assert rows == [(hashes[0], "caf", "hidden"), (hashes[1], "f", None)] * 2


@pytest.mark.parametrize("copied", [True, False])
def test_an_error_shows_what_the_mask_leaves(database, copied):
    connection, make = database
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, name text); CREATE PUBLICATION pub FOR TABLE t")
    bridge = make(tables={"public.t": Table(mask={"name": {"first": 4}})})
    if not copied:
        bridge.catch_up()
    connection.execute(b"INSERT INTO t VALUES (1, 'caf\xe9 secret')")
    with capture_logs() as logs, pytest.raises((TargetError, ApplyError), match="holds UTF-8 only") as caught:
        bridge.catch_up()
    assert "636166e9" in str(caught.value)
    assert b"secret".hex() not in f"{caught.value} {logs}"
    bridge.subscription = bridge.subscription.model_copy(update={"unrepresentable": "null"})
    bridge.catch_up()
    assert bridge.rows("t") == [{"id": 1, "name": None}]


@pytest.mark.parametrize("unrepresentable", ["null", "error"])
def test_a_filter_sees_the_bytes(database, tmp_path, unrepresentable):
    """The server computes it for these rows; one that does not pass does no harm."""
    connection, make = database
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, name text); CREATE PUBLICATION pub FOR TABLE t")
    (tmp_path / "p.sql").write_text("CREATE PUBLICATION p FOR TABLE t WHERE (name LIKE 'M%');")
    bridge = make(publication_definitions=str(tmp_path / "p.sql"), unrepresentable=unrepresentable)
    bridge.catch_up()
    connection.execute(b"INSERT INTO t VALUES (1, '\xfcM')")
    bridge.catch_up()
    assert bridge.rows("t") == []
    connection.execute(b"INSERT INTO t VALUES (2, 'M\xfcller')")
    if unrepresentable == "error":
        with pytest.raises(ApplyError, match='column "name": value .*4dfc6c6c6572'):
            bridge.catch_up()
    else:
        bridge.catch_up()
        assert bridge.rows("t") == [{"id": 2, "name": None}]


def test_a_default_concerns_its_table_alone(database):
    connection, make = database
    connection.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY);"
        "CREATE PUBLICATION pub FOR TABLE t, other; INSERT INTO t VALUES (1)"
    )
    bridge = make()
    bridge.catch_up()
    connection.execute(b"ALTER TABLE t ADD c text DEFAULT 'caf\xe9'")
    connection.execute("INSERT INTO t VALUES (2, 'x'); INSERT INTO other VALUES (1)")
    with pytest.raises(NeedsResync, match='column "c" of table "public.t" has a value in existing rows'):
        bridge.catch_up()
    assert (bridge.rows("t"), bridge.rows("other")) == ([{"id": 1}], [{"id": 1}])
    connection.execute(b"ALTER TABLE other ADD c text DEFAULT 'caf\xe9'")
    connection.execute("INSERT INTO other VALUES (2, 'x')")
    bridge.subscription = bridge.subscription.model_copy(update={"unrepresentable": "null"})
    copy_afresh(bridge.catalog, bridge.subscription.name, ("public", "t"))
    bridge.catch_up()
    assert bridge.rows("t") == bridge.rows("other") == [{"id": 1, "c": None}, {"id": 2, "c": "x"}]
