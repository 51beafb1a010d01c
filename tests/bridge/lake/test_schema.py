"""The columns of Delta tables and DataFrames, as Spark and as the rest of the bridge has them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, ByteType, IntegerType, StringType, StructField, StructType

from pgbridge.bridge.lake.schema import arrow_type, spark_schema, spark_type, table_properties, target_schema_of
from pgbridge.bridge.targets.target import TargetField, sql_type, target_schema

TYPES = [
    pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(),
    pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(12, 2), pa.list_(pa.int32()),
    pa.list_(pa.decimal128(5, 1)),
]  # fmt: skip


@pytest.mark.parametrize("arrow", TYPES, ids=str)
def test_spark_writes_a_type_as_messages_do(arrow):
    assert spark_type(arrow).simpleString() == sql_type(arrow)
    assert arrow_type(spark_type(arrow)) == arrow


def test_every_column_may_be_null():
    schema = spark_schema([("a", pa.int32()), ("b", pa.list_(pa.string()))])
    expected = [StructField("a", IntegerType(), True), StructField("b", ArrayType(StringType(), True), True)]
    assert schema == StructType(expected)


def test_a_target_has_the_columns_of_its_table():
    fields = [("a", pa.int32()), ("b", pa.list_(pa.string()))]
    assert target_schema_of(spark_schema(fields)) == target_schema(fields)


def test_a_type_that_no_published_type_becomes():
    odd = StructType([StructField("in", StructType([StructField("x", ByteType())])), StructField("y", ByteType())])
    assert target_schema_of(odd) == (TargetField("in", None, "struct<x:tinyint>"), TargetField("y", None, "tinyint"))


def test_column_mapping_only_for_names_that_need_it():
    assert table_properties(["id", "Preis_€", "a.b"]) == {}
    assert table_properties(["id", "a b"]) == {"delta.columnMapping.mode": "name"}
