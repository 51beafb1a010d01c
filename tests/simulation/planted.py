"""Faults in what decides, each of which lives from seeds have to find: without it a check would prove nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pgbridge.bridge.apply import undo
from pgbridge.bridge.catalog import catalog
from pgbridge.bridge.lake.commit import restore
from pgbridge.bridge.lake.log.history import History
from pgbridge.bridge.recovery import lost_prepared, recover
from pgbridge.bridge.sync.server_check import OwnPositions, ServerCheck
from pgbridge.bridge.sync.tablesync import TableSync
from pgbridge.bridge.track import position
from pgbridge.protocol.stream.assembler import TransactionAssembler
from tests.simulation import bridged
from tests.simulation.lake import MemoryLake

if TYPE_CHECKING:
    import pytest

    from pgbridge.bridge.lake.log.stamp import CommitStamp
    from pgbridge.protocol.codec.messages import StreamAbort


def timelines_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """An LSN is believed on whatever timeline."""
    patch.setattr(position.ServerHistory, "_branched", lambda *_: "")


def the_streams_connection_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Only the connection before it is."""
    patch.setattr(ServerCheck, "admit", lambda *_: None)
    patch.setattr(ServerCheck, "admitted", lambda *_: None)


def a_batch_that_was_cut_short_is_left_as_it_is(patch: pytest.MonkeyPatch) -> None:
    """Nothing settles it."""
    patch.setattr(bridged, "recover", lambda *_: None)


def tables_are_not_asked(patch: pytest.MonkeyPatch) -> None:
    """The catalog's position of a table counts, and not that of its log."""
    patch.setattr(OwnPositions, "believed", lambda _, rel, *__: rel)


def nothing_is_undone(patch: pytest.MonkeyPatch) -> None:
    """A transaction that cannot be applied leaves its parts in the other tables."""
    patch.setattr(undo.BatchUndo, "undo", lambda *_, **__: None)


def copies_have_one_number(patch: pytest.MonkeyPatch) -> None:
    """Delta takes a later copy for the one that it has."""
    whole: Any = TableSync._stamp

    def stamp(self: TableSync, snapshot: Any) -> CommitStamp:
        given: CommitStamp = whole(self, snapshot)
        return replace(given, copy_number=1)

    patch.setattr(TableSync, "_stamp", stamp)


def commits_are_not_stamped(patch: pytest.MonkeyPatch) -> None:
    """Delta takes a batch that comes again for another one."""
    whole = MemoryLake.commit

    def commit(self: MemoryLake, path: str, change: Any, **options: Any) -> bool:
        return whole(self, path, change, **{**options, "app_id": "", "metadata": ""})

    patch.setattr(MemoryLake, "commit", commit)


def a_restore_is_not_seen(patch: pytest.MonkeyPatch) -> None:
    """A table is taken to have what its log has before a RESTORE, too."""

    def walk(self: History, version: int) -> Any:
        while (commit := self._find(version)) is not None:
            yield commit
            version -= 1

    patch.setattr(History, "_walk", walk)


def a_restore_under_the_stream_is_covered(patch: pytest.MonkeyPatch) -> None:
    """A commit on top of it is believed to have all that was there before."""
    patch.setattr(History, "before", lambda *_: None)


def late_commits_are_not_kept_out(patch: pytest.MonkeyPatch) -> None:
    """A Spark that did not answer may still commit."""
    patch.setattr(restore, "fence_table", lambda *_, **__: None)


def a_reboot_does_not_count(patch: pytest.MonkeyPatch) -> None:
    """After a power cut, what a log has is taken to be on the disk."""
    patch.setattr(catalog, "boot_id", lambda: "the same")


def nothing_is_flushed_before_it_is_recorded(patch: pytest.MonkeyPatch) -> None:
    """What is durable in the catalog may not be so in the lake."""
    patch.setattr(MemoryLake, "flush", lambda *_: None)


def a_later_flush_is_believed(patch: pytest.MonkeyPatch) -> None:
    """A flush that failed is made again, and that is all."""
    patch.setattr(catalog.Catalog, "begin_flush", lambda *_: None)


def log_entries_are_relied_on(patch: pytest.MonkeyPatch) -> None:
    """Also those of which a flush has failed."""
    patch.setattr(MemoryLake, "checkpoint", lambda *_: None)


def prepared_transactions_are_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """After a restart, nobody knows their files."""
    whole: Any = catalog.Catalog.finish_batch

    def finish(self: Any, name: str, end_lsn: Any, prepared: Any = (), ended: Any = (), **options: Any) -> None:
        del prepared
        whole(self, name, end_lsn, (), ended, **options)

    patch.setattr(catalog.Catalog, "finish_batch", finish)


def what_is_prepared_ends_without_its_changes(patch: pytest.MonkeyPatch) -> None:
    """A recovery, which has lost them, goes on with the tables."""
    patch.setattr(lost_prepared.LostPrepared, "changed", property(lambda _: [], lambda *_: None), raising=False)


def a_recovery_does_not_know_where_tables_are(patch: pytest.MonkeyPatch) -> None:
    """One that is put back after it is believed."""
    whole: Any = recover._Recovery._go_on

    def go_on(self: Any, owner: str, stream: Any, batch: Any) -> None:
        whole(self, owner, replace(stream, tables=[]), batch)

    patch.setattr(recover._Recovery, "_go_on", go_on)


def subtransactions_are_not_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """Their changes were streamed before."""

    def abort(self: TransactionAssembler, message: StreamAbort) -> None:
        del self, message

    patch.setattr(TransactionAssembler, "_stream_abort", abort)


PLANTED = (
    prepared_transactions_are_not_recorded,
    what_is_prepared_ends_without_its_changes,
    a_recovery_does_not_know_where_tables_are,
    subtransactions_are_not_rolled_back,
    log_entries_are_relied_on,
    a_later_flush_is_believed,
    late_commits_are_not_kept_out,
    a_reboot_does_not_count,
    nothing_is_flushed_before_it_is_recorded,
    timelines_do_not_count,
    the_streams_connection_is_not_checked,
    a_batch_that_was_cut_short_is_left_as_it_is,
    tables_are_not_asked,
    nothing_is_undone,
    copies_have_one_number,
    commits_are_not_stamped,
    a_restore_is_not_seen,
    a_restore_under_the_stream_is_covered,
)
