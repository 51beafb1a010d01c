"""The documentation's publications p1, p2 and p3 to the letter: t2's replica identity lacks a column of its filter.

PostgreSQL takes them, copies, publishes INSERTs, and refuses UPDATE and DELETE of t2 on the publisher. Where they are
re-applied to a stream, which has such changes, the subscription stops at them in the same words.
"""

from __future__ import annotations

import psycopg
import pytest

from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.protocol.lsn import Lsn
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

SCHEMA = """
    CREATE TABLE t1(a int, b int, c text, PRIMARY KEY(a,c));
    CREATE TABLE t2(d int, e int, f int, PRIMARY KEY(d));
    CREATE TABLE t3(g int, h int, i int, PRIMARY KEY(g));
    CREATE PUBLICATION pub FOR ALL TABLES;
"""
DEFINITIONS = """
    CREATE PUBLICATION p1 FOR TABLE t1 WHERE (a > 5 AND c = 'NSW');
    CREATE PUBLICATION p2 FOR TABLE t1, t2 WHERE (e = 99);
    CREATE PUBLICATION p3 FOR TABLE t2 WHERE (d = 10), t3 WHERE (g = 10);
"""
STATEMENTS = {"UPDATE": "UPDATE t2 SET e = 98 WHERE d = 2", "DELETE": "DELETE FROM t2 WHERE d = 10"}


def refused(publisher, statement: str) -> str:
    """The publisher's error and detail."""
    with pytest.raises(psycopg.errors.InvalidColumnReference) as error:
        publisher.execute(statement)
    return f"{error.value.diag.message_primary}\nDETAIL:  {error.value.diag.message_detail}"


def test_the_documentations_example(spark, publisher, pipeline, tmp_path):
    """INSERTs come; UPDATE and DELETE of t2 stop it, each at its LSN, and are skipped; under FULL they come."""
    publisher.execute(SCHEMA)
    for statement in DEFINITIONS.split(";"):
        publisher.execute(statement)
    publisher.execute("INSERT INTO t1 VALUES (6, 6, 'NSW'); INSERT INTO t2 VALUES (1, 99, 1), (3, 98, 3)")
    (tmp_path / "definitions.sql").write_text(DEFINITIONS)
    bridge = pipeline(publication_definitions=str(tmp_path / "definitions.sql"))

    def stops(command: str, message: str) -> None:
        with pytest.raises(ApplyError) as raised:
            bridge.catch_up()
        assert raised.value.message.startswith(message)
        context = raised.value.context
        assert (context.command, context.relation) == (command, "public.t2")
        bridge.catalog.set_skip_lsn(bridge.subscription.name, Lsn(context.finish_lsn))

    with NativeSubscriber(publisher.conninfo, ["p1", "p2", "p3"]) as native:
        bridge.catch_up()
        publisher.execute("INSERT INTO t2 VALUES (2, 99, 2), (10, 98, 3), (4, 0, 4); INSERT INTO t3 VALUES (10, 1, 1)")
        errors = {command: refused(publisher, statement) for command, statement in STATEMENTS.items()}
        native.wait_caught_up()
        for publication in ("p1", "p2", "p3"):
            publisher.execute(f"DROP PUBLICATION {publication}")
        publisher.execute(STATEMENTS["UPDATE"])
        publisher.execute("INSERT INTO t2 VALUES (5, 99, 5), (6, 99, 6)")
        # what the catalog has by now is not what the change was made under
        publisher.execute("ALTER TABLE t2 REPLICA IDENTITY FULL")
        stops("UPDATE", errors["UPDATE"])
        for table in ("t1", "t2", "t3"):
            assert differences(spark, bridge.path(table), native, table) == [], table
    publisher.execute("UPDATE t2 SET e = 9 WHERE d = 5")
    publisher.execute("ALTER TABLE t2 REPLICA IDENTITY DEFAULT")
    publisher.execute(STATEMENTS["DELETE"])
    stops("DELETE", errors["DELETE"])
    assert {row["d"] for row in bridge.rows("t2")} == {1, 2, 10, 6}
