"""Delta's side of a verification: the hashes of a version's rows, computed by Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.lake.location import read_table
from bridge.spark.session import companion
from bridge.targets.location import quoted
from bridge.verify.comparison import Buckets, bucket_sums
from bridge.verify.tables import BUCKET_BITS, ValueTexts, VerifiedTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

_LOW_BITS: Final = 30


def hashing_session(spark: SparkSession) -> SparkSession:
    """Return the session in which canonical records can be computed."""
    return companion(spark, "hashing", {"spark.sql.ansi.enabled": "false"})


@dataclass(frozen=True, slots=True)
class TargetVersion:
    """A version of a Delta table.

    Attributes:
        spark: A session of `hashing_session`.
    """

    spark: SparkSession
    table: VerifiedTable
    version: int

    def _rows(self) -> DataFrame:
        rows = read_table(self.spark, self.table.path, version=self.version)
        return rows.filter("valid_to_lsn IS NULL") if self.table.mode == "history" else rows

    def _hashed(self, *, keys: bool = True, numbers: bool = False) -> DataFrame:
        named = [
            f"cast({quoted(column.name)} AS bigint) AS n{number}" for number, column in enumerate(self.table.numbers)
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
            f"lower(concat('\\\\x', hex({quoted(column.name)})))"
            if str(column.target) == "binary"
            else f"try_cast({quoted(column.name)} AS string)"
            for column in self.table.columns
        ]
        every = [*self.table.target_texts(), *shown]
        named = [f"{text} AS v{number}" for number, text in enumerate(every)]
        among = self._rows().where(self.table.target_among(numbers)) if numbers else self._rows()
        rows = among.selectExpr(f"{self.table.target_key} AS k", *named)
        for key, *values in rows.join(F.broadcast(self._keys(keys)), "k", "left_semi").collect():
            yield key, list(zip(values[: len(shown)], values[len(shown) :], strict=True))
