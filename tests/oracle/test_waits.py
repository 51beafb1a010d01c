"""A table whose schema change cannot be followed exactly waits for its resync; the others equal a native subscriber's.

The tables are in memory: that a batch is not formed has nothing to do with how Delta commits others.
"""

from __future__ import annotations

import io
import re
import shlex
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from bridge.commands import refresh as command
from bridge.commands.status import collect, problems, render
from bridge.errors import NeedsResync, TargetError
from bridge.monitor.health import not_ready
from bridge.track import commits
from tests.fix_bridge import Pipeline, config_of
from tests.oracle.delta import unequal
from tests.oracle.memory_tables import in_memory
from tests.oracle.native import DatabaseRows, NativeSubscriber

if TYPE_CHECKING:
    from bridge.subscriber import SubscriptionWorker

WAITING = ("typed", "cased", "reserved", "filled", "root")
SCHEMA = """
CREATE TABLE other (id int PRIMARY KEY, v text);
CREATE TABLE typed (id int PRIMARY KEY, c text); CREATE TABLE cased (id int PRIMARY KEY, f text);
CREATE TABLE reserved (id int PRIMARY KEY); CREATE TABLE filled (id int PRIMARY KEY);
CREATE TABLE root (id int PRIMARY KEY, c text) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10);
CREATE TABLE branch PARTITION OF root FOR VALUES FROM (10) TO (20);
"""
ROWS = "".join(f"INSERT INTO {table} (id) VALUES (1), (2);" for table in ("other", *WAITING))
BEFORE = "".join(f"INSERT INTO {table} (id) VALUES (3);" for table in ("other", *WAITING))
ALTERED = (
    "ALTER TABLE typed ALTER c TYPE int USING length(c)",
    'ALTER TABLE cased ADD "F" int DEFAULT 1',
    'ALTER TABLE reserved ADD "_ROW_id_" int DEFAULT 1',
    "ALTER TABLE filled ADD u uuid DEFAULT gen_random_uuid()",
    "ALTER TABLE root ALTER c TYPE int USING length(c)",
)


def changes(number: int) -> list[str]:
    """Transactions, each with rows of a table that waits between those of another."""
    return [
        f"BEGIN; INSERT INTO other VALUES ({number + i}, 'before'); {altered if number == 10 else 'SELECT'};"
        f"INSERT INTO {table} (id) VALUES ({4 + number // 5}); UPDATE {table} SET id = {12 + number // 5} WHERE id = 2;"
        f"DELETE FROM {table} WHERE id = 1; UPDATE other SET v = '{table} {number}' WHERE id < 3; COMMIT"
        for i, (table, altered) in enumerate(zip(WAITING, ALTERED, strict=True))
    ]


class MemoryPipeline(Pipeline):
    """Without the table of its commits."""

    def worker(self, *, until_caught_up: bool = True) -> SubscriptionWorker:
        worker = super().worker(until_caught_up=until_caught_up)
        worker._commit_log = mock.create_autospec(worker._commit_log)
        return worker


@pytest.fixture
def bridge(publisher, tmp_path, request):
    """The tables are published by the server, or by definitions that publish the root."""
    publisher.execute(SCHEMA + ROWS)
    publisher.execute("CREATE PUBLICATION of_other FOR TABLE other")
    publisher.execute(f"CREATE PUBLICATION pub FOR TABLE other, {', '.join(WAITING)}")
    options = {}
    if request.param == "definitions":
        file = tmp_path / "definitions.sql"
        file.write_text(
            f"CREATE PUBLICATION pub FOR TABLE other, {', '.join(WAITING)} WITH (publish_via_partition_root = true);"
        )
        options["publication_definitions"] = str(file)
    else:
        publisher.execute("ALTER PUBLICATION pub SET (publish_via_partition_root = true)")
    with in_memory() as tables:
        spark: Any = tables
        made = MemoryPipeline(spark, publisher, tmp_path / "bridge", **options)
        try:
            yield made
        finally:
            made.catalog.close()


def entry(bridge):
    (found,) = collect(config_of(bridge), bridge.catalog, running=True)["subscriptions"]
    return found


def typed(bridge, hint):
    """Type the command of a hint."""
    words = shlex.split(re.findall(r"pgbridge (refresh [^;\n]+)", hint)[-1])
    assert words[1] == bridge.subscription.name
    tables = words[3::2]
    return command.ask(bridge.subscription, bridge.catalog, resync=tables, copy_data=None, when="now")


def printed(renderable):
    shown = io.StringIO()
    Console(file=shown, width=200).print(renderable)
    return shown.getvalue()


def equal(bridge, source, table):
    """Whether a table has the columns and rows of a publisher or native subscriber."""
    return unequal(bridge.spark.arrow(bridge.path(table)), DatabaseRows(source.conninfo), table)


@pytest.mark.parametrize("bridge", ["server", "definitions"], indirect=True)
def test_one_table_waits_and_the_others_go_on(publisher, bridge):
    """All of it while the bridge is stopped; then, with the tables waiting, while it streams."""
    name = bridge.subscription.name
    with NativeSubscriber(publisher.conninfo, ["of_other"]) as native:
        bridge.catch_up()
        for statement in (BEFORE, *changes(10)):
            publisher.execute(statement)
        with capture_logs() as events, pytest.raises(NeedsResync) as caught:
            bridge.catch_up()
        native.wait_caught_up()
        assert equal(bridge, native, "other") == []
        assert sorted(event["relation"] for event in events if event["log_level"] == "error") == sorted(
            f"public.{table}" for table in WAITING
        ), events
        for table in WAITING:
            assert sorted(row["id"] for row in bridge.spark.arrow(bridge.path(table)).to_pylist()) == [1, 2, 3]
        shown = entry(bridge)
        assert [table["relation"] for table in shown["waiting"]] == sorted(f"public.{table}" for table in WAITING)
        assert shown["last_error"] is None
        assert not_ready("running", [{**shown, "state": "streaming"}])
        text = printed(render({"subscriptions": [shown]}))
        assert "r (waits for its resync)" in text
        assert f"pgbridge refresh {name} --resync public.typed" in printed(problems({"subscriptions": [shown]}))
        left = [record.tables[0][1] for record in commits.pending(bridge.catalog, name) if record.kind == "left"]
        assert sorted(left) == sorted(WAITING)
        assert str(caught.value.hint).endswith(f"--resync public.{caught.value.table[1]}")

        for statement in (*changes(20), "TRUNCATE typed, root"):
            publisher.execute(statement)
        with pytest.raises(NeedsResync):
            bridge.catch_up()
        native.wait_caught_up()
        assert equal(bridge, native, "other") == []
        for table in WAITING:
            assert sorted(row["id"] for row in bridge.spark.arrow(bridge.path(table)).to_pylist()) == [1, 2, 3]

        for table in shown["waiting"]:
            (_, line) = typed(bridge, table["hint"])[-2:]
            assert "copied again" in line
        with pytest.raises(TargetError, match=r"differ only in case|has a name that Delta's MERGE uses itself"):
            bridge.catch_up()
        assert "waiting" not in entry(bridge)
        for table in ("typed", "filled", "root"):
            assert equal(bridge, publisher, table) == [], table
        publisher.execute('ALTER TABLE cased RENAME "F" TO g; ALTER TABLE reserved RENAME "_ROW_id_" TO g')
        typed(bridge, f"pgbridge refresh {name}")
        for statement in changes(30):
            publisher.execute(statement)
        bridge.catch_up()
        native.wait_caught_up()
        assert equal(bridge, native, "other") == []
        for table in WAITING:
            assert equal(bridge, publisher, table) == [], table
        joined = [record.tables[0][1] for record in commits.pending(bridge.catalog, name) if record.kind == "joined"]
        assert all(joined.count(table) == 2 for table in WAITING)
