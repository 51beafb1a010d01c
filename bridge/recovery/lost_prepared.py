"""Prepared transactions whose changes are lost with the state directory: the publisher does not send them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgbridge.bridge.catalog.catalog_rows import sync_name
from pgbridge.bridge.config.tables import BEGINNING_ANEW
from pgbridge.bridge.runtime import errors, remedies
from pgbridge.bridge.track.spool import SpoolFile, spool_folder
from pgbridge.protocol.stream.transactions import Ending, Transaction

if TYPE_CHECKING:
    from pathlib import Path

    from pgbridge.bridge.catalog.catalog_rows import PreparedRow, RelRow
    from pgbridge.bridge.catalog.manifest import Manifest
    from pgbridge.bridge.config.config import Subscription

_LOST: Final = "lost"
"""Notes, in a spool file, that it has no changes because they are lost."""


class LostPrepared:
    """Transactions that were prepared and have not ended, of which no spool file has the changes.

    Args:
        subscription: Whose they are.
        known: The manifest that names them; None if no stream goes on, so that they do not matter.
        state_dir: Where the spool files are.

    Attributes:
        changed: The tables that follow the stream, and that they change; all that follow if that is not known.
        changes_copied: Whether they change tables that the tablesync worker has, or may do so. Another slot of the
            worker waits for their end.
    """

    def __init__(self, subscription: Subscription, known: Manifest | None, state_dir: Path) -> None:
        self._subscription, self._folder = subscription, spool_folder(state_dir, subscription.name)
        prepared = known.prepared(subscription.name) if known is not None else ()
        self._rows = [row for row in prepared if not _has_changes(self._folder / row.file)]
        rels = known.rels(subscription.name) if known is not None else []
        following = [rel for rel in rels if rel.state == "r" and rel.waits is None]
        copied = known.rels(sync_name(subscription.name)) if known is not None else []
        relids = {relid for row in self._rows for relid in row.relids or ()}
        all_known = relids <= {rel.relid for rel in (*rels, *copied)} and None not in {row.relids for row in self._rows}
        self.changes_copied = not all_known or any(rel.relid in relids for rel in copied)
        self.changed: list[RelRow] = [rel for rel in following if rel.relid in relids or not all_known]

    def copies_afresh(self, rel: RelRow) -> bool:
        """Whether a table that they change is copied afresh; one that keeps what was waits for its operator."""
        return self._subscription.mode_of(rel.qualified_name) not in BEGINNING_ANEW

    def what_becomes_of(self, rel: RelRow) -> str:
        """Say what becomes of a table that they change."""
        gids = ", ".join(f'"{row.gid}"' for row in self._rows)
        if self.copies_afresh(rel):
            return f"copied again, once prepared transactions have ended: {gids}"
        name = self._subscription.name
        hint = f"once they have ended, copy the table afresh: {remedies.resync(name, rel.qualified_name)}"
        return f"changes of prepared transactions are lost: {gids}{errors.HINT}{hint}"

    def put_empty(self) -> None:
        """Have the end of each one find a transaction without changes.

        Raises:
            StateError: A spool file cannot be written.
        """
        for row in self._rows:
            self._put_empty(row)

    def _put_empty(self, row: PreparedRow) -> None:
        path = self._folder / row.file
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        empty = Transaction(row.xid, row.end_lsn, 0, row.end_lsn, gid=row.gid, ending=Ending.PREPARE)
        SpoolFile(path, noted={_LOST: True}).keep(empty)


def _has_changes(path: Path) -> bool:
    """Whether a file has the changes of a prepared transaction; it may be an empty one, of an earlier recovery."""
    try:
        kept = SpoolFile.load(path).spooled
    except errors.StateError:
        return False
    return isinstance(kept, SpoolFile) and _LOST not in kept.noted
