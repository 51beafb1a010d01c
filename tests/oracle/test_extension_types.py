"""pgvector's and PostGIS's types as arrays and as EWKB equal PostgreSQL's values, whatever changes their rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.lake.location import read_table
from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.bridge.verify import command
from pgbridge.protocol.values.text_values import NOT_EWKB
from tests.bridge.configurations import altered
from tests.bridge.verify.test_verification import tables_of, verified
from tests.oracle.extension_types import TYPES

MIRRORS = ("items", "bag")
VERSIONS = {"versions": "valid_to_lsn IS NULL", "kept": "row_deleted_lsn IS NULL"}
ALL = (*MIRRORS, *VERSIONS, "changes")
SETUP = f"""
    {TYPES}
    CREATE DOMAIN embedding AS vector;
    CREATE TABLE items (id int PRIMARY KEY, n int, v vector, h halfvec, e embedding, many vector[], g geometry,
        place geography);
    ALTER TABLE items ALTER e SET STORAGE EXTERNAL;
    CREATE TABLE bag (LIKE items INCLUDING STORAGE); ALTER TABLE bag REPLICA IDENTITY FULL;
    CREATE TABLE wide (id int PRIMARY KEY, v vector, g geometry); INSERT INTO wide VALUES (1, '[0.1,2]', '0aB');
    CREATE TABLE versions (LIKE items INCLUDING ALL); CREATE TABLE kept (LIKE items INCLUDING ALL);
    CREATE TABLE changes (LIKE items INCLUDING ALL);
    CREATE PUBLICATION pub FOR ALL TABLES;
"""
POINT = "0101000020E6100000000000000000F03F0000000000000040"  # SRID=4326;POINT(1 2)
ROWS = f"""
    INSERT INTO {{0}} SELECT g, g, ('[' || g || ',2.5,-3e-05,-0,1e+10]')::vector, '[0.33325195,65504,-6e-08]'::halfvec,
        ('[' || repeat('0.1,', 2000) || g || ']')::vector, ARRAY['[1]'::vector, NULL],
        '{POINT}', lower('{POINT}')::geography
        FROM generate_series(1, 6) g;
    INSERT INTO {{0}} VALUES (7, 7);
    INSERT INTO {{0}} VALUES (8, 8, '[3.4028235e+38,1e-45,1.1754944e-38]', '[1]', '[0]', '{{{{}}}}', '00', '01FF')
"""
CHANGES = """
    UPDATE {0} SET n = -n WHERE id = 1; DELETE FROM {0} WHERE id = 4;
    UPDATE {0} SET v = '[7]', g = '0102' WHERE id IN (2, 3);
    UPDATE {0} SET id = id + 100 WHERE id IN (5, 6); UPDATE {0} SET h = NULL, place = '0304' WHERE id = 105;
    UPDATE {0} SET e = '[1,2]' WHERE id = 7; INSERT INTO {0} VALUES (20, 20, '[-1]', '[1e-05]', '[2]', NULL, 'ab', 'CD')
"""
MORE = """
    INSERT INTO bag SELECT * FROM bag WHERE id IN (1, 2); DELETE FROM bag WHERE id = 106;
    DELETE FROM bag WHERE ctid IN (SELECT min(ctid) FROM bag WHERE id = 2);
    UPDATE bag SET v = '[0.1]' WHERE ctid IN (SELECT min(ctid) FROM bag WHERE id = 1);
"""
ALTERED = """
    ALTER TABLE {0} ADD extra vector DEFAULT '[0.1,2]', ADD shape geometry DEFAULT '00fF';
    UPDATE {0} SET extra = '[5]', shape = NULL WHERE id = 2; INSERT INTO {0} VALUES (30, 30)
"""
ARRAYS, BYTES = ("v", "h", "e", "extra"), ("g", "place", "shape")
OPTIONS = {"target__vector": "array", "target__geometry": "wkb"}


def reals(numbers):
    return numbers and repr([str(np.float32(number)) for number in numbers])


def stored(spark, path, where="true", prefix=""):
    """A Delta table's rows; and the types of their columns, but for those of integers."""
    rows = read_table(spark, path).filter(where)
    if prefix:
        rows = rows.select(f"{prefix}.*")
    names = [name for name in ("id", "n", *ARRAYS, "many", *BYTES) if name in rows.columns]
    kinds = {name: rows.schema[name].dataType.simpleString() for name in names[2:]}

    def shown(name, value):
        if name in ARRAYS:
            return reals(value)
        return repr(value) if name == "many" else bytes(value).hex() if name in BYTES and value is not None else value

    found = Counter(tuple(shown(name, row[name]) for name in names) for row in rows.select(*names).collect())
    return found, kinds


def published(publisher, table, where="true"):
    """The same of the published table."""
    columns = {
        name for (name,) in publisher.query(f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass")
    }
    names = [name for name in ("id", "n", *ARRAYS, "many", *BYTES) if name in columns]
    texts = [name if name in {"id", "n"} else f"{name}::text{'[]' * (name == 'many')}" for name in names]

    def shown(name, text):
        if name in ARRAYS:
            return reals(text and text.strip("[]").split(","))
        return repr(text) if name == "many" else text and text.lower() if name in BYTES else text

    rows = publisher.query(f"SELECT {', '.join(texts)} FROM {table} WHERE {where}")
    found = Counter(tuple(shown(name, text) for name, text in zip(names, row, strict=True)) for row in rows)
    kinds = {**dict.fromkeys(ARRAYS, "array<float>"), "many": "array<string>", **dict.fromkeys(BYTES, "binary")}
    return found, {name: kinds[name] for name in names[2:]}


def test_vectors_and_geometries(spark, publisher, pipeline):
    """In a mirror with a key and one without, in each other mode; a table that is there stays as it is."""
    publisher.execute(SETUP)
    for table in ALL:
        publisher.execute(ROWS.format(table))
    modes = {"versions": "history", "kept": "soft_deletes", "changes": "changelog"}
    tables = {f"public.{name}": Table(mode=mode) for name, mode in modes.items()}
    bridge = pipeline(tables=tables, target__adopt=True, **OPTIONS)
    wide = f"delta.`{bridge.folder / 'lake' / 'public' / 'wide'}`"
    spark.sql(f"CREATE TABLE {wide} (id int, v array<double>, g string) USING delta").collect()

    def compare(where="true"):
        for table in MIRRORS:
            assert stored(spark, bridge.path(table), where) == published(publisher, table, where), table
        for table, valid in VERSIONS.items():
            assert stored(spark, bridge.path(table), f"{valid} AND {where}") == published(publisher, table, where), (
                table
            )

    def execute(statements, tables=ALL):
        for table in tables:
            publisher.execute(statements.format(table))

    bridge.catch_up()
    compare()
    execute(CHANGES)
    publisher.execute(f"{MORE} INSERT INTO wide VALUES (2, '[0.3]')")
    bridge.catch_up()  # images of the same batch as ALTER TABLE would lack the column, too
    execute(ALTERED)
    bridge.catch_up()
    compare()
    images, kinds = stored(spark, bridge.path("changes"), "operation <> 'DELETE' AND unchanged IS NULL", "new")
    assert spark.table(wide).sort("id").collect() == [(1, [0.1, 2.0], "0aB"), (2, [0.3], None)], "as it was made"
    rows, wanted = published(publisher, "changes")
    assert (kinds, {row[0] for row in rows - images}) == (wanted, {1, 2, 3, 105, 106}), (
        "`unchanged` says what these lack"
    )
    verify_and_repair(spark, bridge)
    bridge.subscription = altered(bridge.subscription, target__vector="string", target__geometry="string")
    publisher.execute("ALTER TABLE items ADD later vector, ADD area geography; TRUNCATE bag")
    execute("INSERT INTO {0} (id, v, e, g) VALUES (40, '[4]', '[1]', '40'), (41, NULL, '[2]', NULL)", MIRRORS)
    publisher.execute("UPDATE items SET later = '[1, 2]', area = '0aB' WHERE id = 40")
    bridge.catch_up()
    compare()
    rows = read_table(spark, bridge.path("items")).filter("id = 40").select("later", "area").collect()
    assert rows == [("[1, 2]", "0aB")], "a string has what the server has, whatever it is"
    publisher.execute("UPDATE bag SET g = '0aB' WHERE id = 41")
    with pytest.raises(ApplyError, match=f"'0aB' cannot be represented: {NOT_EWKB}") as caught:
        bridge.catch_up()
    assert (caught.value.context.column, "unrepresentable" in caught.value.hint) == ("g", True)
    bridge.subscription = bridge.subscription.model_copy(update={"unrepresentable": "null"})
    publisher.execute("UPDATE bag SET v = '[NaN]' WHERE id = 40")
    bridge.catch_up()
    assert read_table(spark, bridge.path("bag")).select("id", "v", "g").sort("id").collect() == [
        (40, None, b"\x40"),
        (41, None, None),
    ]


def verify_and_repair(spark, bridge):
    """Nothing differs; what is planted is found, in each kind of table, and repaired where tables are."""
    equal = verified(bridge)
    assert (equal["exit_code"], {name for name, table in tables_of(equal).items() if table["equal"]}) == (
        command.EQUAL,
        {"public.items", "public.bag", "public.versions", "public.kept", "public.wide"},
    )
    for table, assignment in (
        ("items", "v = array(7, float(0.1)) WHERE id = 2"),
        ("items", "place = X'0305' WHERE id = 105"),
        ("items", "h = NULL WHERE id = 20"),
        ("bag", "e = array(float(2.0000002)) WHERE id = 20"),
        ("versions", "g = X'AC' WHERE id = 20 AND valid_to_lsn IS NULL"),
        ("wide", "v = array(0.1D, 2.0000000001D) WHERE id = 1"),
    ):
        spark.sql(f"UPDATE delta.`{bridge.path(table)}` SET {assignment}").collect()
    found = tables_of(verified(bridge))
    assert {name: table["differences"] for name, table in found.items()} == {
        "public.items": {"changed": 3},
        "public.bag": {"missing": 1, "extra": 1},
        "public.versions": {"changed": 1},
        "public.kept": {},
        "public.wide": {"changed": 1},
        "public.changes": {},
    }
    shown = {one["key"]["id"]: one["columns"] for one in found["public.items"]["shown"]}
    assert {id_: {name: value["source"] for name, value in columns.items()} for id_, columns in shown.items()} == {
        "2": {"v": "[7]"},
        "105": {"place": "0304"},
        "20": {"h": "[1e-05]"},
    }
    assert tables_of(verified(bridge, "items", repaired=True))["public.items"]["repaired"]
    assert verified(bridge, "items")["exit_code"] == command.EQUAL
    for table in ("bag", "versions"):  # these are not repaired
        spark.sql(
            f"RESTORE TABLE delta.`{bridge.path(table)}` TO VERSION AS OF {before(spark, bridge.path(table))}"
        ).collect()


def before(spark, path):
    """The version before a table's last one."""
    return spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").first()["version"] - 1
