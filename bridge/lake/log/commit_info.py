"""What a commit of a Delta table's log says of itself (Delta's commitInfo), and of the batch that it is of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

KEEP_ROWS = frozenset(
    {
        *("OPTIMIZE", "VACUUM START", "VACUUM END", "COMPUTE STATS", "REORG", "CLUSTER BY"),
        *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES"),
    }
)
"""Operations that keep the rows: nothing is lost if they are reverted too."""


_UNKNOWN: Final = "UNKNOWN"
"""The operation of a commit that says nothing of itself."""

_UNREADABLE: Final = ""
"""That of an entry which cannot be read."""

ANY_LSN: Final = Lsn((1 << 63) - 1)
"""Beyond every LSN that Spark's integers hold: what keeps all that a former owner may still commit out of a table."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of the history.

    Attributes:
        origin: The application id of its batch or copy; empty for other writers' commits.
        end_lsn: That batch's end, as text.
        restored: The version that a RESTORE restored; None for a RESTORE by time. Of a commit that was made for a
            checkpoint, the version with the table's position. None for all others.
        start_lsn: The batch's start, as text; of a copy, its end; of a transaction that was replayed, the
            origin's LSN then.
        last_commit_time: When the batch's last transaction was committed, in ISO 8601; empty if that is not known.
        made_ms: When Delta made the commit, in milliseconds since 1970.
        retention_ms: The retention of a VACUUM that begins here; None for other operations.
        timeline: The publisher's timeline that the position is on; None if it is not known.
        part: Other commits of the batch to the table follow this one.
        given_up: No rows are of the batch: it is taken back here, or kept from committing late.
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
    timeline: int | None = None
    part: bool = False
    given_up: bool = False

    @classmethod
    def of(cls, row: Any) -> Commit:
        """Make one of a row of DESCRIBE HISTORY."""
        made_ms = round(row.timestamp.timestamp() * 1000) if row.timestamp is not None else 0
        return cls._of(int(row.version), row.operation, row.operationParameters, row.userMetadata, made_ms)

    @classmethod
    def of_log(cls, version: int, info: Mapping[str, Any]) -> Commit:
        """Make one of the `commitInfo` of a table's log."""
        operation = info.get("operation") or (_UNKNOWN if info else _UNREADABLE)
        parameters, made_ms = info.get("operationParameters"), int(info.get("timestamp", 0))
        return cls._of(version, operation, parameters, info.get("userMetadata"), made_ms)

    @classmethod
    def _of(
        cls, version: int, operation: str, given: Mapping[str, Any] | None, user_metadata: str | None, made_ms: int
    ) -> Commit:
        mark, parameters = _mark(user_metadata), given or {}
        origin, start_lsn, end_lsn = mark.get("origin", ""), mark.get("start_lsn", ""), mark.get("end_lsn", "")
        # earlier versions marked an undo by another word, and what keeps a late commit out by a batch of no length;
        # what a command writes has none either
        no_length = start_lsn == end_lsn and origin.rpartition("/")[2].isdigit()
        given_up = mark.get("given_up") or mark.get("undone") or no_length
        restored = str(parameters.get("version") if operation == "RESTORE" else mark.get("stands_on"))
        retention = str(parameters.get("specifiedRetentionMillis", parameters.get("defaultRetentionMillis")))
        return cls(
            version,
            operation,
            origin,
            end_lsn,
            int(restored) if restored.isdigit() else None,
            start_lsn,
            mark.get("last_commit_time", ""),
            made_ms,
            int(retention) if operation == "VACUUM START" and retention.isdigit() else None,
            mark.get("timeline"),
            "part" in mark,
            bool(origin and given_up),
        )

    @property
    def position(self) -> int | None:
        """The LSN up to which the table has all transactions; None if the commit is of no batch or copy.

        A transaction that is replayed by hand has an LSN of its own, which says nothing of the others.
        """
        if self.given_up or not self.end_lsn:
            return None
        return int(Lsn.parse(self.end_lsn)) if self.epoch is not None or self.origin.endswith("/copy") else None

    @property
    def epoch(self) -> int | None:
        """The epoch of the batch that is committed, or given up; None if the commit is of no batch."""
        mark = self.origin.rpartition("/")[2]
        return int(mark) if mark.isdigit() else None

    @property
    def reverts(self) -> bool:
        """Whether it is a RESTORE that has undone a batch."""
        return self.given_up and self.operation == "RESTORE" and self.restored is not None

    def fences(self, app_id: str) -> bool:
        """Whether it keeps out all that the application id of batches may still commit: another machine goes on."""
        family, _, epoch = app_id.rpartition("/")
        if not self.given_up or self.end_lsn != str(ANY_LSN) or self.epoch is None or not epoch.isdigit():
            return False
        return self.origin.rpartition("/")[0] == family and self.epoch >= int(epoch)

    @property
    def changes_rows(self) -> bool:
        """Whether it may have changed rows, and is of no batch or copy: of another writer, or of a command.

        An entry that cannot be read is taken for one of a batch: a flush of it has failed, and the power went later.
        """
        return self.position is None and not self.given_up and self.operation not in {*KEEP_ROWS, _UNREADABLE}

    def is_beyond(self, lsn: int) -> bool:
        """Whether it has rows of a batch that ends after an LSN."""
        return self.epoch is not None and self.position is not None and self.position > lsn

    def is_after(self, lsn: int, *, replayed: bool) -> bool:
        """Whether it is of a batch or copy that ends after an LSN, or of a replay when all up to there was applied.

        A transaction that has itself ended later counts, too: earlier versions wrote its own LSN only.

        Args:
            replayed: A replay just at the LSN counts as before.
        """
        if self.origin.rpartition("/")[2].startswith("replay-"):
            at = max(Lsn.parse(text) for text in (self.start_lsn, self.end_lsn))
            return at > lsn if replayed else at >= lsn
        return self.position is not None and self.position > lsn


def _mark(user_metadata: str | None) -> dict[str, Any]:
    """The batch that user metadata names; empty for other writers' commits."""
    try:
        document = json.loads(user_metadata or "{}")
    except ValueError:
        return {}
    mark = document.get("pgbridge") if isinstance(document, dict) else None
    return mark if isinstance(mark, dict) else {}
