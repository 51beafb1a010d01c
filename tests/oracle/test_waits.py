"""A table whose schema change cannot be followed exactly waits for its resync; the others equal a native subscriber's.

The tables are in memory: that a batch is not formed has nothing to do with how Delta commits others.
"""

from __future__ import annotations

import io
import re
import shlex
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from pgbridge.bridge.catalog import commits, refresh
from pgbridge.bridge.check.known import Known
from pgbridge.bridge.check.subscription import check_subscription
from pgbridge.bridge.commands import refresh as command
from pgbridge.bridge.commands.status import problems, render
from pgbridge.bridge.monitor.document import collect, not_ready
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import NeedsResync, TargetError
from tests.fix_bridge import WithoutCommitLog, config_of
from tests.oracle.delta import unequal
from tests.oracle.memory_tables import in_memory
from tests.oracle.native import DatabaseRows, NativeSubscriber

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


@pytest.fixture
def subscribed(publisher, tmp_path):
    """Makes a subscription with tables in memory; the server has the publications, or `definitions` re-applies one."""
    with ExitStack() as stack:

        def make(definitions=None):
            options = {}
            if definitions is not None:
                file = tmp_path / "definitions.sql"
                file.write_text(definitions)
                options["publication_definitions"] = str(file)
            spark: Any = stack.enter_context(in_memory())
            made = WithoutCommitLog(spark, publisher, tmp_path / "bridge", **options)
            stack.callback(made.catalog.close)
            return made

        stack.callback(faults.install, lambda _: None)
        yield make


def entry(bridge) -> Any:
    (found,) = collect(config_of(bridge), bridge.catalog, running=True)["subscriptions"]
    return found


def typed(bridge, hint):
    """Type the command of a hint."""
    words = shlex.split(re.findall(r"pgbridge (refresh [^;\n]+)", hint)[-1])
    assert words[1] == bridge.subscription.name
    tables = words[3::2]
    return command.ask(bridge.subscription, bridge.catalog, resync=tables, copy_data=None, when="now")


IN_TURNS = """
CREATE TABLE turns (id int NOT NULL, n int NOT NULL, part text NOT NULL) PARTITION BY LIST (part);
CREATE TABLE x PARTITION OF turns FOR VALUES IN ('x'); ALTER TABLE x ADD PRIMARY KEY (id, part);
CREATE TABLE y PARTITION OF turns FOR VALUES IN ('y'); CREATE UNIQUE INDEX y_n ON y (n, part);
ALTER TABLE y REPLICA IDENTITY USING INDEX y_n;
CREATE TABLE other (id int PRIMARY KEY, v text);
CREATE TABLE lacking (id int PRIMARY KEY, v text);
INSERT INTO turns VALUES (1, 1, 'x'), (1, 1, 'y'); INSERT INTO other VALUES (1);
INSERT INTO lacking VALUES (1, 'a');
CREATE PUBLICATION of_other FOR TABLE other; CREATE PUBLICATION pub FOR TABLE turns, other, lacking;
"""
DEFINED = "CREATE PUBLICATION p FOR TABLE turns, other, lacking (id{}) WITH (publish_via_partition_root);"


def test_definitions_that_do_not_fit_the_stream_have_their_table_wait(publisher, subscribed):
    """Replica identities of partitions by turns; a column that came later."""
    publisher.execute(IN_TURNS)
    bridge = subscribed(DEFINED.format(""))
    definitions = Path(bridge.subscription.publication_definitions)
    with NativeSubscriber(publisher.conninfo, ["of_other"]) as native:
        bridge.catch_up()
        for table, change in (
            ("turns", "UPDATE x SET n = 2; UPDATE y SET id = 2; UPDATE x SET n = 3"),
            ("lacking", "INSERT INTO lacking VALUES (2, 'b')"),
        ):
            publisher.execute(f"BEGIN; UPDATE other SET v = '{table}'; {change}; COMMIT")
        publisher.execute("ALTER TABLE lacking ADD later int; INSERT INTO lacking VALUES (3, 'c', 3)")
        definitions.write_text(DEFINED.format(", later"))
        with pytest.raises(NeedsResync):
            bridge.catch_up()
        native.wait_caught_up()
        assert equal(bridge, native, "other") == []
        waiting = {problem["relation"]: problem for problem in waiting_in(entry(bridge))}
        assert sorted(waiting) == ["public.lacking", "public.turns"]
        assert [len(rows(bridge, table)) for table in ("turns", "lacking")] == [2, 1]
        assert "give all partitions the same replica identity" in waiting["public.turns"]["hint"]
        publisher.execute("ALTER TABLE y ADD PRIMARY KEY (id, part); ALTER TABLE y REPLICA IDENTITY DEFAULT")
        for table in waiting.values():
            typed(bridge, table["hint"])
        bridge.catch_up()
        publisher.execute("UPDATE x SET n = 5; UPDATE y SET id = 6; UPDATE x SET n = 7; INSERT INTO lacking VALUES (5)")
        bridge.catch_up()
        assert waiting_in(entry(bridge)) == []
        assert equal(bridge, publisher, "turns") == []
        assert sorted((row["id"], row["later"]) for row in rows(bridge, "lacking")) == [
            *((1, None), (2, None), (3, 3), (5, None))
        ]


class Killed(BaseException):
    """Stands for kill -9."""


def kill_at(point):
    """An action that kills at a fault point, once."""

    def act(reached):
        if reached == point:
            faults.install(lambda _: None)
            raise Killed

    return act


def printed(renderable):
    shown = io.StringIO()
    Console(file=shown, width=200).print(renderable)
    return shown.getvalue()


def equal(bridge, source, table):
    """Whether a table has the columns and rows of a publisher or native subscriber."""
    return unequal(bridge.spark.arrow(bridge.path(table)), DatabaseRows(source.conninfo), table)


@pytest.mark.parametrize("own_definitions", [False, True], ids=["server", "definitions"])
def test_one_table_waits_and_the_others_go_on(publisher, subscribed, own_definitions):
    """All of it while the bridge is stopped; `root` is published as a whole, by the server or by definitions."""
    publisher.execute(SCHEMA + ROWS)
    publisher.execute("CREATE PUBLICATION of_other FOR TABLE other")
    published = f"CREATE PUBLICATION pub FOR TABLE other, {', '.join(WAITING)}"
    via_root = f"{published} WITH (publish_via_partition_root = true)"
    publisher.execute(published if own_definitions else via_root)
    bridge = subscribed(f"{via_root};" if own_definitions else None)
    name = bridge.subscription.name
    with NativeSubscriber(publisher.conninfo, ["of_other"]) as native:
        bridge.catch_up()
        for statement in (BEFORE, *changes(10)):
            publisher.execute(statement)
        with capture_logs() as events:
            faults.install(kill_at("table_waits"))
            with pytest.raises(Killed):
                bridge.catch_up()
            assert [rel.name for rel in refresh.waiting(bridge.catalog, name)] == ["typed"]
            assert {row["v"] for row in rows(bridge, "other")} == {None}, "nothing of the transaction is applied"
            with pytest.raises(NeedsResync) as caught:
                bridge.catch_up()
        assert caught.value.hint.endswith(f"--resync public.{caught.value.tables[0][1]}")
        logged = [event["relation"] for event in events if event["log_level"] == "error"]
        assert sorted(logged) == sorted(f"public.{table}" for table in WAITING)
        waiting = check_shown(bridge)
        others_go_on(bridge, native)
        for statement in (*changes(20), "TRUNCATE typed, root"):
            publisher.execute(statement)
        with pytest.raises(NeedsResync):
            bridge.catch_up()
        others_go_on(bridge, native)
        for table in waiting:
            assert "copied again" in typed(bridge, table["hint"])[-1]
        with pytest.raises(TargetError, match=r"differ only in case|has a name that Delta's MERGE uses itself"):
            bridge.catch_up()
        assert waiting_in(entry(bridge)) == []
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
        assert all(recorded(bridge, "joined").count(table) == 2 for table in WAITING)


def others_go_on(bridge, native):
    """The other table has all, and those that wait have what they had before."""
    native.wait_caught_up()
    assert equal(bridge, native, "other") == []
    for table in WAITING:
        assert sorted(row["id"] for row in rows(bridge, table)) == [1, 2, 3]


def check_shown(bridge):
    """Everything shows the tables that wait, which are returned as `status` has them."""
    shown = entry(bridge)
    assert [problem["relation"] for problem in waiting_in(shown)] == sorted(f"public.{table}" for table in WAITING)
    assert shown["last_error"] is None
    assert "waits for its resync" in not_ready("running", [shown | {"state": "streaming"}])[0]["reason"]
    assert "r (waits for its resync)" in printed(render({"subscriptions": [shown]}))
    command_line = f"pgbridge refresh {bridge.subscription.name} --resync public.typed"
    assert command_line in printed(problems({"subscriptions": [shown]}))
    found = check_subscription(bridge.subscription, Known(bridge.catalog, running=False))
    left_out = [one for one in found if "left out until it is copied afresh" in one.message]
    assert any(one.remedy.endswith(command_line) for one in left_out)
    assert sorted(recorded(bridge, "left")) == sorted(WAITING)
    return waiting_in(shown)


def waiting_in(status):
    """What is said of the tables that wait."""
    return [problem for problem in status["problems"] if problem["kind"] == "waits"]


def recorded(bridge, kind):
    """The tables that have left the subscription's commits, or joined them."""
    records = commits.pending(bridge.catalog, bridge.subscription.name)
    return [name for record in records if record.kind == kind for _, name, _ in record.tables]


def rows(bridge, table):
    return bridge.spark.arrow(bridge.path(table)).to_pylist()


DROPPED = """
CREATE DOMAIN score AS int CHECK (VALUE < 100); CREATE DOMAIN fine AS score; CREATE TYPE mood AS ENUM ('ok');
CREATE DOMAIN amount AS numeric(6,2);
CREATE TABLE scored (id int PRIMARY KEY, c fine, l score[], a amount, m mood, r int4range);
CREATE TABLE doomed (id score PRIMARY KEY, a amount);
INSERT INTO scored VALUES (1, 1, '{1}', 1.5, 'ok', '[1,2)'); INSERT INTO doomed VALUES (1, 1);
"""
WHILE_STOPPED = (
    "INSERT INTO scored VALUES (2, 2, '{2,NULL}', 2.5, 'ok'); UPDATE scored SET c = 3, l = '{3}' WHERE id = 1",
    "INSERT INTO doomed VALUES (2, 2); UPDATE doomed SET a = 3 WHERE id = 1",
    "DROP TABLE doomed",
    "DROP DOMAIN score, fine, amount CASCADE; DROP TYPE mood CASCADE",
    "INSERT INTO scored VALUES (3); UPDATE scored SET id = 4 WHERE id = 2",
)


@pytest.mark.parametrize("own_definitions", [False, True], ids=["server", "definitions"])
def test_types_that_were_dropped_since(publisher, subscribed, own_definitions):
    """What they were is known from before: the stream's last rows of them are read as all others."""
    publisher.execute(f"{DROPPED} CREATE PUBLICATION pub FOR TABLE scored, doomed")
    bridge = subscribed("CREATE PUBLICATION pub FOR TABLE scored, doomed;" if own_definitions else None)
    bridge.catch_up()
    for statement in WHILE_STOPPED:
        publisher.execute(statement)
    bridge.catch_up()
    rows = {row["id"]: row for row in bridge.spark.arrow(bridge.path("scored")).to_pylist()}
    assert {key: (row["c"], row["l"], row["a"], row["m"]) for key, row in rows.items()} == {
        1: (3, [3], Decimal("1.50"), "ok"),
        4: (2, [2, None], Decimal("2.50"), "ok"),
        3: (None, None, None, None),
    }
    doomed = bridge.spark.arrow(bridge.path("doomed")).to_pylist()
    assert sorted((row["id"], row["a"]) for row in doomed) == [(1, 3), (2, 2)]
