"""Reads a Delta table's history: which commits of a batch the table has, and which commits followed them.

A RESTORE reverts every commit after the version it names, whoever made it. So the history is walked from a RESTORE to
that version, and the commits in between do not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgbridge.bridge.runtime.errors import TakenOver, TargetError
from pgbridge.bridge.targets.location import sql_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from pgbridge.bridge.lake.log.commit_info import Commit


@dataclass
class History:
    """A table's commits, read back as far as needed.

    Attributes:
        read: Reads the latest commits, given how many; the latest first.
        at_first: How many commits are read at first; the number doubles while that is not enough.
    """

    path: str
    read: Callable[[int], Iterable[Commit]]
    at_first: int = 50
    _commits: dict[int, Commit] = field(default_factory=dict)
    _complete: bool = False

    def first_beyond(self, remote_lsn: int) -> int | None:
        """The first version with rows of batches that end after an LSN; None if the table has none of them.

        Raises:
            TargetError: Another writer changed rows after it.
        """
        first: Commit | None = None
        later: Commit | None = None  # the first commit of others that an undo would lose
        waiting: Commit | None = None
        for commit in self._walk(self._latest()):
            if commit.is_beyond(remote_lsn):
                first, later = commit, waiting or later
                waiting = None
            elif commit.position is not None:
                break  # an earlier batch, or the copy
            elif commit.changes_rows:
                waiting = commit
        if first is not None and later is not None:
            raise self.would_be_lost(first.version, later)
        return None if first is None else first.version

    def check_owned(self, app_id: str) -> None:
        """Check that no commit that was read keeps the batches of an application id out for good.

        Raises:
            TakenOver: There is one.
        """
        fence = next((commit for commit in self._commits.values() if commit.fences(app_id)), None)
        if fence is not None:
            raise TakenOver(
                f"{self.path}: version {fence.version} keeps out what the state directory here would commit, or take "
                "back: another one goes on with the table",
                hint="stop the daemon here",
            )

    def own(self, families: Collection[str], known: int = 0) -> Commit | None:
        """The latest commit that the latest version contains of a subscription, by how its application ids begin.

        It has the table's position, as far as the history goes back. Parts of a batch beyond `known`, which the catalog
        has, are an error.

        Raises:
            TargetError: It is a part of a batch; or the table was restored to a time; or as `first_beyond`.
        """
        for commit in self._walk(self._latest()):
            if commit.restored is None and commit.operation == "RESTORE":
                raise self._restored_to_a_time(commit)
            if commit.position is None or not commit.origin.startswith(tuple(families)):
                continue
            if commit.part and commit.position > known:
                raise TargetError(
                    f"{self.path}: version {commit.version} has a part of a batch that ends at {commit.end_lsn}, of "
                    "which the state directory does not know",
                    hint="put back what was before that batch, which comes again: "
                    f"{self._restore((self.first_beyond(known) or commit.version) - 1)}",
                )
            return commit
        return None

    def latest_of(self, app_id: str) -> Commit | None:
        """The latest commit of a batch or copy, if it is of this application id."""
        last = next((commit for commit in self._walk(self._latest()) if commit.position is not None), None)
        return last if last is not None and last.origin == app_id else None

    def before(self, latest: Commit | None = None) -> Commit | None:
        """The commit that has the position which the table had before a batch; None if the history is too short.

        Args:
            latest: One of the batch's commits; None if there is none yet.

        Raises:
            TargetError: It was restored to a time since.
        """
        batch = None if latest is None else (latest.origin, latest.end_lsn)
        for commit in self._walk(self._latest() if latest is None else latest.version - 1):
            if commit.restored is None and commit.operation == "RESTORE":
                raise self._restored_to_a_time(commit)
            if commit.position is not None and (commit.origin, commit.end_lsn) != batch:
                return commit
        return None

    def _restored_to_a_time(self, commit: Commit) -> TargetError:
        return TargetError(
            f"{self.path}: version {commit.version} is a RESTORE to a time: it is not known what the table has",
            hint=f"restore it to a version: {self._restore(commit.version - 1)}, which is the one before",
        )

    def least_epoch(self, family: str) -> int:
        """The least epoch that Delta does not refuse, by the latest commit of this family, undone or not."""
        for commit in sorted(self._commits.values(), key=lambda commit: -commit.version):
            if commit.epoch is not None and commit.origin.startswith(family):
                return commit.epoch + 1 if commit.given_up else commit.epoch
        return 0

    def as_of(self, position: int, *, replayed: bool = False) -> int | None:
        """The latest version whose rows are those of an LSN: the one before the first commit of a later batch.

        So it has what other writers committed until then, and an OPTIMIZE of these rows. A replay counts as a later
        batch at the origin's LSN, too: a transaction's tables get their commits one after the other. With `replayed`
        one at this LSN counts as made before. None if the history does not go back so far, or the table did not exist.
        """
        latest: int | None = None
        version = self._latest()
        while (commit := self._find(version)) is not None:
            if commit.restored is not None and commit.restored < version:
                latest = version if latest is None else latest
                version = commit.restored
                continue
            own = commit.position
            if commit.is_after(position, replayed=replayed):
                latest = None
            elif latest is None:
                latest = commit.version
            if own is not None and own <= position:
                return latest
            version -= 1
        return latest if self.is_whole else None

    def vacuumed(self, version: int) -> Commit | None:
        """A VACUUM that has removed files of a version, if there was one."""
        later = self._commits.get(version + 1)
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

    def beyond(self, lsn: int) -> list[Commit]:
        """The commits of batches and copies that end after an LSN, of those that the latest version contains."""
        commits: list[Commit] = []
        for commit in self._walk(self._latest()):
            if commit.position is not None and commit.position <= lsn:
                break
            if commit.position is not None:
                commits.append(commit)
        return commits

    @property
    def standing(self) -> int | None:
        """The version that has the table's position; None without a batch or copy."""
        commits = self._walk(self._latest())
        return next((commit.version for commit in commits if commit.position is not None), None)

    def standing_and_reverted(self, own: tuple[str, ...], position: int) -> tuple[Commit | None, Commit | None]:
        """The last whole commits up to an LSN, by how their application ids begin, of all that were read.

        Returns:
            The one that the latest version contains; and a later one, if a RESTORE by hand has taken that back.
        """

        def last(contained: Iterable[Commit]) -> Commit | None:
            whole = (commit for commit in contained if not commit.part and commit.origin.startswith(own))
            return next((each for each in whole if each.position is not None and each.position <= position), None)

        standing = last(self._walk(self._latest()))
        version = -1 if standing is None else standing.version
        reverted = (last(contained) for contained in self.before_restores(version))
        later = (commit for commit in reverted if commit is not None and commit.version > version)
        return standing, max(later, key=lambda commit: commit.version, default=None)

    def before_restores(self, version: int) -> Iterator[Iterator[Commit]]:
        """What the table contained before each RESTORE by hand, of those that were read and are later than a version.

        Of each the commits, the latest first, as those of the latest version; what was wrong then is not told any more.
        """
        for restore in [commit for commit in self._commits.values() if commit.version > version]:
            if restore.operation == "RESTORE" and not restore.reverts:
                yield self._walk(restore.version - 1, checked=False)

    def has_after(self, position: int, *, replayed: bool = False) -> bool:
        """Whether one that `as_of` counts as later is among the commits that were read."""
        return any(commit.is_after(position, replayed=replayed) for commit in self._commits.values())

    def commits(self) -> list[Commit]:
        """All commits that the latest version contains, the latest first."""
        return list(self._walk(self._latest()))

    @property
    def is_whole(self) -> bool:
        """Whether the history that was read begins with the table."""
        return self._complete and min(self._commits, default=1) == 0

    def would_be_lost(self, first: int, later: Commit) -> TargetError:
        """Return the error for a version that cannot be undone, because another writer committed after it."""
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
        wanted, self.at_first = self.at_first, 2 * self.at_first
        commits = {commit.version: commit for commit in self.read(wanted)}
        self._complete = len(commits) < wanted
        self._commits |= commits

    def _walk(self, version: int, *, checked: bool = True) -> Iterator[Commit]:
        """The commits that a version contains, the latest first.

        Raises:
            TargetError: If it is checked: an undo has reverted rows of another writer, who committed when it was about
                to.
        """
        while (commit := self._find(version)) is not None:
            if commit.restored is None or commit.restored >= version:
                yield commit
                version -= 1
                continue
            if checked and commit.reverts and (lost := self.reverted_by(commit)) is not None:
                raise self.reverted(commit, lost)
            version = commit.restored

    def reverted(self, undo: Commit, lost: Commit) -> TargetError:
        """Return the error for an undo that has reverted another writer's commit."""
        return TargetError(
            f"{self.path}: version {undo.version}, which undid a batch, also reverted version {lost.version} "
            f"({lost.operation}) of another writer, who committed at the same moment",
            hint=f"run: {self._restore(undo.version - 1)}",
        )

    def check_not_reverted(self, latest: Commit) -> None:
        """Check that the commit before one is no undo that has reverted what another machine has kept it out of.

        Raises:
            TargetError: It is.
        """
        before = self._find(latest.version - 1)
        if before is not None and before.reverts:
            lost = self.reverted_by(before)
            if lost is not None and lost.fences(before.origin):
                raise self.reverted(before, lost)

    def last_undo(self) -> Commit | None:
        """The latest RESTORE that has undone a batch, among the commits that were read."""
        self._more()
        undos = (commit for commit in self._commits.values() if commit.reverts)
        return max(undos, key=lambda commit: commit.version, default=None)

    def reverted_by(self, undo: Commit) -> Commit | None:
        """The first commit of another writer with rows that an undo has reverted; None if there is none.

        What keeps the undone batch out for good counts as well: commits of another machine follow it.
        """
        assert undo.restored is not None  # noqa: S101 - it is a RESTORE
        lost: Commit | None = None
        version = undo.version - 1
        while version > undo.restored and (commit := self._find(version)) is not None:
            if commit.restored is not None and commit.restored < version and not commit.given_up:
                version = commit.restored  # what somebody had reverted before
                continue
            if (commit.changes_rows and commit.operation != "RESTORE") or commit.fences(undo.origin):
                lost = commit
            version -= 1
        return lost

    def _restore(self, version: int) -> str:
        return f"RESTORE TABLE {sql_name(self.path)} TO VERSION AS OF {version}"
