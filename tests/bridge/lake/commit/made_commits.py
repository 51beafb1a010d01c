"""Tables to commit to, each a copy of one that was made once, and the way that each commit went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from pgbridge.bridge.batch.batch import TableChanges
from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.effects.kept import Kept
from pgbridge.bridge.lake.commit import execute, plan
from pgbridge.bridge.lake.commit.apply_table import apply_table
from pgbridge.bridge.lake.commit.plan import Append, Merge, Replace, ReplaceAt, ReplaceWhere
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.schema import target_schema_of
from pgbridge.bridge.lake.table_facts import KnownTables
from pgbridge.bridge.targets.target import Target, TargetColumn
from pgbridge.protocol.values.types import resolve
from tests.bridge.apply.made_targets import changes_of, content, copied

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

    from pgbridge.bridge.lake.commit.plan import Commit, Outcome

BIGINT, TEXT = 20, 25
NAMES = ("match_0", "begins", "n")
"""Of the columns: those of effects have such names, too."""

ROWS = (("a", "old", 1), ("b", "old", 2), ("c", None, 3))

VECTORS = ", ".join(f"'{name}' = 'true'" for name in ("delta.enableDeletionVectors", "pgbridge.created"))

WAYS = ("kept", "joined", "by place", "by key", "merged")
"""With a tiny table's rows kept; with its rows read and joined; by the rows' places; by their keys; by a MERGE."""


class Carried(NamedTuple):
    """A commit that was tried, and what became of it; None if it failed."""

    way: str
    outcome: Outcome | None


def nothing_known() -> KnownTables:
    """What a writer that has just started knows of tables; not of those that other tests have used."""
    return KnownTables(Kept(1 << 20), Kept(1 << 20), Kept(1 << 20))


class Commits:
    """Commits go one way, if it may do.

    Args:
        folder: The folder of this test's tables.

    Attributes:
        carried: Those that were tried.
    """

    def __init__(self, spark: SparkSession, folder: Path, way: str, patch: pytest.MonkeyPatch) -> None:
        self.spark, self.way, self.carried = spark, way, list[Carried]()
        self.known = nothing_known()
        self._folder = folder
        of_way = {"by place": ReplaceAt, "by key": ReplaceWhere}
        planned, carried_out = plan.commits, execute._carried_out

        def commits(*args: Any) -> Iterator[Commit]:
            for commit in planned(*args):
                if isinstance(commit, Replace) and way in {"kept", "joined"}:
                    yield Replace(tiny=way == "kept")
                elif isinstance(commit, Merge | Append) or type(commit) is of_way.get(way):
                    yield commit

        def noted(spark: SparkSession, commit: Commit, *args: Any) -> Outcome:
            names = {Replace: "replaced", ReplaceAt: "by place", ReplaceWhere: "by key", Merge: "merged"}
            name = names.get(type(commit), "appended")
            self.carried.append(Carried(name, None))
            outcome = carried_out(spark, commit, *args)
            self.carried[-1] = Carried(name, outcome)
            return outcome

        patch.setattr(execute, "commits", commits)
        patch.setattr(execute, "_carried_out", noted)

    def table(
        self, rows: Sequence[tuple[Any, ...]] = ROWS, *, key: int = TEXT, name: str = "t", files: int = 1
    ) -> Target:
        """A table of a key, a note and a number; with deletion vectors, if commits go by place or key."""
        path, vectors = str(self._folder / name), self.way in {"by place", "by key"}
        kinds = {TEXT: "string", BIGINT: "long"}
        columns = f"`{NAMES[0]}` {kinds[key]}, `{NAMES[1]}` string, `{NAMES[2]}` long"
        frame = self.spark.createDataFrame(list(rows), columns)

        def make(made: str) -> None:
            create_table(self.spark, made, frame.schema)
            if vectors:
                self.spark.sql(f"ALTER TABLE delta.`{made}` SET TBLPROPERTIES ({VECTORS})").collect()
            frame.coalesce(files).writeTo(f"delta.`{made}`").append()

        copied(self.spark, path, f"keyed{hash((tuple(rows), key, files, vectors))}", make)
        return Target("public", name, path, target_schema_of(frame.schema))

    def apply(self, changes: TableChanges, session: SparkSession | None = None, **options: Any) -> list[dict[str, int]]:
        """Commit changes; returns the conflicts that were counted."""
        counted = list[dict[str, int]]()
        apply_table(
            session or self.spark,
            changes,
            known=self.known,
            conflicts=lambda c: counted.append(dict(c.counts)),
            **options,
        )
        return counted

    def content(self, target: Target) -> list[tuple[Any, ...]]:
        """The table's rows, sorted."""
        return content(self.spark, target)

    def went(self, *outcomes: str) -> None:
        """Check how the last commits went, each as `way`, or by a MERGE after `refused`."""
        ways = {"kept": "replaced", "joined": "replaced"}
        tried = [(one.way, one.outcome.state if one.outcome else "failed") for one in self.carried]
        wanted = list[tuple[str, str]]()
        for outcome in outcomes:
            wanted.append((ways.get(self.way, self.way), outcome))
            if outcome == "refused" and self.way != "merged":
                wanted.append(("merged", "made"))
        assert tried == wanted
        self.carried.clear()


def changes(target: Target, *rows: tuple[Any, ...], key: tuple[int, ...] = (0,)) -> TableChanges:
    """Changes of (op, old key, key, note, n)."""
    of_key = BIGINT if target.schema[0].arrow == pa.int64() else TEXT
    oids = (of_key, TEXT, BIGINT)
    columns = tuple(TargetColumn(name, resolve(oid, -1)) for name, oid in zip(NAMES, oids, strict=True))
    return TableChanges(target, columns, key, changes_of(rows, target.schema[0].arrow, pa.string(), pa.int64()))


def update(key: Any, note: str | None, n: int = 0) -> tuple[Any, ...]:
    """An UPDATE."""
    return UPDATE, None, key, note, n


def insert(key: Any, note: str | None, n: int = 0) -> tuple[Any, ...]:
    """An INSERT."""
    return INSERT, None, key, note, n


def delete(key: Any) -> tuple[Any, ...]:
    """A DELETE."""
    return DELETE, key, None, None, None


def move(old: Any, key: Any, note: str = "moved") -> tuple[Any, ...]:
    """An UPDATE of the key."""
    return UPDATE, old, key, note, 0
