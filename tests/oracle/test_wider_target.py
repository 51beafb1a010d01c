"""Targets that were made beforehand with wider types: they hold what a native subscriber's wider columns hold."""

from __future__ import annotations

from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

PUBLISHED = "s smallint, i int, h int, f real, d date, n numeric(6,2), list int[], reals real[]"
WIDE = "s numeric(9,2), i bigint, h double precision, f double precision, d timestamp, n numeric(20,4), list bigint[],"
WIDE += " reals double precision[]"
DELTA = "s decimal(9,2), i bigint, h double, f double, d timestamp_ntz, n decimal(20,4), list array<bigint>,"
DELTA += " reals array<double>"

TABLES = f"""
CREATE TABLE keyed (id int PRIMARY KEY, {PUBLISHED});
CREATE TABLE bag ({PUBLISHED});
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE PUBLICATION pub FOR TABLE keyed, bag;
"""
SUBSCRIBERS = f"CREATE TABLE keyed (id bigint PRIMARY KEY, {WIDE}); CREATE TABLE bag ({WIDE});"
FILTERS = """FOR TABLE keyed WHERE (id / 2 <> 3), bag
    WHERE (f = '0.1' OR s / 2 = 1 OR h / 2 = 3 OR d + 1 = '2024-03-01' OR n * 2 = 3 OR list @> '{7}')"""
ROWS = """(1, 1, 1, 0.1, '2024-01-01', 1.5, '{1,NULL}', '{0.1,NULL}'),
    (-32768, -2147483648, -2147483648, '-Infinity', '0001-01-01', -9999.99, '{}', '{}'),
    (32767, 2147483647, 2147483647, 3.4e38, '9999-12-31', 9999.99, '{2147483647}', '{NaN,1e-45}'),
    (2, 16777217, 7, 16777217, '2024-02-29', 0, '{7}', NULL), (3, 3, 3, 'NaN', '2024-01-02', 1.25, '{3}', '{1.1}'),
    (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL), (1, 1, 1, 0.1, '2024-01-01', 1.5, '{1,NULL}', '{0.1,NULL}')"""
INSERTS = (
    f"INSERT INTO bag VALUES {ROWS}",
    "INSERT INTO keyed SELECT (SELECT count(*) FROM keyed) + row_number() OVER (), * FROM bag",
)
CHANGES = (
    *INSERTS,
    "UPDATE keyed SET f = f / 3, i = i - 1, d = d - 1 WHERE f BETWEEN 0 AND 10",
    "UPDATE keyed SET id = id + 1000 WHERE id % 3 = 0",
    "DELETE FROM keyed WHERE id % 4 = 1",
    "UPDATE bag SET n = n - 1 WHERE f = '0.1'",
    "UPDATE bag SET list = '{8}' WHERE h = 7",
    "DELETE FROM bag WHERE f = 'NaN' OR s = 32767",
)


def test_a_wider_target_holds_what_a_native_subscribers_holds(spark, publisher, pipeline, tmp_path):
    """Copied and streamed, with and without a key; and strict, from what it holds, with filters re-applied."""
    publisher.execute(TABLES)
    publisher.execute(f"CREATE PUBLICATION filtered {FILTERS} WITH (publish = 'insert')")
    (tmp_path / "filters.sql").write_text(f"CREATE PUBLICATION filtered {FILTERS} WITH (publish = 'insert');")
    whole = pipeline()
    strict = pipeline(
        slot_name=f"{publisher.name}_strict",
        schema_evolution="strict",
        copy_data=False,
        publication_definitions=str(tmp_path / "filters.sql"),
    )
    for bridge in (whole, strict):
        for name, columns in (("keyed", f"id bigint, {DELTA}"), ("bag", DELTA)):
            path = f"{bridge.subscription.warehouse}/public/{name}"
            spark.createDataFrame([], columns).write.format("delta").save(path)
    only_new = {"copy_data": False}
    with NativeSubscriber(
        publisher.conninfo, ["filtered"], schema=SUBSCRIBERS, options=only_new, suffix="filtered"
    ) as filtered:
        strict.catch_up()
        for statement in INSERTS:
            publisher.execute(statement)
        with NativeSubscriber(publisher.conninfo, ["pub"], schema=SUBSCRIBERS) as native:
            whole.catch_up()
            native.wait_caught_up()
            for name in ("keyed", "bag"):
                assert differences(spark, whole.path(name), native, f"public.{name}") == []
            for statement in CHANGES:
                publisher.execute(statement)
            for bridge, oracle in ((whole, native), (strict, filtered)):
                bridge.catch_up()
                oracle.wait_caught_up()
                for name in ("keyed", "bag"):
                    assert differences(spark, bridge.path(name), oracle, f"public.{name}") == []
                    assert len(bridge.rows(name)) >= 3
                types = spark.read.format("delta").load(bridge.path("bag")).schema.simpleString()
                assert types == f"struct<{DELTA.replace(', ', ',').replace(' ', ':')}>"
