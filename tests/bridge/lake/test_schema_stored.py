"""A text of JSON is stored as VARIANT with its value, wherever the bridge says that VARIANT holds it."""

import json
from dataclasses import replace
from decimal import Decimal

from pyspark.sql import functions as F

from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.log.stamp import CommitStamp
from pgbridge.bridge.lake.schema import (
    canonical,
    has_variant,
    spark_schema,
    stored,
    stored_changes,
    stored_column,
    stored_rows,
    target_schema_of,
)
from pgbridge.bridge.lake.writes import commit_nothing, truncate_table
from pgbridge.bridge.targets.target import TargetColumn, variant_field
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.readers import json_fault
from pgbridge.protocol.values.types import Place, resolve
from tests.protocol.values.test_readers import DOCUMENTS

TEXT = TargetColumn("a b", resolve(3802, -1))
DOCUMENT = TargetColumn("a b", replace(TEXT.type, place=Place.VARIANT))


def exactly(text):
    return json.loads(text, parse_int=Decimal, parse_float=Decimal) if text.count("[") < 900 else text


def test_what_is_said_to_be_held_keeps_its_value_and_nothing_else_does(spark):
    """Spark is the oracle of `json_fault`."""
    rows = spark.createDataFrame([(text,) for text in DOCUMENTS], "text string")
    found = rows.select("text", F.to_json(F.try_parse_json("text"))).collect()
    kept = {text for text, back in found if back is not None and exactly(back) == exactly(text)}
    near = {f"0.{'0' * 40}1"}  # shown as it was, but a double that is only near
    assert kept - near == {text for text in DOCUMENTS if json_fault(text) is None}


def test_a_text_is_written_as_variant_where_the_target_has_it(spark, tmp_path):
    frame = spark.createDataFrame([('{"b": 1.50, "a": null}',), (None,)], "new_0 string")
    for column, shown in ((TEXT, '{"b": 1.50, "a": null}'), (DOCUMENT, '{"a":null,"b":1.5}')):
        for rows in (
            frame.select(stored_column("new_0", column)),
            frame.select(F.expr(stored("new_0", column)).alias("a b")),
            stored_changes(frame, [column]).withColumnRenamed("new_0", "a b"),
            stored_rows(frame.withColumnRenamed("new_0", "a b"), {"a b"} if column is DOCUMENT else ()),
        ):
            assert has_variant(rows.schema) == (column is DOCUMENT)
            text = F.to_json("`a b`") if column is DOCUMENT else F.col("`a b`")
            assert [row[0] for row in rows.select(text).collect()] == [shown, None]
        assert frame.select(F.expr(canonical("new_0", column))).first()[0] == shown


def test_commits_without_rows(spark, tmp_path):
    """They are made of the table's own columns."""
    path = str(tmp_path / "t")
    schema = spark_schema([("id", resolve(23, -1).arrow), ("doc", TEXT.type.arrow)], ["doc"])
    assert target_schema_of(schema)[1] == variant_field("doc")
    create_table(spark, path, schema)
    commit_nothing(spark, path, schema, CommitStamp("app", Lsn(1), Lsn(2)))
    truncate_table(spark, path)
    assert spark.read.format("delta").load(path).schema == schema
