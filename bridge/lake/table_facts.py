"""What commits to a Delta table are planned by: how large it is, and what its properties say.

An old answer only makes a commit slower: what a commit relies on is looked at in its own transaction.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.effects.kept import Kept
from pgbridge.bridge.lake.log.local_log import checksum_of, latest_version, log_of
from pgbridge.bridge.targets.location import sql_name
from pgbridge.bridge.targets.properties import VECTORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from pgbridge.bridge.effects.row_places import RowPlaces

CREATED: Final = "pgbridge.created"
"""The property, with the value true, of tables that pgbridge created."""

_CLUSTERING: Final = "delta.clustering"

_NEUTRAL: Final = ("delta.checkpoint", "delta.columnMapping.", "delta.constraints.")
_NEUTRAL_NAMES: Final = frozenset(
    {
        "delta.dataSkippingNumIndexedCols",
        "delta.dataSkippingStatsColumns",
        "delta.deletedFileRetentionDuration",
        "delta.enableTypeWidening",
        "delta.logRetentionDuration",
    }
)
"""Properties that mean the same for each way to write rows, as do all that are not Delta's."""

_PROTOCOL: Final = ("delta.feature.", "delta.minReaderVersion", "delta.minWriterVersion")
"""What a table's protocol has, which SHOW TBLPROPERTIES lists among the properties."""

_LOOK_AGAIN_AFTER: Final = 20

_ROWS: Final = Kept["pa.Table"](32 << 20)
_PLACES: Final = Kept["RowPlaces"](64 << 20)
_GREATEST: Final = Kept[int](1 << 20)
"""By the tables' own ids and versions, not by their paths."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table's size and layout.

    Attributes:
        files: The number of its data files.
        size_bytes: Their size.
        partitioned: Whether it has partition columns.
        clustered: Whether it has clustering columns, or, as a transaction sees it, once had some.
    """

    files: int
    size_bytes: int
    properties: Mapping[str, str] = field(default_factory=dict)
    partitioned: bool = False
    clustered: bool = False

    @property
    def created(self) -> bool:
        """Whether pgbridge created it."""
        return self.properties.get(CREATED) == "true"

    @property
    def vectors_undecided(self) -> bool:
        """Whether pgbridge created it, and no property says whether it has deletion vectors."""
        return self.created and VECTORS not in self.properties

    @property
    def plain(self) -> bool:
        """Whether nothing tells a MERGE from an overwrite: no change data feed, partitions or the like."""
        return self.created and not (self.partitioned or self.clustered or _others(self.properties))

    @property
    def may_have_vectors(self) -> bool:
        """Whether `vectors` would be so with deletion vectors, of which nobody has decided yet."""
        return self.vectors_undecided and not self.partitioned and not _others(self.properties)

    @property
    def vectors(self) -> bool:
        """Whether it has deletion vectors, and else nothing that tells a MERGE from rewriting rows by their keys."""
        return self.created and not self.partitioned and only_vectors(self.properties)


def _others(properties: Mapping[str, str]) -> set[str]:
    delta = (name for name in properties if name.startswith("delta."))
    return {name for name in delta if not name.startswith(_NEUTRAL) and name not in _NEUTRAL_NAMES}


def only_vectors(properties: Mapping[str, str]) -> bool:
    """Whether deletion vectors are all that the properties say of how rows are written."""
    return _others(properties) == {VECTORS} and properties[VECTORS] == "true"


def properties_now(spark: SparkSession, path: str) -> dict[str, str]:
    """The properties that the table has now; no job."""
    rows = spark.sql(f"SHOW TBLPROPERTIES {sql_name(path)}").collect()
    return {row.key: row.value for row in rows if not row.key.startswith(_PROTOCOL)}


class KnownTables:
    """What a writer knows of the tables that it commits to, in several threads.

    Args:
        rows: Those of tiny tables; by default of all writers of this process, which share one bound.
        places: Where the rows of larger tables are; the same.
        greatest: What no value of a key of one integer exceeds; the same.
    """

    def __init__(
        self, rows: Kept[pa.Table] = _ROWS, places: Kept[RowPlaces] = _PLACES, greatest: Kept[int] = _GREATEST
    ) -> None:
        self.rows, self.places, self.greatest = rows, places, greatest
        self._facts = dict[str, tuple[TableFacts, int]]()

    def facts(self, spark: SparkSession, path: str) -> TableFacts:
        """The table's facts, now or some calls ago, for asking may take two jobs."""
        facts, calls = self._facts.get(path, (None, 0))
        if facts is None or calls >= _LOOK_AGAIN_AFTER:
            facts, calls = read_facts(spark, path), 0
        self._facts[path] = facts, calls + 1
        return facts

    def forget(self, path: str) -> None:
        """Make `facts` ask again."""
        self._facts.pop(path, None)


def read_facts(spark: SparkSession, path: str) -> TableFacts:
    """The table's facts as of its latest version."""
    return _facts_in_log(path) or _described(spark, path)


def _described(spark: SparkSession, path: str) -> TableFacts:
    wanted = ("numFiles", "sizeInBytes", "properties", "partitionColumns", "clusteringColumns")
    detail = spark.sql(f"DESCRIBE DETAIL {sql_name(path)}").select(*wanted).collect()[0]
    return TableFacts(
        detail.numFiles,
        detail.sizeInBytes,
        detail.properties,
        bool(detail.partitionColumns),
        bool(detail.clusteringColumns),
    )


def _facts_in_log(path: str) -> TableFacts | None:
    """The facts by the checksum of the latest version of a local table; None if there is none."""
    log = log_of(path)  # not of a catalog's table, which may be another one by now
    if log is None:
        return None
    version = latest_version(log)
    checksum = checksum_of(log, version) if version >= 0 else None
    if checksum is None:
        return None
    try:
        metadata = checksum["metadata"]
        clustered = any(
            json.loads(domain["configuration"])["clusteringColumns"]
            for domain in checksum["domainMetadata"]
            if domain["domain"] == _CLUSTERING and not domain["removed"]
        )
        return TableFacts(
            checksum["numFiles"],
            checksum["tableSizeBytes"],
            dict(metadata["configuration"]),
            bool(metadata["partitionColumns"]),
            clustered,
        )
    except (KeyError, TypeError, ValueError):  # of another writer
        return None
