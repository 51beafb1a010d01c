"""Delta's side of a verification: the hashes of a version's rows, computed by Spark; the repair of rows that differ.

They become the rows of the source's snapshot, by one stamped commit. No daemon runs meanwhile, so Delta stays at the
origin's LSN. Keys whose last changes are not applied yet were left out of the verification: the stream brings them. So
each repaired row is the one that Delta should have at that LSN, and the stream goes on from there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F

from pgbridge.bridge.lake import forms, location, retry
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.source import as_frame
from pgbridge.bridge.lake.writes import merge_into
from pgbridge.bridge.runtime.errors import VerifyError
from pgbridge.bridge.spark import outcome, session
from pgbridge.bridge.sync import copy_reader
from pgbridge.bridge.targets.location import quoted, sql_name
from pgbridge.bridge.targets.target import TargetColumn
from pgbridge.bridge.verify.comparison import Buckets, Difference, bucket_sums
from pgbridge.bridge.verify.source_table import SourceTable
from pgbridge.bridge.verify.tables import BUCKET_BITS, ValueTexts, VerifiedTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pgbridge.bridge.apply.published import Published
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.verify.part import Part
    from pgbridge.bridge.verify.source import Source
    from pgbridge.protocol.lsn import Lsn

_LOW_BITS: Final = 30


def hashing_session(spark: SparkSession) -> SparkSession:
    """Return the session in which canonical records can be computed."""
    return session.companion(spark, "hashing", {"spark.sql.ansi.enabled": "false"})


@dataclass(frozen=True, slots=True)
class TargetVersion:
    """A version of a Delta table.

    Attributes:
        spark: A session of `hashing_session`.
        part: The rows that are read; None for all.
    """

    spark: SparkSession
    table: VerifiedTable
    version: int
    part: Part | None = None

    def _rows(self) -> DataFrame:
        rows = location.read_table(self.spark, self.table.path, version=self.version)
        if self.part is not None and (of_part := self.part.target_condition):
            rows = rows.filter(of_part)
        return forms.valid_rows(self.table.mode, rows)

    def _hashed(self, *, keys: bool = True, numbers: bool = False) -> DataFrame:
        named = [
            f"cast({quoted(column.target_name)} AS bigint) AS n{number}"
            for number, column in enumerate(self.table.numbers)
        ]
        key = f"{self.table.target_key} AS k"
        return self._rows().selectExpr(*[key] * keys, *named * numbers, f"{self.table.target_hash} AS h")

    def _but(self, rows: DataFrame, keys: Collection[str]) -> DataFrame:
        return rows.join(F.broadcast(self._keys(keys)), "k", "left_anti") if keys else rows

    def _keys(self, keys: Collection[str]) -> DataFrame:
        return self.spark.createDataFrame([(key,) for key in keys], "k string")

    def buckets(self, but: Collection[str], within: Collection[int] = (), bits: int = BUCKET_BITS) -> Buckets:
        """The table's buckets, without some keys, by their hashes; see `SourceTable.buckets`."""
        rows = self._but(self._in(self._hashed(keys=bool(but), numbers=True), within), but)
        # a sum of whole hashes could overflow, and one of decimals takes twice as long
        high, low = F.sum(F.shiftright("h", _LOW_BITS)), F.sum(F.col("h").bitwiseAND((1 << _LOW_BITS) - 1))
        grouped = rows.groupBy(F.expr(self.table.target_bucket("h", bits)).alias("b"))
        numbers = [F.sum(f"n{number}") for number, _ in enumerate(self.table.numbers)]
        return {
            bucket: bucket_sums(count, (high << _LOW_BITS) + low, *(number or 0 for number in sums))
            for bucket, count, high, low, *sums in grouped.agg(F.count("*"), high, low, *numbers).collect()
        }

    def rows(self, buckets: Collection[int], but: Collection[str], bits: int = BUCKET_BITS) -> Counter[tuple[str, int]]:
        """Count the rows of some buckets, by the hashes of their keys and of themselves."""
        rows = self._but(self._in(self._hashed(), buckets, bits), but)
        counted = rows.groupBy("k", "h").count()
        return Counter({(key, int(hashed)): number for key, hashed, number in counted.collect()})

    def with_keys(self, keys: Iterable[Sequence[int]]) -> Counter[tuple[str, int]]:
        """The same of rows with some keys; see `VerifiedTable.numbers`."""
        rows = self._rows().where(self.table.target_among(keys))
        hashed = rows.selectExpr(f"{self.table.target_key} AS k", f"{self.table.target_hash} AS h")
        return Counter((key, int(hashed)) for key, hashed in hashed.collect())

    def _in(self, rows: DataFrame, buckets: Collection[int], bits: int = BUCKET_BITS) -> DataFrame:
        if not buckets:
            return rows
        wanted = self.spark.createDataFrame([(bucket,) for bucket in buckets], "b int")
        numbered = rows.withColumn("b", F.expr(self.table.target_bucket("h", bits)))
        return numbered.join(F.broadcast(wanted), "b", "left_semi").drop("b")

    def of_keys(self, keys: Collection[str]) -> Counter[tuple[str, int]]:
        """The same of some keys."""
        rows = self._hashed().join(F.broadcast(self._keys(keys)), "k", "left_semi").select("k", "h")
        return Counter((key, int(hashed)) for key, hashed in rows.collect())

    def rows_of(self, keys: Collection[str]) -> DataFrame:
        """The whole rows with some keys, by their hashes."""
        rows = self._rows().withColumn("pgbridge key", F.expr(self.table.target_key))
        wanted = self._keys(keys).withColumnRenamed("k", "pgbridge key")
        return rows.join(F.broadcast(wanted), "pgbridge key", "left_semi").drop("pgbridge key")

    def texts(
        self, keys: Collection[str], numbers: Collection[Sequence[int]] = ()
    ) -> Iterator[tuple[str, list[ValueTexts]]]:
        """The columns' values, canonically and as Spark writes them, by the hashes of their rows' keys.

        Args:
            keys: The keys' hashes.
            numbers: Keys among which they are; none if that is not known.
        """
        shown = [
            f"lower(concat('\\\\x', hex({quoted(column.target_name)})))"
            if str(column.target) == "binary"
            else f"try_cast({quoted(column.target_name)} AS string)"
            for column in self.table.columns
        ]
        every = [*self.table.target_texts(), *shown]
        named = [f"{text} AS v{number}" for number, text in enumerate(every)]
        among = self._rows().where(self.table.target_among(numbers)) if numbers else self._rows()
        rows = among.selectExpr(f"{self.table.target_key} AS k", *named)
        for key, *values in rows.join(F.broadcast(self._keys(keys)), "k", "left_semi").collect():
            yield key, list(zip(values[: len(shown)], values[len(shown) :], strict=True))


_REMOVED = "pgbridge removed"


def repair(
    spark: SparkSession,
    source: Source,
    target: TargetVersion,
    differences: Collection[Difference],
    *,
    subscription: Subscription,
    published: Published,
    app_id: str,
    lsn: Lsn,
) -> None:
    """Make the rows that differ those of the source; the commit is durable when this returns.

    Args:
        spark: The session that writes.
        source: The source's snapshot.
        target: The version that was verified.
        differences: The rows to repair.
        published: What is published.
        app_id: Delta's application id of the subscription's commits.
        lsn: The LSN that Delta is at.

    Raises:
        VerifyError: The table has no key, so which of equal rows is meant is not known; or another writer has changed
            these rows since.
        PublisherError: The source cannot be read.
        PySparkException, Py4JError: The commit failed.
        TargetBusy: Another writer's commits made every attempt fail.
        StateError: The table is local and cannot be flushed.
    """
    table = target.table
    if table.mode != "mirror":
        raise VerifyError(f'single rows of table "{table.relation}" are not repaired: its mode is "{table.mode}"')
    if table.left_out:
        raise VerifyError(f'column "{table.left_out[0]}" of table "{table.relation}" is not compared, so not repaired')
    if not table.keyed:
        raise VerifyError(f'table "{table.relation}" has no key, so single rows of it cannot be repaired')
    spec = copy_reader.copy_spec(
        table.published,
        published.publisher.types(column.type_oid for column in table.published.columns),
        conninfo=subscription.connection,
        application_name=f"{subscription.name}_verify",
        snapshot=source.export(),
        unrepresentable=subscription.unrepresentable,
        ranges=[""],
        columns=[
            TargetColumn(column.name, replace(column.type, arrow=column.target, place=column.place))
            for column in table.columns
        ],
    )
    batches = list(
        copy_reader.copy_rows(
            spec, SourceTable(source, table).copy_of(spec.select, [difference.key for difference in differences])
        )
    )
    rows = as_frame(spark, pa.Table.from_batches(batches, spec.schema).rename_columns(spec.target_names))
    names = [column.target_name for column in table.columns]
    key = [column.target_name for column in table.columns if column.name in table.key]
    extra = target.rows_of([difference.key for difference in differences if difference.outcome == "extra"])
    gone = as_frame(spark, extra.select(*map(quoted, key)).distinct().toArrow())  # in the session that writes
    if not gone.join(rows.select(*map(quoted, key)), key, "left_semi").isEmpty():
        raise VerifyError("Delta has several rows with one key, of which single ones are not removed")
    changes = _changes(rows, gone, key)
    compared = as_frame(
        spark, target.rows_of([difference.key for difference in differences]).select(*map(quoted, names)).toArrow()
    )
    stamp = CommitStamp(f"{app_id}/repair-{str(source.lsn).replace('/', '-')}", lsn, lsn)

    def commit() -> None:
        latest = location.read_table(spark, table.path).alias("t")
        same = reduce(and_, (F.col(f"t.{quoted(name)}").eqNullSafe(F.col(f"s.{quoted(name)}")) for name in key))
        now = latest.join(changes.alias("s"), same, "left_semi").select(*map(quoted, names))
        source = retry.unless_changed(changes, compared, now)
        try:
            merge_into(source, table.path, lambda view: _statement(table.path, view, names, key))
        except outcome.SPARK_ERRORS as error:
            if not retry.have_changed(error):
                raise
            raise VerifyError(
                f'another writer changed rows of table "{table.relation}" while they were compared',
                hint="verify it again",
            ) from error

    local = LocalTables(partial(location.place_of, spark))  # from before what it flushes
    with stamped(spark, stamp):
        retry.retry_commit(commit, table.path)
    local.flush([table.path])


def _statement(path: str, view: str, names: Iterable[str], key: Iterable[str]) -> str:
    columns = [quoted(name) for name in names]
    same = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in key)
    removed = f"s.{quoted(_REMOVED)}"
    return (
        f"MERGE INTO {sql_name(path)} AS t USING {view} AS s ON {same} "
        f"WHEN MATCHED AND {removed} THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in columns)} "
        f"WHEN NOT MATCHED AND NOT {removed} THEN INSERT ({', '.join(columns)}) "
        f"VALUES ({', '.join(f's.{name}' for name in columns)})"
    )


def _changes(rows: DataFrame, gone: DataFrame, key: Collection[str]) -> DataFrame:
    """Return the rows to write and the keys to remove."""
    only = gone.join(rows.select(*map(quoted, key)), list(key), "left_anti")
    written = rows.withColumn(_REMOVED, F.lit(False))
    return written.unionByName(only.withColumn(_REMOVED, F.lit(True)), allowMissingColumns=True)
