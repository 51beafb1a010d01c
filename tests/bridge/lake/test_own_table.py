"""A table of pgbridge's own is made once; what has other columns is not taken for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.own_table import OwnTable
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.spark.session import fork

TABLE = OwnTable("notes", pa.schema([("id", pa.int64()), ("note", pa.string())]), "move it away")


def test_it_is_made_once_by_however_many(spark, tmp_path):
    path = str(tmp_path / "notes")
    assert not TABLE.exists(spark, path)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda session: TABLE.ensure(session, path), [fork(spark) for _ in range(4)]))
    assert TABLE.exists(spark, path)
    assert table_version(spark, path) == 0


@pytest.mark.parametrize(
    "columns", ["id long", "id long, note long", "note string, id long", "id long, note string, x int"]
)
def test_another_table_is_refused(spark, tmp_path, columns):
    path = str(tmp_path / "notes")
    create_table(spark, path, spark.createDataFrame([], columns).schema)
    for call in (TABLE.exists, TABLE.ensure):
        with pytest.raises(TargetError, match="is not a table of notes: its columns are struct<") as caught:
            call(spark, path)
        assert caught.value.hint == "move it away"
