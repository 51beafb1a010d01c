"""PostgreSQL and Spark compute the same checksum of the same rows, and another one of other rows."""

from __future__ import annotations

import pytest

from benchmarks.checksum import columns_of, in_delta, in_postgresql, postgresql_query, spark_expressions

TABLE = """
CREATE TABLE t (
    id bigint PRIMARY KEY, small smallint, ratio float8, code char(8), note text, at timestamptz, local timestamp,
    active boolean, amount numeric(12,2)
);
CREATE TABLE empty (id int PRIMARY KEY);
INSERT INTO t VALUES
    (1, -2, -1e-9, 'abc', 'naïve | ~', '2026-01-01 00:00:00.000001Z', '1969-12-31 23:59:59.5', true, 12.30),
    (9007199254740993, NULL, 1e12 / 3, NULL, '', '1999-12-31 12:00Z', '2026-02-03', false, -0.01);
CREATE PUBLICATION p FOR TABLE t, empty
"""
ROWS = """
SELECT * FROM VALUES
    (1L, -2S, -1e-9D, 'abc     ', 'naïve | ~', timestamp'2026-01-01 00:00:00.000001Z',
     timestamp_ntz'1969-12-31 23:59:59.5', true, cast(12.30 AS decimal(12,2))),
    (9007199254740993L, NULL, 1e12D / 3, NULL, '', timestamp'1999-12-31 12:00:00Z', timestamp_ntz'2026-02-03', false,
     cast({amount} AS decimal(12,2)))
AS t(id, small, ratio, code, note, at, local, active, amount)
"""


@pytest.fixture
def published(publisher):
    """Two tables, the second one empty."""
    publisher.execute(TABLE)
    with publisher.connect() as connection:
        tables = columns_of(connection, "p")
        return tables, in_postgresql(connection, tables)


def test_columns_of_published_tables(published):
    tables, _ = published
    assert tables["empty"] == [("id", "integer")]
    assert tables["t"][:4] == [
        ("id", "bigint"),
        ("small", "smallint"),
        ("ratio", "double precision"),
        ("code", "character"),
    ]


@pytest.mark.parametrize(("amount", "equal"), [("-0.01", True), ("0.01", False)])
def test_both_have_the_same_checksum(published, spark, tmp_path, amount, equal):
    tables, expected = published
    paths = {table: str(tmp_path / table) for table in tables}
    spark.sql(ROWS.format(amount=amount)).write.format("delta").save(paths["t"])
    spark.sql("SELECT 1 AS id WHERE false").write.format("delta").save(paths["empty"])
    found = in_delta(spark, tables, paths)
    assert found["empty"] == expected["empty"] == (0, 0)
    assert found["t"][0] == expected["t"][0] == 2
    assert (found["t"] == expected["t"]) is equal


def test_statements_name_each_column():
    columns = [("id", "bigint"), ("note", "text")]
    assert "coalesce(id::text, '~'), coalesce(rtrim(note::text, ' '), '~')" in postgresql_query("t", columns)
    assert "coalesce(cast(`id` AS string), '~'), coalesce(rtrim(`note`), '~')" in spark_expressions(columns)[1]
