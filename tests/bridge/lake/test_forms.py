"""The columns of each mode, there and back; a table of another mode is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as spark_types

from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.forms import check_new_table, copied_rows_as, delta_schema, row_schema
from pgbridge.bridge.lake.table import schema_of
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT, Layout
from pgbridge.bridge.targets.target import LAST_VERSION, VALIDITY, TargetColumn
from pgbridge.protocol.values.pg_type import BUILTIN
from pgbridge.protocol.values.types import Place, resolve

FIELDS = [("id", pa.int32()), ("a b", pa.timestamp("us")), ("m", pa.decimal128(9, 2))]

OIDS = {"id": 23, "region": 25, "many": 1007, "own_type": 99999}
COLUMNS = [TargetColumn(name, resolve(oid, -1, BUILTIN)) for name, oid in OIDS.items()]


@pytest.mark.parametrize("mode", ["mirror", "changelog", "history", "soft_deletes"])
def test_there_and_back(mode):
    made = delta_schema(mode, FIELDS, "public.t")
    assert [(field.name, field.arrow) for field in row_schema(mode, made, "/t")] == FIELDS


@pytest.mark.parametrize(
    ("mode", "of"),
    [
        ("changelog", "mirror"),
        ("changelog", "history"),
        ("history", "mirror"),
        ("history", "changelog"),
        ("mirror", "history"),
        ("mirror", "soft_deletes"),
        ("history", "soft_deletes"),
        ("soft_deletes", "history"),
        ("soft_deletes", "mirror"),
    ],
)
def test_of_another_mode(mode, of):
    with pytest.raises(TargetError, match=f'/t does not have the columns of mode = "{mode}"'):
        row_schema(mode, delta_schema(of, FIELDS, "public.t"), "/t")


def test_images_that_are_no_rows():
    broken = spark_types.StructType(
        [
            spark_types.StructField(f.name, spark_types.StringType() if f.name in {"old", "new"} else f.dataType)
            for f in delta_schema("changelog", FIELDS, "t").fields
        ]
    )
    with pytest.raises(TargetError, match='not have the columns of mode = "changelog"'):
        row_schema("changelog", broken, "/t")


@pytest.mark.parametrize(("mode", "column"), [("history", "VALID_TO"), ("soft_deletes", "Row_Deleted_at")])
def test_a_name_that_a_mode_adds(mode, column):
    with pytest.raises(TargetError, match=f'cannot have mode = "{mode}": its column "{column}"'):
        delta_schema(mode, [(column, pa.int32())], "public.t")


@pytest.mark.parametrize("added", [VALIDITY, LAST_VERSION])
def test_a_mirror_that_would_look_like_a_table_of_versions(added):
    """It is refused before it is made, not at the next start. Some of the columns alone are none."""
    fields = [("id", pa.int32()), *added]
    with pytest.raises(TargetError, match=f"cannot be mirrored: its columns {added[0][0]},"):
        delta_schema("mirror", fields, "public.t")
    made = delta_schema("mirror", fields[:-1], "public.t")
    assert [field.name for field in row_schema("mirror", made, "/t")] == [name for name, _ in fields[:-1]]


@pytest.mark.parametrize(
    ("mode", "lsn"), [("changelog", "commit_lsn"), ("history", "valid_from_lsn"), ("soft_deletes", "row_changed_lsn")]
)
def test_copied_rows_have_the_tables_columns(spark, tmp_path, mode, lsn):
    """Names that Parquet does not allow, in a struct too."""
    path = str(tmp_path / "t")
    made = delta_schema(mode, FIELDS, "public.t")
    create_table(spark, path, made)
    assert schema_of(spark, path) == made
    rows = spark.sql("SELECT 1 AS id, timestamp_ntz'2026-01-01' AS `a b`, cast(1.5 AS decimal(9, 2)) AS m")
    copied_rows_as(mode, rows, 100).write.format("delta").mode("overwrite").save(path)
    (row,) = spark.read.format("delta").load(path).collect()
    image = row["new"] if mode == "changelog" else row
    assert (image["id"], image["a b"].isoformat(), str(image["m"])) == (1, "2026-01-01T00:00:00", "1.50")
    assert row[lsn] == 99
    assert schema_of(spark, path) == made


@pytest.mark.parametrize(
    ("mode", "column", "is_allowed"),
    [
        ("mirror", "region", True),
        ("mirror", "own_type", True),
        ("mirror", "many", False),
        ("mirror", "valid_to", False),
        ("history", "region", True),
        ("history", "valid_to", True),
        ("changelog", "operation", True),
        ("changelog", "region", False),
        ("changelog", "new", False),
    ],
)
def test_a_layout_is_of_the_columns_that_the_mode_gives_the_delta_table(mode, column, is_allowed):
    check_new_table("public.t", mode, NO_LAYOUT, COLUMNS)
    layout = Layout(partition_by=(column,))
    if is_allowed:
        check_new_table("public.t", mode, layout, COLUMNS)
    else:
        with pytest.raises(TargetError, match='"public.t" cannot be laid out by partition_by'):
            check_new_table("public.t", mode, layout, COLUMNS)


@pytest.mark.parametrize("mode", ["mirror", "changelog", "history"])
def test_variants_are_those_of_the_row(mode):
    """Also where a changelog has a column of the same name beside its images."""
    fields = [("id", pa.int32()), ("operation", pa.string()), ("note", pa.string())]
    found = row_schema(mode, delta_schema(mode, fields, "public.t", ["operation"]), "/t")
    assert [(field.name, field.place) for field in found] == [
        ("id", Place.COLUMN),
        ("operation", Place.VARIANT),
        ("note", Place.COLUMN),
    ]
