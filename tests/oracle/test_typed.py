"""What an error or a warning prints is typed, and the tables are equal: situations that no other test has."""

from __future__ import annotations

import re

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.runtime.errors import ApplyError
from tests.oracle.typed import bridge, type_in


def test_two_tables_have_changed_their_names(publisher, tmp_path):
    publisher.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
        "INSERT INTO a VALUES (1); INSERT INTO b VALUES (2); CREATE PUBLICATION pub FOR TABLE a, b"
    )
    with bridge(publisher, tmp_path) as (memory_pipeline, rows):
        memory_pipeline.catch_up()
        publisher.execute("ALTER TABLE a RENAME TO c; ALTER TABLE b RENAME TO a; ALTER TABLE c RENAME TO b")
        publisher.execute("INSERT INTO a VALUES (3)")
        with pytest.raises(ApplyError, match="now has the name of another table") as raised:
            memory_pipeline.catch_up()
        type_in(memory_pipeline, raised.value.hint.partition(": ")[2])
        memory_pipeline.catch_up()
        assert [[row["id"] for row in rows(table)] for table in "ab"] == [[2, 3], [1]]


def test_a_table_that_delta_cannot_hold_is_altered(publisher, tmp_path):
    publisher.execute('CREATE TABLE t (id int PRIMARY KEY, "ID" int); CREATE TABLE other (id int PRIMARY KEY)')
    publisher.execute("INSERT INTO t VALUES (1, 2); CREATE PUBLICATION pub FOR TABLE t, other")
    with bridge(publisher, tmp_path) as (memory_pipeline, rows):
        with capture_logs() as events:
            memory_pipeline.catch_up()
        (hint,) = [event["hint"] for event in events if "t" in str(event.get("relation")) and "hint" in event]
        publisher.execute('ALTER TABLE t RENAME "ID" TO other_id')
        type_in(memory_pipeline, re.findall("run: (pgbridge .*)", hint)[0])
        memory_pipeline.catch_up()
        assert rows("t") == [{"id": 1, "other_id": 2}]
