"""The DataFrame's columns, and those that a user gives."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.bridge.source.frame_schema import ChangeSchema, table_schema, tables_schema

COLUMNS = [("id", pa.int32()), ("tags", pa.list_(pa.string())), ("at", pa.timestamp("us", "UTC"))]
ROW = "struct<id:int,tags:array<string>,at:timestamp>"
COMMON = "operation:string,commit_lsn:bigint,ordinal:bigint,xid:bigint,commit_time:timestamp,origin:string"


def test_of_one_table():
    schema = table_schema(COLUMNS)
    assert schema.simpleString() == f"struct<{COMMON},old:{ROW},new:{ROW},unchanged:array<string>>"
    assert ChangeSchema(schema, "public.t").rows["public.t"].names == ["id", "tags", "at"]


def test_of_all_tables():
    schema = tables_schema({"public.t": COLUMNS, "s.u": [("a", pa.string())]})
    images = f"struct<old:{ROW},new:{ROW},unchanged:array<string>>"
    other = "struct<old:struct<a:string>,new:struct<a:string>,unchanged:array<string>>"
    assert schema.simpleString() == f"struct<{COMMON},table:string,public.t:{images},s.u:{other}>"
    assert list(ChangeSchema(schema, None).rows) == ["public.t", "s.u"]


def test_a_schema_that_is_none_of_changes_is_refused():
    with pytest.raises(ConfigError, match="one of changes begins with operation"):
        ChangeSchema(StructType().add("a", StringType()), None)
    with pytest.raises(ConfigError, match="one of changes begins with"):
        ChangeSchema(tables_schema({"public.t": COLUMNS}), "public.t")
    images = StructType().add("old", StringType()).add("new", StringType()).add("unchanged", StringType())
    with pytest.raises(ConfigError, match='column of table "x" is not struct'):
        ChangeSchema(StructType([*tables_schema({}).fields]).add("x", images.add("more", StringType())), None)
