"""Delta tables in memory: their commits, with transaction versions as Delta keeps them; and a session that writes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pgbridge.bridge.lake.log.commit_info import Commit
from pgbridge.bridge.lake.log.stamp import USER_METADATA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_APP_ID, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_RESTORE = re.compile(r"RESTORE TABLE delta\.`(.*)` TO VERSION AS OF (\d+)")


@dataclass(frozen=True)
class Version:
    """One version of a table: its commit's info, its rows, and the latest version of each application id."""

    info: dict[str, Any]
    rows: tuple[int, ...]
    versions: dict[str, int]


@dataclass
class MemoryLake:
    """Delta tables, by path."""

    tables: dict[str, list[Version]] = field(default_factory=dict)
    manifests: dict[tuple[str, str], str] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)

    def rows(self, path: str) -> list[int]:
        """A table's rows, sorted."""
        return sorted(self.tables[path][-1].rows) if path in self.tables else []

    def commit(
        self,
        path: str,
        change: Callable[[tuple[int, ...]], Sequence[int]],
        *,
        operation: str = "WRITE",
        app_id: str = "",
        version: int = 0,
        metadata: str = "",
        parameters: dict[str, str] | None = None,
    ) -> bool:
        """Commit, unless the table has the application id's version already; return whether it was committed."""
        log = self.tables.setdefault(path, [Version({"operation": "CREATE TABLE"}, (), {})])
        known = log[-1].versions
        if app_id and known.get(app_id, -1) >= version:
            return False
        info = {"operation": operation, "userMetadata": metadata, "operationParameters": parameters or {}}
        log.append(Version(info, tuple(change(log[-1].rows)), {**known, **({app_id: version} if app_id else {})}))
        return True

    def restore(self, path: str, version: int, metadata: str = "") -> None:
        """RESTORE TABLE: a commit. The application ids' versions stay as they are, as in Delta."""
        rows = self.tables[path][version].rows
        self.commit(path, lambda _: rows, operation="RESTORE", metadata=metadata, parameters={"version": str(version)})

    def commits(self, path: str, latest: int) -> list[Commit]:
        """The latest commits, the latest first."""
        log = list(enumerate(self.tables.get(path, ())))
        return [Commit.of_log(number, json.loads(json.dumps(version.info))) for number, version in log[::-1][:latest]]


class MemoryConf(dict[str, str]):
    """The settings of a session."""

    def set(self, key: str, value: str) -> None:
        """Set one."""
        self[key] = value

    def unset(self, key: str) -> None:
        """Unset one."""
        self.pop(key, None)


class MemorySession:
    """What stands for a Spark session: it knows settings and RESTORE, and commits rows with its present stamp."""

    def __init__(self, lake: MemoryLake) -> None:
        self.lake = lake
        self.conf = MemoryConf()
        self.sparkContext = SimpleNamespace(master="local[2]")

    def append(self, path: str, rows: Sequence[int]) -> None:
        """Append rows by one commit."""
        self.lake.commit(
            path,
            lambda before: (*before, *rows),
            app_id=self.conf.get(_APP_ID, ""),
            version=int(self.conf.get(_VERSION, "0")),
            metadata=self.conf.get(USER_METADATA, ""),
        )

    def sql(self, statement: str) -> MemorySession:
        """Run a RESTORE."""
        match = _RESTORE.fullmatch(statement)
        assert match is not None, statement
        self.lake.restore(match[1], int(match[2]), self.conf.get(USER_METADATA, ""))
        return self

    def collect(self) -> list[Any]:
        """There is no result."""
        return []
