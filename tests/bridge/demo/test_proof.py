"""The proof finds what differs, and nothing else. Spark is stood in for; the demo's own test runs it with Spark."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from bridge.demo import proof, shop
from bridge.demo.proof import DIFFERENCES_SHOWN, Snapshot, compare_columns, compare_rows, delta_type, prove, read

NAMES = ["id", "name", "amount"]
ROWS = [(1, "one", Decimal("1.10")), (2, None, None), (3, "three", Decimal("3.30"))]


def test_equal_rows_in_any_order():
    assert compare_rows(NAMES, [0], ROWS, reversed(ROWS)) == []
    assert compare_rows(NAMES, [], ROWS * 2, ROWS[::-1] * 2) == []
    assert compare_rows(NAMES, [0], [], []) == []


def test_changed_value_is_named_with_its_key():
    delta = [ROWS[0], ROWS[1], (3, "three", Decimal("3.31"))]
    assert compare_rows(NAMES, [0], ROWS, delta) == ["id = 3: amount is 3.30 in PostgreSQL, 3.31 in Delta"]


def test_null_is_not_an_empty_text():
    delta = [ROWS[0], (2, "", None), ROWS[2]]
    assert compare_rows(NAMES, [0], ROWS, delta) == ["id = 2: name is NULL in PostgreSQL, '' in Delta"]


def test_missing_row():
    assert compare_rows(NAMES, [0], ROWS, ROWS[1:]) == ["only in PostgreSQL: id = 1, name = 'one', amount = 1.10"]


def test_additional_row():
    assert compare_rows(NAMES, [0], ROWS[1:], ROWS) == ["only in Delta: id = 1, name = 'one', amount = 1.10"]


@pytest.mark.parametrize("key", [[], [0]])
def test_duplicate(key):
    """A row applied twice is found, with a key or without."""
    difference = ["1x in PostgreSQL, 2x in Delta: id = 1, name = 'one', amount = 1.10"]
    assert compare_rows(NAMES, key, ROWS, [*ROWS, ROWS[0]]) == difference


def test_lost_duplicate_in_a_table_without_key():
    difference = ["3x in PostgreSQL, 1x in Delta: id = 1, name = 'one', amount = 1.10"]
    assert compare_rows(NAMES, [], [*ROWS, ROWS[0], ROWS[0]], ROWS) == difference


def test_row_missing_more_than_once():
    difference = ["only in PostgreSQL (2x): id = 1, name = 'one', amount = 1.10"]
    assert compare_rows(NAMES, [], [ROWS[0], *ROWS], ROWS[1:]) == difference


def test_without_a_key_both_rows_are_shown():
    assert compare_rows(["page"], [], [("/a",)], [("/b",)]) == [
        "only in PostgreSQL: page = '/a'",
        "only in Delta: page = '/b'",
    ]


def test_changed_row_beside_the_right_one_under_the_same_key():
    """A key that Delta has twice: once right, once wrong."""
    wrong = (1, "won", Decimal("1.10"))
    assert compare_rows(NAMES, [0], ROWS, [*ROWS, wrong]) == ["only in Delta: id = 1, name = 'won', amount = 1.10"]


def test_only_the_first_differences_are_shown():
    lines = compare_rows(["id"], [0], [(i,) for i in range(DIFFERENCES_SHOWN + 3)], [])
    assert len(lines) == DIFFERENCES_SHOWN + 1
    assert lines[-1] == "and 3 more"


def test_long_values_are_shortened():
    (line,) = compare_rows(["id", "note"], [0], [(1, "x" * 5000)], [])
    assert len(line) < 150
    assert line.endswith("… (5002 characters)")


def test_columns_by_name_and_type():
    published = {"id": "bigint", "total": "decimal(12,2)"}
    assert compare_columns(published, {"total": "decimal(12,2)", "id": "bigint"}) == []
    assert compare_columns(published, {"id": "int", "extra": "string"}) == [
        "column id is bigint in PostgreSQL and int in Delta",
        "column total is decimal(12,2) in PostgreSQL and missing in Delta",
        "column extra is missing in PostgreSQL and string in Delta",
    ]


@pytest.mark.parametrize(
    ("postgresql", "delta"),
    [
        ("bigint", "bigint"),
        ("integer", "int"),
        ("numeric(12,2)", "decimal(12,2)"),
        ("numeric", "string"),
        ("text[]", "array<string>"),
        ("double precision[]", "array<double>"),
        ("timestamp with time zone", "timestamp"),
        ("timestamp without time zone", "timestamp_ntz"),
        ("order_status", "string"),
        ("jsonb", "string"),
    ],
)
def test_types_of_the_contract(postgresql, delta):
    assert delta_type(postgresql) == delta


# --- with a server ------------------------------------------------------------------------------------------------


@pytest.fixture
def conninfo(publisher) -> str:
    """A small table of the shop's types under both of the demo's publications."""
    publisher.execute(
        """
        CREATE TABLE t (id bigint PRIMARY KEY, b boolean, n numeric(12,2), s text, tags text[], f double precision[],
                        j jsonb, u uuid, i inet, r tstzrange, raw bytea, d date, at timestamptz, local timestamp);
        INSERT INTO t VALUES (1, true, 1.5, 'é', '{a,NULL}', '{0.1,2}', '{"k": [1]}', md5('')::uuid, '10.0.0.1',
                              '[2026-01-01 00:00+02,2026-01-02 00:00+02)', '\\x00ff', '2026-01-31',
                              '2026-01-31 12:00:00.000001+01', '2026-01-31 12:00'),
                             (2, NULL, NULL, '', '{}', NULL, NULL, NULL, NULL, NULL, '', NULL, NULL, NULL);
        CREATE PUBLICATION shop_pub FOR TABLE t;
        CREATE PUBLICATION vip_pub FOR TABLE t (id, s) WHERE (id = 2);
        """
    )
    return str(publisher.conninfo)


TYPED = (
    1,
    True,
    Decimal("1.50"),
    "é",
    ("a", None),
    (0.1, 2.0),
    '{"k": [1]}',
    "d41d8cd9-8f00-b204-e980-0998ecf8427e",
    "10.0.0.1",
    '["2025-12-31 22:00:00+00","2026-01-01 22:00:00+00")',
    b"\x00\xff",
    dt.date(2026, 1, 31),
    dt.datetime(2026, 1, 31, 11, 0, 0, 1, dt.UTC),
    dt.datetime(2026, 1, 31, 12),  # noqa: DTZ001 - a timestamp without time zone
)
EMPTY = (2, None, None, "", (), None, None, None, None, None, b"", None, None, None)


def test_published_values_are_typed_or_text(conninfo):
    with Snapshot(conninfo) as snapshot:
        (table,) = snapshot.tables("shop_pub")
        assert snapshot.rows(table) == [TYPED, EMPTY]


def test_snapshot_stays_at_its_lsn(conninfo, publisher):
    """What commits later is not seen, and has a higher LSN."""
    with Snapshot(conninfo) as snapshot:
        publisher.execute("DELETE FROM t WHERE id = 1")
        (table,) = snapshot.tables("shop_pub")
        assert len(snapshot.rows(table)) == 2
        with Snapshot(conninfo) as later:
            assert len(later.rows(table)) == 1
            assert later.lsn > snapshot.lsn


class FakeSpark:
    """Hands out Arrow tables where Spark would read Delta tables."""

    def __init__(self, tables: dict[str, tuple[t.StructType, pa.Table]]) -> None:
        self.read = self
        self._tables = tables

    def format(self, name: str) -> FakeSpark:
        """As spark.read.format."""
        assert name == "delta"
        return self

    def load(self, path: str) -> FakeFrame:
        """As spark.read.load."""
        return FakeFrame(*self._tables[path])


class FakeFrame:
    """A DataFrame of one Arrow table."""

    def __init__(self, schema: t.StructType, table: pa.Table) -> None:
        self.schema = schema
        self._table = table

    def select(self, *names: str) -> FakeFrame:
        """As DataFrame.select."""
        return FakeFrame(self.schema, self._table.select(names))

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        """As DataFrame.toArrow."""
        return self._table


def delta(tmp_path, **changed: Any) -> FakeSpark:
    """What Delta should have of `conninfo`'s table, but for the columns given."""
    types = [
        (t.LongType(), pa.int64()),
        (t.BooleanType(), pa.bool_()),
        (t.DecimalType(12, 2), pa.decimal128(12, 2)),
        (t.StringType(), pa.string()),
        (t.ArrayType(t.StringType()), pa.list_(pa.string())),
        (t.ArrayType(t.DoubleType()), pa.list_(pa.float64())),
        *[(t.StringType(), pa.string())] * 4,
        (t.BinaryType(), pa.binary()),
        (t.DateType(), pa.date32()),
        (t.TimestampType(), pa.timestamp("us", "UTC")),
        (t.TimestampNTZType(), pa.timestamp("us")),
    ]
    names = ["id", "b", "n", "s", "tags", "f", "j", "u", "i", "r", "raw", "d", "at", "local"]
    columns = {name: [TYPED[i], EMPTY[i]] for i, name in enumerate(names)} | changed
    arrays = [pa.array(columns[name], arrow) for name, (_, arrow) in zip(names, types, strict=True)]
    schema = t.StructType([t.StructField(name, spark) for name, (spark, _) in zip(names, types, strict=True)])
    vip_schema = t.StructType([t.StructField("s", t.StringType()), t.StructField("id", t.LongType())])
    return FakeSpark(
        {
            str(tmp_path / "shop/public/t"): (schema, pa.table(arrays, names)),
            str(tmp_path / "vip/public/t"): (vip_schema, pa.table({"s": [""], "id": [2]})),
        }
    )


def verdicts(conninfo, spark, tmp_path):
    """The proof's result on it."""
    with Snapshot(conninfo) as snapshot:
        return prove(spark, read(snapshot), {"shop": tmp_path / "shop", "vip": tmp_path / "vip"})


def test_equal_tables_are_proved_equal(conninfo, tmp_path):
    whole, filtered = verdicts(conninfo, delta(tmp_path), tmp_path)
    assert (whole.equal, whole.rows, whole.columns, whole.table) == (True, 2, 14, "public.t")
    assert (filtered.equal, filtered.rows, filtered.columns, filtered.subscription) == (True, 1, 2, "vip")


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"n": [Decimal("1.51"), None]}, "id = 1: n is 1.50 in PostgreSQL, 1.51 in Delta"),
        ({"tags": [["a", ""], []]}, "id = 1: tags is ('a', None) in PostgreSQL, ('a', '') in Delta"),
        ({"j": ['{"k":[1]}', None]}, """id = 1: j is '{"k": [1]}' in PostgreSQL, '{"k":[1]}' in Delta"""),
        ({"raw": [b"\x00", b""]}, r"id = 1: raw is b'\x00\xff' in PostgreSQL, b'\x00' in Delta"),
        ({"b": [True, False]}, "id = 2: b is NULL in PostgreSQL, False in Delta"),
    ],
)
def test_any_changed_value_is_found(conninfo, tmp_path, changed, difference):
    whole, filtered = verdicts(conninfo, delta(tmp_path, **changed), tmp_path)
    assert whole.differences == (difference,)
    assert not whole.equal
    assert filtered.equal


def test_a_microsecond_is_found(conninfo, tmp_path):
    changed = {"at": [dt.datetime(2026, 1, 31, 11, 0, 0, 2, dt.UTC), None]}
    whole, _ = verdicts(conninfo, delta(tmp_path, **changed), tmp_path)
    assert "at is 2026-01-31 11:00:00.000001+00:00 in PostgreSQL" in whole.differences[0]


def test_types_of_the_shop_are_the_proof_s(publisher):
    """No column of the shop has a type that psycopg and Arrow give to Python in different ways."""
    shop.create(publisher.conninfo)
    with Snapshot(publisher.conninfo) as snapshot:
        types = {column.type for table in snapshot.tables("shop_pub") for column in table.columns}
    exact = {name for name in types if delta_type(name).rstrip(">").rpartition("<")[2] != "string"}
    assert exact == {
        *("bigint", "boolean", "bytea", "date", "double precision[]", "integer", "numeric(10,2)", "numeric(12,2)"),
        *("smallint", "timestamp with time zone", "timestamp without time zone"),
    }
    assert types - exact == {"inet", "jsonb", "order_status", "text", "text[]", "tstzrange", "uuid"}
    assert set(proof._DELTA_TYPES) >= {name for name in exact if not name.startswith("numeric")} - {
        "double precision[]"
    }
