"""Reads a Delta table's history: which commits of a batch the table has, and which commits followed them.

A RESTORE reverts every commit after the version it names, whoever made it. So the history is walked from a RESTORE to
that version, and the commits in between do not count.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bridge.apply.target.location import sql_name
from bridge.errors import TargetError
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_LOOKED_AT = 50
"""How many commits are read at first; the number doubles while that is not enough."""

KEEP_ROWS = frozenset(
    {"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "COMPUTE STATS", "REORG", "CLUSTER BY"}
)
"""Operations that keep the rows: nothing is lost if they are reverted too."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of the history.

    Attributes:
        version: The table's version.
        operation: Delta's name of the operation.
        origin: The application id of its batch or copy; empty for other writers' commits.
        end_lsn: That batch's end, as text.
        restored: The version that a RESTORE restored; None for other operations, and for a RESTORE by time.
        start_lsn: The batch's start, as text; of a copy, its end.
        last_commit_time: When the batch's last transaction was committed, in ISO 8601; empty if that is not known.
        made_ms: When Delta made the commit, in milliseconds since 1970.
        retention_ms: The retention of a VACUUM that begins here; None for other operations.
    """

    version: int
    operation: str
    origin: str = ""
    end_lsn: str = ""
    restored: int | None = None
    start_lsn: str = ""
    last_commit_time: str = ""
    made_ms: int = 0
    retention_ms: int | None = None

    @classmethod
    def of(cls, row: Any) -> Commit:
        """Make one of a row of DESCRIBE HISTORY."""
        made_ms = round(row.timestamp.timestamp() * 1000) if row.timestamp is not None else 0
        return cls._of(int(row.version), row.operation, row.operationParameters, row.userMetadata, made_ms)

    @classmethod
    def of_log(cls, version: int, info: Mapping[str, Any]) -> Commit:
        """Make one of the `commitInfo` of a table's log."""
        operation, parameters = info.get("operation", ""), info.get("operationParameters")
        return cls._of(version, operation, parameters, info.get("userMetadata"), int(info.get("timestamp", 0)))

    @classmethod
    def _of(
        cls, version: int, operation: str, given: Mapping[str, Any] | None, user_metadata: str | None, made_ms: int
    ) -> Commit:
        mark, parameters = _mark(user_metadata), given or {}
        restored = str(parameters.get("version")) if operation == "RESTORE" else ""
        retention = str(parameters.get("specifiedRetentionMillis", parameters.get("defaultRetentionMillis")))
        return cls(
            version,
            operation,
            mark.get("origin", ""),
            mark.get("end_lsn", ""),
            int(restored) if restored.isdigit() else None,
            mark.get("start_lsn", ""),
            mark.get("last_commit_time", ""),
            made_ms,
            int(retention) if operation == "VACUUM START" and retention.isdigit() else None,
        )

    @property
    def position(self) -> int | None:
        """The LSN up to which the table has all transactions; None if the commit is of no batch or copy.

        A transaction that is replayed by hand has an LSN of its own, which says nothing of the others.
        """
        mark = self.origin.rpartition("/")[2]
        return int(Lsn.parse(self.end_lsn)) if self.end_lsn and (mark.isdigit() or mark == "copy") else None


@dataclass
class History:
    """A table's commits, read back as far as needed.

    Attributes:
        path: The Delta table.
        read: Reads the latest commits, given how many; the latest first.
    """

    path: str
    read: Callable[[int], Iterable[Commit]]
    _commits: dict[int, Commit] = field(default_factory=dict)
    _wanted: int = _LOOKED_AT
    _complete: bool = False

    def first_of(self, app_id: str, end_lsn: Lsn) -> int | None:
        """The first version that a batch committed; None if the table has none of its commits.

        Raises:
            TargetError: Another writer changed rows after it; or a RESTORE by hand has reverted earlier batches too.
        """
        family = app_id.rpartition("/")[0]
        first: Commit | None = None
        later: Commit | None = None  # the first commit of others that an undo would lose
        waiting: Commit | None = None
        for commit in self._walk(self._latest(), app_id, end_lsn):
            if _is_of(commit, app_id, end_lsn):
                first, later = commit, waiting or later
                waiting = None
            elif commit.origin.rpartition("/")[0] == family:
                break  # an earlier batch, or the copy
            elif commit.operation not in KEEP_ROWS:
                waiting = commit
        if first is not None and later is not None:
            raise self._would_be_lost(first.version, later)
        return None if first is None else first.version

    def as_of(self, position: int) -> int | None:
        """The latest version whose rows are those of an LSN: the one before the first commit of a later batch.

        So it has what other writers committed until then, and an OPTIMIZE of these rows. None if the history does not
        go back so far, or the table did not exist.
        """
        found: int | None = None
        version = self._latest()
        while (commit := self._find(version)) is not None:
            if commit.restored is not None and commit.restored < version:
                found = version if found is None else found
                version = commit.restored
                continue
            own = commit.position
            if own is not None and own > position:
                found = None
            elif found is None:
                found = commit.version
            if own is not None and own <= position:
                return found
            version -= 1
        return found if self._begins_here else None

    def next_after(self, version: int) -> Commit | None:
        """The commit after a version; None if it is the latest."""
        return self._commits.get(version + 1)

    def vacuumed(self, version: int) -> Commit | None:
        """A VACUUM that has removed files of a version, if there was one."""
        later = self.next_after(version)
        vacuums = [commit for commit in self._commits.values() if commit.retention_ms is not None]
        if later is None:
            return None
        for vacuum in vacuums:
            gone = later.made_ms < vacuum.made_ms - (vacuum.retention_ms or 0)
            if vacuum.version > later.version and gone:
                return vacuum
        return None

    @property
    def oldest(self) -> int | None:
        """The oldest version that was read; None if there is no table."""
        return min(self._commits, default=None)

    @property
    def latest(self) -> int | None:
        """The latest version."""
        return max(self._commits, default=None)

    def has_after(self, position: int) -> bool:
        """Whether a batch that ends after a position is among the commits that were read."""
        return any(commit.position is not None and commit.position > position for commit in self._commits.values())

    def commits(self) -> list[Commit]:
        """All commits that the latest version contains, the latest first."""
        return list(self._walk(self._latest()))

    @property
    def _begins_here(self) -> bool:
        """Whether the history that was read begins with the table."""
        return self._complete and min(self._commits, default=1) == 0

    def doubtful_of(self, app_id: str, end_lsn: Lsn) -> list[int]:
        """The versions to restore, one after the other, that undo a batch whose log entries may not be on disk.

        A RESTORE records what differs from the version before it. If a power cut loses that version's log entry, the
        RESTORE leaves files of the batch in the table, or lacks files that the batch removed. So every version since
        the batch's first is restored before the one that precedes it: then the RESTOREs record each file that any of
        these versions has and the last one lacks, and the other way round, whatever is left of their own entries.

        Returns:
            The versions, the last one without the batch; empty if the table has never had one of its commits. An
            earlier undo does not count, because its RESTOREs are as doubtful.

        Raises:
            TargetError: Another writer changed rows, or restored the table, after the batch's first commit.
        """
        family = app_id.rpartition("/")[0]
        version = latest = self._latest()
        made: list[int] = []
        first: int | None = None
        while (commit := self._find(version)) is not None:
            own = _is_of(commit, app_id, end_lsn)
            if not own and commit.origin.rpartition("/")[0] == family:
                break  # an earlier batch, or the copy
            if commit.restored is None:
                made.append(version)
                first = version if own else first
            version -= 1
        if first is None:
            return []
        version = latest
        while version >= first:
            commit = self._commits[version]
            kept = commit.operation in KEEP_ROWS or commit.restored == first - 1
            if not kept and not _is_of(commit, app_id, end_lsn):
                raise self._would_be_lost(first, commit)
            version = version - 1 if commit.restored is None else commit.restored
        return [*(version for version in made if first <= version < latest), first - 1]

    def _would_be_lost(self, first: int, later: Commit) -> TargetError:
        return TargetError(
            f"{self.path}: version {first} cannot be undone, because another writer committed version "
            f"{later.version} ({later.operation}) after it",
            hint=f"see DESCRIBE HISTORY {sql_name(self.path)}, then run: {self._restore(first - 1)}; "
            "repeat the other writer's changes afterwards",
        )

    def _latest(self) -> int:
        self._more()
        return max(self._commits, default=-1)

    def _find(self, version: int) -> Commit | None:
        """A version's commit; None if the history does not go back so far."""
        while version not in self._commits and not self._complete:
            self._more()
        return self._commits.get(version)

    def _more(self) -> None:
        found = {commit.version: commit for commit in self.read(self._wanted)}
        self._complete = len(found) < self._wanted
        self._wanted *= 2
        self._commits |= found

    def _walk(self, version: int, app_id: str = "", end_lsn: Lsn | None = None) -> Iterator[Commit]:
        """The commits that a version contains, the latest first; with a batch, each RESTORE is checked against it."""
        while (commit := self._find(version)) is not None:
            if commit.restored is None or commit.restored >= version:
                yield commit
                version -= 1
            else:
                if end_lsn is not None and commit.origin != app_id:
                    self._check_restored(commit.version, commit.restored, app_id, end_lsn)
                version = commit.restored

    def _check_restored(self, version: int, restored: int, app_id: str, end_lsn: Lsn) -> None:
        """Raise if a RESTORE by hand has reverted another batch together with this one."""
        passed = [commit for at in range(restored + 1, version) if (commit := self._find(at)) is not None]
        first = next((commit.version for commit in passed if _is_of(commit, app_id, end_lsn)), None)
        if first is None:
            return
        had, has = (next((c for c in self._walk(at) if c.origin), None) for at in (first - 1, restored))
        if had is not None and had != has:
            raise TargetError(
                f"{self.path}: version {version}, a RESTORE to version {restored}, reverted more than the batch that "
                f"ends at {end_lsn}: version {had.version} is of an earlier batch, which is not applied again",
                hint=f"run: {self._restore(first - 1)}",
            )

    def _restore(self, version: int) -> str:
        return f"RESTORE TABLE {sql_name(self.path)} TO VERSION AS OF {version}"


def _is_of(commit: Commit, app_id: str, end_lsn: Lsn) -> bool:
    return (commit.origin, commit.end_lsn) == (app_id, str(end_lsn))


def _mark(user_metadata: str | None) -> dict[str, Any]:
    """The batch that user metadata names; empty for other writers' commits."""
    try:
        document = json.loads(user_metadata or "{}")
    except ValueError:
        return {}
    mark = document.get("pgbridge") if isinstance(document, dict) else None
    return mark if isinstance(mark, dict) else {}
