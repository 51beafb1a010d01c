"""What the errors and warnings of a subscription say is done, and it goes on. Its Delta tables are in memory."""

from __future__ import annotations

import re
import shlex
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import types as spark_types
from structlog.testing import capture_logs

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog_rows import sync_name
from pgbridge.bridge.check.known import Known
from pgbridge.bridge.check.subscription import check_subscription
from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.lake import own_table, table as lake_table
from pgbridge.bridge.monitor.document import collect
from pgbridge.bridge.runtime.errors import (
    ApplyError,
    BridgeError,
    ConfigError,
    PublisherError,
    SkipError,
    TargetError,
    VerifyError,
)
from pgbridge.bridge.runtime.warehouse import Layout
from pgbridge.bridge.service import cli
from pgbridge.bridge.service.replay import _check_begun, replay as replay_command
from pgbridge.bridge.skipped import replay
from pgbridge.bridge.skipped.kept_transaction import read, write
from pgbridge.bridge.sync import tablesync
from pgbridge.bridge.verify.verification import Verification
from pgbridge.protocol.lsn import Lsn
from tests.bridge.batch.streamed import batcher, insert, subscribed, transaction
from tests.bridge.configurations import altered
from tests.bridge.skipped.kept import relation, types
from tests.fix_bridge import config_of
from tests.oracle.typed import bridge, type_in

KEYED = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'); CREATE PUBLICATION pub FOR TABLE t"


def changed(pipeline, **options):
    """Change the subscription's configuration."""
    pipeline.subscription = altered(pipeline.subscription, **options)


def hints_of(pipeline):
    """The hints of a life of the subscription."""
    with capture_logs() as events:
        pipeline.catch_up()
    return [event["hint"] for event in events if "hint" in event]


def test_a_subscription_that_is_disabled(publisher, tmp_path):
    """As `status` says it."""
    publisher.execute(KEYED)
    with bridge(publisher, tmp_path) as (pipeline, _):
        pipeline.catch_up()
        name = pipeline.subscription.name
        type_in(pipeline, f"pgbridge disable {name}")
        (shown,) = collect(config_of(pipeline), pipeline.catalog, running=True)["subscriptions"]
        (hint,) = [problem["hint"] for problem in shown["problems"] if problem["kind"] == "disabled"]
        assert hint is not None
        type_in(pipeline, hint.rpartition("run: ")[2])
        row = pipeline.catalog.subscription(name)
        assert row is not None
        assert row.enabled


def test_a_publication_that_does_not_exist(publisher, tmp_path):
    """As a name that was mistyped: a warning to PostgreSQL, and all that there is to see is an empty list."""
    publisher.execute(KEYED)
    with bridge(publisher, tmp_path) as (pipeline, rows):
        changed(pipeline, publications=("pubb",))
        pipeline.catch_up()
        (shown,) = collect(config_of(pipeline), pipeline.catalog, running=True)["subscriptions"]
        (hint,) = [problem["hint"] for problem in shown["problems"] if problem["kind"] == "empty"]
        assert hint is not None
        see, refreshes = re.findall(r"run: (pgbridge [^;]*)", hint)
        type_in(pipeline, see)
        changed(pipeline, publications=("pub",))
        type_in(pipeline, refreshes)
        pipeline.catch_up()
        assert rows("t") == [{"id": 1, "v": "a"}]
        (shown,) = collect(config_of(pipeline), pipeline.catalog, running=True)["subscriptions"]
        assert "empty" not in {problem["kind"] for problem in shown["problems"]}


def test_actions_that_are_not_published(publisher, tmp_path):
    publisher.execute(KEYED)
    with bridge(publisher, tmp_path) as (pipeline, rows):
        pipeline.catch_up()
        publisher.execute("ALTER PUBLICATION pub SET (publish = 'insert'); UPDATE t SET v = 'not sent'")
        (hint,) = [hint for hint in hints_of(pipeline) if "SET (publish" in hint]
        statement, command = re.findall(r"run on the server: (ALTER [^;]*); then run: (pgbridge [^;]*)", hint)[0]
        publisher.execute(statement.replace("…", "insert, update, delete, truncate"))
        type_in(pipeline, command)
        publisher.execute("UPDATE t SET id = 2")
        pipeline.catch_up()
        assert rows("t") == [{"id": 2, "v": "not sent"}]


def test_a_role_that_may_not_read(publisher, tmp_path):
    role = f"{publisher.name}_role"
    publisher.execute(f"{KEYED}; CREATE ROLE {role} LOGIN REPLICATION")
    try:
        with bridge(publisher, tmp_path) as (pipeline, rows):
            changed(pipeline, connection=make_conninfo(publisher.conninfo, user=role))
            with pytest.raises(BridgeError) as caught:
                pipeline.catch_up()
            assert caught.value.hint.endswith("for the statements, run: pgbridge check")
            found = check_subscription(pipeline.subscription, Known(pipeline.catalog, running=False))
            for statement in [one.statement for one in found if one.statement.startswith("GRANT")]:
                publisher.execute(statement)
            pipeline.catch_up()
            assert rows("t") == [{"id": 1, "v": "a"}]
    finally:
        publisher.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_slot_that_is_somebody_elses(publisher, tmp_path):
    """Another name; the slot as it stands; or without it."""
    publisher.execute(KEYED)
    made = f"SELECT pg_create_logical_replication_slot('{publisher.name}', 'pgoutput')"
    for number, way in enumerate(("slot_name", "create_slot", "drop")):
        publisher.execute(made)
        with bridge(publisher, tmp_path / way) as (pipeline, rows):
            with pytest.raises(PublisherError, match="already exists on the publisher") as caught:
                pipeline.catch_up()
            if way == "slot_name":
                changed(pipeline, slot_name=f"{publisher.name}_{number}")
            elif way == "create_slot":
                assert "set create_slot = false" in caught.value.hint
                changed(pipeline, create_slot=False)
            else:
                publisher.execute(caught.value.hint.rpartition("on the server: ")[2])
            pipeline.catch_up()
            assert rows("t") == [{"id": 1, "v": "a"}]
        for (name,) in publisher.query(
            "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        ):
            publisher.query("SELECT pg_drop_replication_slot(%s)", (name,))


def test_a_history_without_a_key(publisher, tmp_path):
    """With a key, or as a changelog, its table follows the stream again."""
    publisher.execute(
        "CREATE TABLE t (id int NOT NULL, v text); ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (1, 'a');"
        "CREATE PUBLICATION pub FOR TABLE t"
    )
    with bridge(publisher, tmp_path) as (pipeline, _):
        changed(pipeline, mode="history")
        pipeline.catch_up()
        publisher.execute("UPDATE t SET v = 'b'")
        with pytest.raises(ApplyError, match="no key to find its rows by") as caught:
            pipeline.catch_up()
        assert caught.value.hint.startswith("its mode needs a primary key, or a replica identity by an index; or set")
        publisher.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
        type_in(pipeline, caught.value.hint.rpartition(": ")[2])
        pipeline.catch_up()
        assert pipeline.catalog.last_error(pipeline.subscription.name) is None


def test_a_table_that_is_not_known(publisher, tmp_path):
    publisher.execute(KEYED)
    with bridge(publisher, tmp_path) as (pipeline, rows):
        pipeline.catch_up()
        publisher.execute("CREATE TABLE later (id int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE later")
        name = pipeline.subscription.name
        with pytest.raises(ConfigError) as caught:
            type_in(pipeline, f"pgbridge refresh {name} --resync public.tt")
        for command in re.findall("(?:listed by|run): (pgbridge [^;]*)", caught.value.hint):
            type_in(pipeline, command)
        pipeline.catch_up()
        assert rows("later") == []


@pytest.mark.parametrize(("table", "key"), [("messages", "messages"), ("conflicts", "target.conflict_log_destination")])
def test_a_table_of_ours_that_has_no_place(publisher, tmp_path, table, key):
    """A published table has it; or another table of Delta's."""
    publisher.execute(
        f"CREATE SCHEMA pgbridge; CREATE TABLE pgbridge.{table} (id int PRIMARY KEY);"
        f"CREATE PUBLICATION pub FOR TABLE pgbridge.{table}"
    )
    option, remedy = key.replace(".", "__"), f'set {key} = "log"'
    with bridge(publisher, tmp_path) as (pipeline, _):
        changed(pipeline, **{option: "table"})
        with pytest.raises(ConfigError) as caught:
            pipeline.catch_up()
        assert caught.value.hint == remedy
        changed(pipeline, **{option: "log"})
        pipeline.catch_up()
    publisher.execute(f"ALTER PUBLICATION pub DROP TABLE pgbridge.{table}")
    publisher.query("SELECT pg_drop_replication_slot(%s)", (publisher.name,))
    other = spark_types.StructType([spark_types.StructField("x", spark_types.StringType())])
    with bridge(publisher, tmp_path / "other") as (pipeline, _):
        changed(pipeline, **{option: "table"})
        with mock.patch.object(own_table, "schema_of", return_value=other), pytest.raises(TargetError) as no_table:
            pipeline.catch_up()
        assert remedy in no_table.value.hint
        changed(pipeline, **{option: "log"})
        pipeline.catch_up()


def test_a_changelog_with_a_gap(publisher, tmp_path):
    publisher.execute(KEYED)
    with bridge(publisher, tmp_path) as (pipeline, rows):
        name = pipeline.subscription.name
        changed(pipeline, tables={"public.t": Table(mode="changelog")})
        pipeline.catch_up()
        publisher.execute("ALTER PUBLICATION pub DROP TABLE t; INSERT INTO t VALUES (2, 'not sent')")
        type_in(pipeline, f"pgbridge refresh {name}")
        publisher.execute("ALTER PUBLICATION pub ADD TABLE t")
        type_in(pipeline, f"pgbridge refresh {name}")
        (hint,) = [hint for hint in hints_of(pipeline) if "begin it anew" in hint]
        assert len(rows("t")) == 1
        type_in(pipeline, hint.rpartition("run: ")[2])
        pipeline.catch_up()
        assert len(rows("t")) == 2


def test_a_filter_that_is_not_translated(publisher, tmp_path):
    publisher.execute(KEYED)
    definitions = tmp_path / "definitions.sql"
    definitions.write_text("CREATE PUBLICATION p FOR TABLE t WHERE (v ILIKE 'A%');")
    with bridge(publisher, tmp_path, publication_definitions=str(definitions)) as (pipeline, rows):
        with pytest.raises(ConfigError) as caught:
            pipeline.catch_up()
        assert 'filter_server = "publisher"' in str(caught.value)
        changed(pipeline, filter_server="publisher")
        pipeline.catch_up()
        publisher.execute("ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (2, 'b'), (3, 'aa')")
        pipeline.catch_up()
        assert [row["id"] for row in rows("t")] == [1, 3]


def test_values_that_cannot_be_held(publisher, tmp_path):
    """A date without end; a text of a SQL_ASCII database that is no UTF-8, which `check` warns of."""
    ascii_name = f"{publisher.name}_ascii"
    publisher.execute(f"CREATE DATABASE {ascii_name} ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0")
    for name in (publisher.name, ascii_name):
        source: Any = SimpleNamespace(conninfo=publisher.server.conninfo(name), name=name)
        with bridge(source, tmp_path / name) as (pipeline, rows), publisher.server.connect(name) as database:
            database.execute("CREATE TABLE t (id int PRIMARY KEY, d date, v text); CREATE PUBLICATION pub FOR TABLE t")
            pipeline.catch_up()
            value = "convert_from('\\xff', 'SQL_ASCII')" if name == ascii_name else "'x'"
            day = "'2024-01-01'" if name == ascii_name else "'infinity'"
            database.execute(f"INSERT INTO t VALUES (1, {day}, {value})".encode())
            with pytest.raises(ApplyError) as caught:
                pipeline.catch_up()
            assert 'set unrepresentable = "null"' in caught.value.hint
            changed(pipeline, unrepresentable="null")
            pipeline.catch_up()
            (row,) = rows("t")
            assert (row["v"] if name == ascii_name else row["d"]) is None
            found = {}
            for unrepresentable in ("error", "null"):
                changed(pipeline, unrepresentable=unrepresentable)
                checked = check_subscription(pipeline.subscription, Known(pipeline.catalog, running=False))
                found[unrepresentable] = [one.remedy for one in checked if one.subject == "server_encoding"]
            assert found["null"] == [""]
            assert (found["error"] != [""]) is (name == ascii_name)
    # the fixture cannot read the names there
    publisher.query("SELECT pg_drop_replication_slot(%s)", (ascii_name,))
    publisher.execute(f"DROP DATABASE {ascii_name} WITH (FORCE)")


def test_a_slot_that_has_confirmed_prepared_transactions(publisher, tmp_path):
    publisher.execute(KEYED)
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", (publisher.name,))
    with bridge(publisher, tmp_path, two_phase=True, create_slot=False) as (pipeline, rows):
        pipeline.catch_up()
        publisher.execute("BEGIN; INSERT INTO t VALUES (2, 'b'); PREPARE TRANSACTION 'gid'")
        pipeline.catch_up()
        type_in(pipeline, f"pgbridge disable {pipeline.subscription.name}")
        file = tmp_path / "pgbridge.toml"
        told = file.read_text()
        file.write_text(told.replace("two_phase", "create_slot = false\ntwo_phase"))
        resync = ["resync", pipeline.subscription.name, "--config", str(file)]
        with pytest.raises(BridgeError) as caught:
            cli.app(resync, standalone_mode=False)
        assert caught.value.hint.startswith("drop that slot on the server, remove create_slot = false")
        publisher.query("SELECT pg_drop_replication_slot(%s)", (publisher.name,))
        file.write_text(told)
        cli.app(
            [*shlex.split(caught.value.hint.rpartition("run ")[2])[1:3], "--config", str(file)], standalone_mode=False
        )
        publisher.execute("COMMIT PREPARED 'gid'")
        type_in(pipeline, f"pgbridge enable {pipeline.subscription.name}")
        changed(pipeline, create_slot=True)
        pipeline.catch_up()
        assert [row["id"] for row in rows("t")] == [1, 2]


def test_a_layout_that_a_copy_loses(publisher, tmp_path):
    """The table is moved away, and made anew by other columns."""
    publisher.execute(KEYED)
    with bridge(publisher, tmp_path) as (pipeline, _):
        pipeline.catch_up()
        publisher.execute("ALTER TABLE t DROP v; ALTER TABLE t ADD w int")
        type_in(pipeline, f"pgbridge refresh {pipeline.subscription.name} --resync public.t")
        with mock.patch.object(tablesync, "layout_of", return_value=Layout(cluster_by=("v",))):
            (hint,) = [hint for hint in hints_of(pipeline) if "to lay them out" in hint]
        (place, command) = re.findall("move (.*) away, set cluster_by or partition_by, and run: (.*)", hint)[0]
        pipeline.spark.lake.tables.pop(place)
        changed(pipeline, tables={"public.t": Table(cluster_by=("w",))})
        type_in(pipeline, command)
        with mock.patch.object(tablesync, "make_table", side_effect=vars(tablesync)["make_table"]) as made:
            pipeline.catch_up()
        assert made.call_args.args[-2:] == (Layout(cluster_by=("w",)), {})


def test_a_lag_that_verify_does_not_wait_for(publisher, tmp_path):
    publisher.execute(KEYED)
    with bridge(publisher, tmp_path) as (pipeline, _):
        pipeline.catch_up()
        publisher.execute("INSERT INTO t VALUES (2, 'b')")
        snapshot_lsn = Lsn.parse(publisher.query("SELECT pg_current_wal_lsn()::text")[0][0])
        nothing: Any = None
        verifying = Verification(
            nothing,
            pipeline.catalog,
            pipeline.subscription,
            nothing,
            running=lambda: True,
            pace=nothing,
            patience_s=0.0,
            shown=0,
        )
        with pytest.raises(VerifyError) as caught:
            verifying._delta_lsn(snapshot_lsn)
        assert caught.value.hint.startswith("see pgbridge status; verify again once the lag is small")
        type_in(pipeline, "pgbridge status")
        pipeline.catch_up()
        assert verifying._delta_lsn(snapshot_lsn)[0] == snapshot_lsn


def test_a_transaction_that_cannot_be_replayed(publisher, tmp_path):
    """Its table waits, is copied, was being added, or has other columns by now; or the disk may lack an attempt."""
    publisher.execute(KEYED)
    with bridge(publisher, tmp_path) as (pipeline, rows):
        name, catalog = pipeline.subscription.name, pipeline.catalog
        pipeline.catch_up()
        lsn = pipeline.remote_lsn()
        added = relation("t", 1)

        def again():
            batch = batcher(subscribed(added)).form([transaction(int(lsn), added, insert(1, "a"))], Lsn(1))
            rels, copying = catalog.rels_by_name(name), catalog.rels_by_name(sync_name(name))
            path = write(batch, tmp_path / "skipped", name, origin="a", rels={})
            return replay.Replay(
                pipeline.spark,
                pipeline.subscription,
                app_id="a",
                remote_lsn=lsn,
                kept=read(path),
                types=types,
                rels=rels,
                copying=copying.keys(),
            )

        refresh.have_wait(catalog, name, [("public", "t")], "why", 0.0)
        with pytest.raises(SkipError, match="waits for its resync") as caught:
            again()
        type_in(pipeline, re.findall("run: (pgbridge [^;]*)", caught.value.hint)[0])
        refresh.copy_afresh(catalog, name, ("public", "t"))
        with pytest.raises(SkipError, match="is being copied") as caught:
            again()
        assert caught.value.hint.startswith("run the daemon until its state is r (pgbridge status")
        pipeline.catch_up()
        type_in(pipeline, "pgbridge status")
        assert again().copied_since == ["public.t"]
        lsn = Lsn(pipeline.remote_lsn() + 1)
        patched = {"existing_schema": mock.Mock(), "read_target_schema": mock.Mock(return_value=())}
        with mock.patch.multiple(lake_table, **patched), pytest.raises(SkipError) as caught:
            _ = again()._tables
        begun = tmp_path / "begun.json"
        begun.write_text('{"flushing": true, "boot_id": ""}')
        with pytest.raises(SkipError) as begun_before:
            _check_begun(begun, name)
        config, of_added = config_of(pipeline), transaction(int(lsn) + 1, added, insert(1, "a"))
        batch = batcher(subscribed(added)).form([of_added], lsn)
        write(batch, config.state_dir / "skipped", sync_name(name), origin="a", rels={})
        with pytest.raises(SkipError, match="skipped for tables that were being added") as left_out:
            list(replay_command(config, pipeline.subscription, str(Lsn(lsn + 1))))
        for hint in (caught.value.hint, begun_before.value.hint, left_out.value.hint):
            before = catalog.rels_by_name(name)["public", "t"].lsn
            publisher.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
            type_in(pipeline, hint.rpartition(": ")[2].replace("TABLE", "public.t"))
            pipeline.catch_up()
            assert catalog.rels_by_name(name)["public", "t"].lsn > before
        assert len(rows("t")) == 4
