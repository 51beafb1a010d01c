"""What an error or a warning prints is typed, and the tables are equal: situations that no other test has."""

from __future__ import annotations

import re

from structlog.testing import capture_logs

from tests.oracle.typed import bridge, type_in


def test_a_table_that_delta_cannot_hold_is_altered(publisher, tmp_path):
    publisher.execute('CREATE TABLE t (id int PRIMARY KEY, "ID" int); CREATE TABLE other (id int PRIMARY KEY)')
    publisher.execute("INSERT INTO t VALUES (1, 2); CREATE PUBLICATION pub FOR TABLE t, other")
    with bridge(publisher, tmp_path) as (pipeline, rows):
        with capture_logs() as events:
            pipeline.catch_up()
        (hint,) = [event["hint"] for event in events if "t" in str(event.get("relation")) and "hint" in event]
        publisher.execute('ALTER TABLE t RENAME "ID" TO other_id')
        type_in(pipeline, re.findall("run: (pgbridge .*)", hint)[0])
        pipeline.catch_up()
        assert rows("t") == [{"id": 1, "other_id": 2}]
