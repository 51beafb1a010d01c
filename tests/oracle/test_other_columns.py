"""Columns under other names than the published ones: the rows are a native subscriber's, in each mode."""

from __future__ import annotations

import pytest

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.check.known import Known
from pgbridge.bridge.check.subscription import check_subscription
from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.runtime.errors import NeedsResync, TargetError
from pgbridge.bridge.sync import key_order
from tests.bridge.configurations import altered
from tests.bridge.verify.test_verification import tables_of, verified
from tests.oracle.delta import delta_table, unequal
from tests.oracle.native import NativeSubscriber
from tests.oracle.typed import type_in

NAMES = {"id": "customer id", "v": "value", "later": "since", "swapped": "w", "w": "swapped"}
TABLES = ("keyed", "bag", "versions", "kept", "changes")
MODES = {"versions": "history", "kept": "soft_deletes", "changes": "changelog"}
SETUP = "".join(
    f"""
    CREATE TABLE {name} (id int{"" if name == "bag" else " PRIMARY KEY"}, v text, swapped int, w int, big text);
    ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL;
    INSERT INTO {name} SELECT g, 'v' || g, g, -g, repeat('x', 3000) FROM generate_series(1, 6) g;
    """
    for name in TABLES
)
CHANGES = """
    INSERT INTO {0} VALUES (7, 'new', 7, -7, NULL); UPDATE {0} SET v = 'changed', w = 0 WHERE id = 1;
    UPDATE {0} SET id = 22 WHERE id = 2; DELETE FROM {0} WHERE id = 3; UPDATE {0} SET big = 'small' WHERE id = 4
"""
ALTERED = "ALTER TABLE {0} ADD later int DEFAULT 5; ALTER TABLE {0} RENAME big TO large; ALTER TABLE {0} ADD plain text"
AFTER = "INSERT INTO {0} VALUES (8, 'last', 8, -8, NULL, 6, 'p'); UPDATE {0} SET later = 9, plain = 'q' WHERE id = 5"
RENAMED = "ALTER TABLE {0} RENAME v TO u; ALTER TABLE {0} ALTER swapped TYPE bigint"
AT_LAST = "INSERT INTO {0} VALUES (9, 'u', 5000000000); DELETE FROM {0} WHERE id = 6"
AT_FIRST_NAMES = ["customer id", "value", "w", "swapped", "big"]
AT_LAST_NAMES = ["customer id", "u", "w", "swapped", "large", "since", "plain"]


def assert_equal(spark, bridge, native):
    back = {new: old for old, new in NAMES.items()}
    for table in TABLES[:-1]:
        rows = delta_table(spark, bridge.path(table))
        if table in {"versions", "kept"}:
            rows = rows.filter(rows["valid_to_lsn" if table == "versions" else "row_deleted_lsn"].is_null())
            rows = rows.drop_columns([name for name in rows.column_names if name.startswith(("valid_", "row_"))])
        rows = rows.rename_columns([back.get(name, name) for name in rows.column_names])
        assert unequal(rows, native, table) == [], table


def test_they_are_equal_to_the_published_ones(spark, publisher, pipeline):
    """By the copy, the stream, ALTER TABLE, a copy afresh; and verified, by its own names on each side."""
    publisher.execute(SETUP + "ALTER TABLE bag REPLICA IDENTITY FULL; CREATE PUBLICATION pub FOR ALL TABLES")
    tables = {
        f"public.{name}": Table(rename_columns=NAMES, **({"mode": MODES[name]} if name in MODES else {}))
        for name in TABLES
    }
    for given in tables.values():  # a name may be of a column that comes later, but not at first
        del given.rename_columns["later"]
    bridge = pipeline(tables=tables)
    with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
        bridge.catch_up()
        native.wait_caught_up()
        assert_equal(spark, bridge, native)
        assert delta_table(spark, bridge.path("keyed")).column_names == AT_FIRST_NAMES
        for given in tables.values():
            given.rename_columns["later"] = NAMES["later"]
        for statements in (CHANGES, ALTERED, AFTER, RENAMED, AT_LAST):
            for table in TABLES:
                if statements in {ALTERED, RENAMED}:
                    native.execute(statements.format(table))
                publisher.execute(statements.format(table))
            bridge.catch_up()
            native.wait_caught_up()
            if statements not in {ALTERED, RENAMED}:
                assert_equal(spark, bridge, native)
        assert delta_table(spark, bridge.path("keyed")).column_names == AT_LAST_NAMES
        spark.sql(f"UPDATE delta.`{bridge.path('keyed')}` SET u = 'other' WHERE `customer id` = 9").collect()
        spark.sql(f"DELETE FROM delta.`{bridge.path('keyed')}` WHERE `customer id` = 8").collect()
        document = tables_of(verified(bridge, repaired=True))
        assert {name: table["equal"] for name, table in document.items() if name != "public.changes"} == {
            "public.keyed": False,
            "public.bag": True,
            "public.versions": True,
            "public.kept": True,
        }
        assert [each["key"] for each in document["public.keyed"]["shown"]] == [{"id": "8"}, {"id": "9"}]
        assert_equal(spark, bridge, native)
        assert spark.read.format("delta").load(bridge.path("changes")).select("new.*").columns == AT_LAST_NAMES
        for table in TABLES:
            refresh.ask(bridge.catalog, bridge.subscription.name, [("public", table)], copy_data=True)
        for given in tables.values():
            del given.rename_columns["v"]
        bridge.catch_up()
        assert_equal(spark, bridge, native)


def test_a_large_table_is_copied_in_the_order_of_its_renamed_key(spark, publisher, pipeline, monkeypatch):
    """By ranges of the key, which the server knows under its own name, or sorted by it."""
    monkeypatch.setattr(key_order, "LEAST_RANGED_BYTES", 1)
    monkeypatch.setattr(key_order, "_LEAST_RANGE_BYTES", 1 << 16)
    monkeypatch.setattr(key_order, "LEAST_BYTES", 1)
    publisher.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text); CREATE TABLE mixed (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 5000) g;"
        "INSERT INTO mixed SELECT g * 7919 % 5003, repeat('x', 200) FROM generate_series(1, 5000) g;"
        "CREATE PUBLICATION pub FOR TABLE t, mixed"
    )
    publisher.execute("VACUUM ANALYZE t, mixed")
    given = Table(rename_columns={"id": "number", "v": "id"})
    bridge = pipeline(tables={"public.t": given, "public.mixed": given})
    bridge.catch_up()
    publisher.execute(
        "UPDATE t SET v = 'y' WHERE id = 4000; DELETE FROM t WHERE id = 1; INSERT INTO mixed VALUES (-1, 'z')"
    )
    bridge.catch_up()
    for table in ("t", "mixed"):
        rows = delta_table(spark, bridge.path(table))
        assert rows.column_names == ["number", "id"]
        assert unequal(rows.rename_columns(["id", "v"]), publisher, table) == []
    assert all(table["equal"] for table in tables_of(verified(bridge)).values())


def test_a_masked_column_under_another_name(publisher, memory_pipeline):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, email text); CREATE PUBLICATION pub FOR TABLE t")
    publisher.execute("INSERT INTO t VALUES (1, 'one')")
    given = Table(rename_columns={"email": "initial"}, mask={"email": {"first": 1}})
    bridge = memory_pipeline(tables={"public.t": given})
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (2, 'two')")
    bridge.catch_up()
    assert bridge.rows("t") == [{"id": 1, "initial": "o"}, {"id": 2, "initial": "t"}]
    publisher.execute("ALTER TABLE t RENAME email TO mail; INSERT INTO t VALUES (3, 'three')")
    publisher.execute("ALTER TABLE t RENAME mail TO email")  # the row is in the WAL under the other name
    with pytest.raises(TargetError, match='does not have the masked column "email", but "mail"'):
        bridge.catch_up()
    given = Table(rename_columns={"email": "initial"}, mask={"email": {"first": 1}, "mail": {"first": 1}})
    bridge.subscription = altered(bridge.subscription, tables={"public.t": given})
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (4, 'four')")
    bridge.catch_up()
    assert [row["initial"] for row in bridge.rows("t")] == ["o", "t", "t", "f"]


def test_names_that_change_have_the_table_wait(publisher, memory_pipeline):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w text); CREATE PUBLICATION pub FOR TABLE t")
    publisher.execute("INSERT INTO t VALUES (1, 'a')")
    bridge = memory_pipeline()
    bridge.catch_up()
    bridge.subscription = altered(bridge.subscription, tables={"public.t": Table(rename_columns={"v": "value"})})
    publisher.execute("INSERT INTO t VALUES (2, 'b')")
    with pytest.raises(NeedsResync, match='mask or rename_columns of table "public.t" are others') as caught:
        bridge.catch_up()
    assert bridge.rows("t") == [{"id": 1, "v": "a", "w": None}]
    type_in(bridge, caught.value.hint.rpartition(": ")[2])
    bridge.catch_up()
    assert bridge.rows("t") == [{"id": 1, "value": "a", "w": None}, {"id": 2, "value": "b", "w": None}]
    publisher.execute("ALTER TABLE t RENAME w TO value; INSERT INTO t VALUES (3, 'c', 'd')")
    with pytest.raises(
        NeedsResync, match='columns "v" and "value" of table "public.t" would both be "value"'
    ) as caught:
        bridge.catch_up()
    assert 'correct rename_columns in tables."public.t"' in caught.value.hint


def test_a_name_that_delta_cannot_have_is_another_one(publisher, memory_pipeline):
    publisher.execute('CREATE TABLE t (id int PRIMARY KEY, v int, "V" int); INSERT INTO t VALUES (1, 2, 3)')
    publisher.execute("CREATE PUBLICATION pub FOR TABLE t")
    bridge = memory_pipeline(tables={"public.t": Table(rename_columns={"V": "upper"})})
    bridge.catch_up()
    assert bridge.rows("t") == [{"id": 1, "v": 2, "upper": 3}]


@pytest.mark.parametrize(
    ("names", "message", "remedy"),
    [
        ({"V": "x"}, 'no published column "V"', 'write "v"'),
        ({"x": "y"}, 'no published column "x"', "its columns are id, v, w"),
        ({"v": "W"}, 'columns "v" and "w" of table "public.t" would both be "w"', "correct rename_columns"),
    ],
)
def test_what_cannot_be_is_said_before_the_slot_is_made(publisher, memory_pipeline, names, message, remedy):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w text); CREATE PUBLICATION pub FOR TABLE t")
    bridge = memory_pipeline(tables={"public.t": Table(rename_columns=names)})
    with pytest.raises(TargetError, match=message) as caught:
        bridge.catch_up()
    assert remedy in caught.value.hint
    assert publisher.query("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (publisher.name,)) == [
        (0,)
    ]
    findings = check_subscription(bridge.subscription, Known(bridge.catalog, running=False))
    assert any(finding.message == caught.value.message for finding in findings)
