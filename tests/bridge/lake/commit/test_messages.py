"""Logical messages become rows of `<warehouse>/pgbridge/messages`, each once."""

from __future__ import annotations

import datetime as dt

import pytest

from pgbridge.bridge.lake.commit import messages
from pgbridge.bridge.lake.schema import spark_schema
from pgbridge.bridge.lake.table import schema_of
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.protocol.codec.messages import LogicalMessage
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Transaction


def test_rows():
    """Those outside of transactions have no transaction's fields."""
    alone = LogicalMessage(transactional=False, lsn=Lsn(0x1_0000_0010), prefix="p", content=b"\x00")
    within = LogicalMessage(transactional=True, lsn=Lsn(5), prefix="", content=b"x", xid=726)
    second = dt.datetime(2000, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    table = messages.as_table("shop", [(Transaction(0), alone), (Transaction(725, Lsn(9), 1_000_000), within)])
    names = ["lsn", "position", "finish_lsn", "xid", "committed_at", "transactional", "prefix", "content"]
    assert [tuple(row[name] for name in names) for row in table.to_pylist()] == [
        ("1/10", 0x1_0000_0010, None, None, None, False, "p", b"\x00"),
        ("0/5", 5, "0/9", 725, second, True, "", b"x"),
    ]
    assert set(table["subscription"].to_pylist()) == {"shop"}


def test_table_is_made_once_and_another_is_refused(spark, tmp_path):
    path = messages.path_in(str(tmp_path))
    assert path == f"{tmp_path}/pgbridge/messages"
    messages.ensure(spark, path)
    messages.ensure(spark, path)
    found = schema_of(spark, path)
    rows = messages.as_table("s", [])
    assert found == spark_schema([(field.name, field.type) for field in rows.schema])
    other = f"{tmp_path}/other"
    spark.sql(f"CREATE TABLE delta.`{other}` (n int) USING delta")
    with pytest.raises(TargetError, match=r"not a table of logical messages: its columns are struct<n:int>"):
        messages.ensure(spark, other)


def test_more_than_memory_is_to_hold_is_one_commit(spark, tmp_path, monkeypatch):
    """In several parts, and again the same at another try."""
    path = messages.path_in(str(tmp_path))
    messages.ensure(spark, path)
    monkeypatch.setattr(messages, "_AT_ONCE_BYTES", 500)
    found = [
        (Transaction(0), LogicalMessage(transactional=False, lsn=Lsn(n), prefix="p", content=bytes([n]) * 100))
        for n in range(1, 8)
    ]
    assert [len(part) for part in messages._parts(found)] == [2, 2, 2, 1]
    messages.append(spark, "s", lambda: iter(found), path)
    rows = spark.read.format("delta").load(path).orderBy("position").toArrow()
    assert rows["content"].to_pylist() == [message.content for _, message in found]
    messages.append(spark, "s", lambda: iter(found[:1]), path)
    messages.append(spark, "s", lambda: iter(()), path)
    versions = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").orderBy("version").toArrow()["operation"].to_pylist()
    assert versions[1:] == ["WRITE", "WRITE"]


@pytest.mark.soak
def test_from_the_server_to_the_table(spark, publisher, pipeline):
    """In the order of the log, each once, also where nothing else happens; over two lives."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    bridge = pipeline(messages="table")
    bridge.catch_up()
    publisher.execute("SELECT pg_logical_emit_message(false, 'p', 'alone')")
    publisher.execute("BEGIN; INSERT INTO t VALUES (1); SELECT pg_logical_emit_message(true, 'p', 'with'); COMMIT")
    publisher.execute("BEGIN; SELECT pg_logical_emit_message(true, 'p', 'never'); ROLLBACK")
    bridge.catch_up()
    publisher.execute("SELECT pg_logical_emit_message(true, 'p', 'last')")
    bridge.catch_up()
    path = messages.path_in(bridge.subscription.warehouse)
    rows = spark.read.format("delta").load(path).orderBy("position").toArrow().to_pylist()
    assert [(row["content"], row["transactional"], row["subscription"]) for row in rows] == [
        (b"alone", False, bridge.subscription.name),
        (b"with", True, bridge.subscription.name),
        (b"last", True, bridge.subscription.name),
    ]
    assert [row["id"] for row in bridge.rows("t")] == [1]
