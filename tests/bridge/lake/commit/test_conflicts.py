"""How a keyed target's rows are found, and what is raised where one is in the way."""

from pgbridge.bridge.lake.commit.conflicts import KeyedTarget
from pgbridge.bridge.targets.target import TargetColumn
from pgbridge.protocol.values.types import resolve

COLUMNS = tuple(TargetColumn(name, resolve(oid, -1)) for name, oid in [("n", 20), ("the key", 20)])
KEYED = KeyedTarget("public.t", "/lake/t", COLUMNS, key=(1,))


def test_rows_are_found_by_the_keys_columns(spark):
    rows = KEYED.keys_of(spark.createDataFrame([(10, 1), (20, 2)], "n long, `the key` long"))
    wanted = spark.createDataFrame([(2,), (3,)], "s_1 long")
    assert [tuple(row) for row in rows.join(wanted, KEYED.found("s"), "left_semi").collect()] == [(2,)]


def test_what_is_raised_has_the_type_of_the_keys_first_column():
    assert KEYED.key_names == ["the key"]
    raising = KEYED.raising("'insert_exists'", "t")
    assert raising.startswith("CAST(raise_error(")
    assert raising.endswith(" AS bigint)")
    assert "left(CAST(t_1 AS STRING), 200)" in raising
