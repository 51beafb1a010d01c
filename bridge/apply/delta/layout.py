"""How a Delta table's files are laid out, and overwrites that keep it.

Delta 4.4 forgets it in most of them: the clustering columns unless the overwrite is of the rows that meet a condition,
and both kinds if the columns are replaced, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.delta.location import overwrite_table, read_table
from bridge.apply.target.location import quoted, sql_name
from bridge.table_layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_PARTITIONS = "# Partition Information"
_HEADER = "# col_name"


def layout_of(spark: SparkSession, location: str) -> Layout:
    """The layout of an existing table."""
    detail = spark.sql(f"DESCRIBE DETAIL {sql_name(location)}").select("clusteringColumns", "partitionColumns")
    clustering, partitions = detail.collect()[0]
    return Layout(tuple(map(_unquoted, clustering or ())), tuple(partitions))


def partition_columns(spark: SparkSession, location: str) -> tuple[str, ...]:
    """The partition columns of an existing table. Unlike DESCRIBE DETAIL, it does not look at the table's files."""
    names = [row[0] for row in spark.sql(f"DESCRIBE TABLE {sql_name(location)}").collect()]
    if _PARTITIONS not in names:
        return ()
    listed = names[names.index(_PARTITIONS) + 1 :]
    end = next((i for i, name in enumerate(listed) if not name or (name.startswith("# ") and name != _HEADER)), None)
    return tuple(_unquoted(name) for name in listed[:end] if name != _HEADER)


def clauses(layout: Layout) -> str:
    """The clause of CREATE TABLE for a layout; empty for none."""
    if layout.cluster_by:
        return f" CLUSTER BY ({_listed(layout.cluster_by)})"
    return f" PARTITIONED BY ({_listed(layout.partition_by)})" if layout.partition_by else ""


def overwrite_keeping(rows: DataFrame, location: str, options: Mapping[str, str], layout: Layout) -> None:
    """Replace all rows of a table in one commit, and keep its columns and its layout.

    Args:
        rows: The new rows. A column that they lack becomes NULL.
        location: The table.
        options: Options of the write.
        layout: The table's layout.
    """
    missing = [name for name in layout.partition_by if name not in rows.columns]
    if missing:  # Delta adds other columns by itself
        types = read_table(rows.sparkSession, location).schema
        rows = rows.withColumns({name: F.lit(None).cast(types[name].dataType) for name in missing})
    condition = {"replaceWhere": "true"} if layout.cluster_by else {}
    overwrite_table(rows, location, {**options, **condition})


def overwrite_with_columns(rows: DataFrame, location: str, options: Mapping[str, str], layout: Layout) -> Layout:
    """Replace all rows and the columns of a table, and keep what the new columns allow of its layout.

    Returns:
        The layout that the table has now. Clustering columns come back by a second commit.
    """
    there = frozenset(rows.columns)
    partitions = tuple(name for name in layout.partition_by if name in there)
    clustering = tuple(name for name in layout.cluster_by if name in there)
    overwrite_table(rows, location, {**options, "overwriteSchema": "true"}, partitions)
    if clustering:
        rows.sparkSession.sql(f"ALTER TABLE {sql_name(location)} CLUSTER BY ({_listed(clustering)})").collect()
    return Layout(clustering, partitions)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(quoted, names))


def _unquoted(name: str) -> str:
    """A top-level column as a name; Spark and Delta quote those that are no plain identifiers."""
    return name[1:-1].replace("``", "`") if name.startswith("`") and name.endswith("`") else name
