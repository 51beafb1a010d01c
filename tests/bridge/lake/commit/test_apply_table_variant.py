"""Documents become VARIANT by every kind of commit, with or without a key."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from pgbridge.bridge.effects.events import DELETE, INSERT, OLD_TUPLE, UPDATE
from pgbridge.bridge.effects.net_effect import net_effect
from pgbridge.bridge.lake.commit.apply_table import apply_table
from pgbridge.bridge.lake.commit.conflicts import KeyedTarget
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.schema import spark_schema, target_schema_of
from pgbridge.bridge.skipped.replay import OVERWRITTEN, UNCHANGED, preview
from pgbridge.bridge.targets.target import Target, TargetColumn
from pgbridge.protocol.values.types import Place, resolve
from tests.bridge.apply.made_targets import changes

DOC = replace(resolve(3802, -1), place=Place.VARIANT)
COLUMNS = (TargetColumn("id", resolve(20, -1)), TargetColumn("doc", DOC))


@pytest.fixture
def target(spark, tmp_path):
    path = str(tmp_path / "t")
    schema = spark_schema([("id", pa.int64()), ("doc", pa.string()), ("own", pa.string())], ["doc", "own"])
    create_table(spark, path, schema)
    return Target("public", "t", path, target_schema_of(schema))


def made(target, *rows, **options):
    """Changes (op, old key, id, document)."""
    return replace(changes(target, *rows, **options), columns=COLUMNS)


def content(spark, target):
    rows = spark.read.format("delta").load(target.path).selectExpr("id", "to_json(doc)", "to_json(own)").collect()
    return sorted(tuple(row) for row in rows)


def test_with_a_key(spark, target):
    apply_table(spark, made(target, (INSERT, None, 1, '{"b": 1, "a": 2.0}'), (INSERT, None, 2, None)))
    assert content(spark, target) == [(1, '{"a":2,"b":1}', None), (2, None, None)]
    one_by_one = made(target, (INSERT, None, 1, "[1]"), (INSERT, None, 1, "[2]"), (INSERT, None, 3, '"x"'))
    apply_table(spark, one_by_one, conflict="apply_remote")
    apply_table(spark, made(target, (UPDATE, 2, 20, '{"moved": true}'), (DELETE, 3, None, None)))
    assert content(spark, target) == [(1, "[2]", None), (20, '{"moved":true}', None)]
    again = made(target, (INSERT, None, 1, "[ 2 ]"), (INSERT, None, 20, "null"))
    effect = net_effect(again.changes, (0,))
    found = preview(spark, effect, KeyedTarget("public.t", target.path, COLUMNS, (0,), overwrite=True))
    assert found.counts == {OVERWRITTEN: 1, UNCHANGED: 1}
    assert [(row.before, row.after) for row in found.examples] == [({"doc": '{"moved":true}'}, {"doc": "null"})]
    after = made(target, (INSERT, None, 7, "[]"), (INSERT, None, 8, "{}"), (DELETE, 8, None, None), truncated=True)
    apply_table(spark, after)
    assert content(spark, target) == [(7, "[]", None)]


def test_without_a_key(spark, target):
    """Rows are found by their documents' values, and keep what only the Delta table has."""
    spark.sql(
        f"INSERT INTO delta.`{target.path}` SELECT id, parse_json('{{\"n\": 1.0}}'), parse_json(own) "
        "FROM VALUES (1L, '[1]'), (1L, '[2]'), (2L, '[3]') AS t(id, own)"
    ).collect()

    def bag(*rows):
        table = pa.table(
            {
                "seq": pa.array(range(len(rows)), pa.int64()),
                "op": pa.array([row[0] for row in rows], pa.int16()),
                "old": pa.array([0 if row[0] == INSERT else OLD_TUPLE for row in rows], pa.int16()),
                "old_0": pa.array([row[1] for row in rows], pa.int64()),
                "old_1": pa.array([row[2] for row in rows], pa.string()),
                "new_0": pa.array([row[3] for row in rows], pa.int64()),
                "new_1": pa.array([row[4] for row in rows], pa.string()),
            }
        )
        return replace(made(target, key=()), changes=table)

    apply_table(spark, bag((UPDATE, 2, '{"n": 1}', 2, '{"n": 5}'), (INSERT, None, None, 4, "[0]")))
    assert content(spark, target)[2:] == [(2, '{"n":5}', "[3]"), (4, "[0]", None)]
    apply_table(spark, bag((DELETE, 1, '{"n": 1.00}', None, None), (DELETE, 4, "[1]", None, None)))
    (one, *others) = content(spark, target)
    assert one in {(1, '{"n":1}', "[1]"), (1, '{"n":1}', "[2]")}
    assert others == [(2, '{"n":5}', "[3]"), (4, "[0]", None)]
