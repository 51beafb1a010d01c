"""The position of a Delta table, as its own log has it: up to where it has all transactions.

A table's latest commits are read from its log if it is local, at next to no cost, else by DESCRIBE HISTORY.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import AnalysisException

from pgbridge.bridge.catalog import catalog_rows
from pgbridge.bridge.lake import location, table
from pgbridge.bridge.lake.log.commit_info import Commit
from pgbridge.bridge.lake.log.history import History
from pgbridge.bridge.lake.log.local_log import entry_of, info_of, latest_version, log_of
from pgbridge.bridge.lake.transaction import has_just_committed
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.targets.location import sql_name
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

    from pgbridge.bridge.catalog.catalog_rows import RelRow, SubscriptionRow
    from pgbridge.bridge.lake.log.stamp import CommitStamp

_LOOKED_AT = 4
"""The last commit is mostly the subscription's own; else an OPTIMIZE, or another writer's."""

_REMEMBERED = 1000
"""So many commits are looked through for the one that a RESTORE by hand has taken back."""


@dataclass(frozen=True, slots=True)
class TablePosition:
    """Where a table is.

    Attributes:
        lsn: The table has the transactions that committed before it; 0 if its log has no commit of the subscription.
        timeline: The timeline that the LSN is on; None if the log does not say.
        version: The table's version that has it; -1 for none.
        is_whole: The log goes back to the table's beginning, so that it would have such a commit.
        epoch: The least epoch that Delta does not refuse to commit to the table.
        copied: It is of a copy, not of a batch.
        is_former: It is of a former life of the subscription, before it began afresh.
    """

    lsn: Lsn
    timeline: int | None
    version: int
    is_whole: bool
    epoch: int
    copied: bool = False
    is_former: bool = False


def table_position(spark: SparkSession, row: SubscriptionRow, owner: str, rel: RelRow) -> TablePosition:
    """Read a table's position from its log.

    Args:
        spark: A session.
        row: The subscription, or its tablesync worker.
        owner: The subscription's own name.
        rel: What the catalog has of the table. If its `whole_lsn` is 0, the table has no commit of the subscription
            yet; then a commit of an earlier life, before the subscription began afresh, says nothing.

    Raises:
        TargetError: The log does not say what the table has; or the commits beyond the catalog's position are on top
            of a RESTORE by hand, or in a table that was made anew (the daemon may have been killed when it had seen
            so, and before it took them back).
    """
    known = rel.whole_lsn
    family = f"{row.txn_app_id}/"
    history = history_of(spark, rel.path, _LOOKED_AT)
    current = families(row, owner)
    own = history.own((*current, f"pgbridge/{row.system_identifier}/{owner}/") if known else (family,), known)
    lsn = INVALID if own is None or own.position is None else Lsn(own.position)
    is_former = own is not None and not own.origin.startswith(current)
    if lsn > rel.position > INVALID and not is_former:
        _check_stands(spark, history, history.before(own), rel, owner)
    timeline, version = (None, -1) if own is None else (own.timeline, own.version)
    copied = own is not None and own.epoch is None
    return TablePosition(lsn, timeline, version, history.is_whole, history.least_epoch(family), copied, is_former)


def families(row: SubscriptionRow, owner: str) -> tuple[str, str]:
    """How the application ids begin of what is of this life of a subscription: its own, and its tablesync worker's."""
    return f"{row.txn_app_id}/", f"pgbridge/{row.system_identifier}/{catalog_rows.sync_name(owner)}/"


def has_committed(spark: SparkSession, path: str, app_id: str, end_lsn: Lsn) -> bool:
    """Whether the latest commit of a batch or copy is of this application id, and ends there."""
    # where the log is read by DESCRIBE HISTORY, each commit costs three requests of an object store
    latest = history_of(spark, path, 1).latest_of(app_id)
    return latest is not None and latest.end_lsn == str(end_lsn)


def check_committed(
    spark: SparkSession, path: str, stamp: CommitStamp, followed: RelRow | None = None, owner: str = ""
) -> None:
    """Check that a table has the commit that was just made: Delta leaves one out, and says nothing, by its stamp.

    Args:
        followed: What the catalog has of a table that follows the stream: before the commit it had that position.
        owner: The subscription's own name.

    Raises:
        TargetError: It has been left out; or it is on top of an undo of another state directory, which has reverted
            commits of this one; or on top of a RESTORE by hand, or in a table that was made anew: what was durable
            is not there.
    """
    if not stamp.after_recovery and has_just_committed(spark, path, stamp):
        return
    # as in `has_committed`, each commit may cost three requests
    history = history_of(spark, path, 2)
    latest = history.latest_of(stamp.txn_app_id)
    is_part = stamp.alters or stamp.part is not None  # an earlier one of the batch is not this one
    if latest is not None and (latest.end_lsn, latest.part) == (str(stamp.end_lsn), is_part):
        if stamp.after_recovery:
            history.check_not_reverted(latest)
        if followed is not None and followed.position:
            _check_stands(spark, history, history.before(latest), followed, owner)
    else:
        raise TargetError(
            f"{path}: Delta has left out the commit up to {stamp.end_lsn}, because the table's log says that it was "
            f'made before, by the application id "{stamp.txn_app_id}": of an attempt that is not recorded here',
            hint="state_dir is not the one that wrote the table last, as after a backup was put back; pgbridge goes on "
            "with another application id",
        )


def check_stands(spark: SparkSession, followed: RelRow, owner: str) -> None:
    """Check, before a batch alters a table, that it has what the catalog knows; arguments as of `check_committed`.

    Raises:
        TargetError: It was restored by hand, or made anew.
    """
    if followed.position:
        history = history_of(spark, followed.path, 2)
        _check_stands(spark, history, history.before(), followed, owner)


def _check_stands(spark: SparkSession, history: History, before: Commit | None, followed: RelRow, owner: str) -> None:
    if before is None or before.position is None:
        if history.is_whole:  # a log without what was committed is another table's, of the same place
            raise behind(spark, followed, owner, INVALID)
        return
    # what an earlier timeline has beyond it was taken back since
    lines = before.timeline, followed.timeline
    former = before.position > followed.position and None not in lines and (lines[0] or 0) < (lines[1] or 0)
    if before.position < followed.position or former:
        raise behind(spark, followed, owner, Lsn(before.position))


def behind(spark: SparkSession, rel: RelRow, owner: str, lsn: Lsn, *, is_former: bool = False) -> TargetError:
    """Return the error for a Delta table that has less than it had.

    Args:
        rel: What the catalog has of it.
        owner: The subscription's own name.
        lsn: The position that its log had before the last commit; 0 for none of the subscription.
        is_former: It is one of a former life of the subscription.
    """
    # the latest version that was committed with the position
    commits = log_commits(spark, rel.path, _REMEMBERED)
    version = next((commit.version for commit in commits if commit.position == rel.position and not commit.part), None)
    again = "" if version is None else f"run: RESTORE TABLE {sql_name(rel.path)} TO VERSION AS OF {version}; or "
    ends = f"its log ends at {lsn}" if lsn else "its log has no commit of the subscription"
    ends += " of a former life of the subscription" if is_former else ""
    return TargetError(
        f'the Delta table of "{rel.qualified_name}" at {rel.path} is behind: changes up to {rel.whole_lsn} were '
        f"durable in it, but {ends}. It was restored, put back from a backup, or made anew",
        hint=f"{again}have the table copied afresh: {remedies.resync(owner, rel.qualified_name)}",
    )


def history_of(spark: SparkSession, path: str, at_first: int = 50) -> History:
    """A table's history, which is read as far back as it is asked for."""
    return History(path, lambda latest: log_commits(spark, path, latest), at_first)


def log_commits(spark: SparkSession, path: str, latest: int) -> Sequence[Commit]:
    """The latest commits, the latest first; none if there is no table."""
    log = log_of(location.place_of(spark, path))
    if log is not None:
        return [Commit.of_log(version, info) for version, info in _infos(log, latest)]
    return described_commits(spark, path, latest)


def described_commits(spark: SparkSession, path: str, latest: int) -> Sequence[Commit]:
    """The same by DESCRIBE HISTORY, wherever the table is."""
    return [Commit.of(row) for row in _described(spark, path, latest)]


def _described(spark: SparkSession, path: str, latest: int) -> Sequence[Row]:
    try:
        return table.described_history(spark, path, latest)
    except AnalysisException:
        if table.schema_of(spark, path) is None:
            return ()
        raise


def _infos(log: Path, latest: int) -> Iterator[tuple[int, dict[str, Any]]]:
    newest = latest_version(log)
    for version in range(newest, max(-1, newest - latest), -1):
        try:
            yield version, info_of(entry_of(log, version))
        except FileNotFoundError:  # Delta has removed what is older than the log's retention
            return


class Entry(NamedTuple):
    """What a commit says of itself."""

    version: int
    operation: str
    user_metadata: str | None


def log_entries(spark: SparkSession, path: str, latest: int) -> Iterator[Entry]:
    """What the latest commits say of themselves, the latest first; nothing if there is no table."""
    log = log_of(location.place_of(spark, path))
    if log is None:
        for row in _described(spark, path, latest):
            yield Entry(row.version, row.operation, row.userMetadata)
        return
    for version, info in _infos(log, latest):
        yield Entry(version, info.get("operation") or "", info.get("userMetadata"))
