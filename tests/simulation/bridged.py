"""A subscription of which only the server, the wire and Spark are in memory: what decides is pgbridge's own code.

The catalog is a real file. Checking the server, settling a batch that was cut short, reading the tables' positions,
copying, committing, undoing and confirming are those of the daemon, in its order.
"""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import structlog

from pgbridge.bridge.apply import applier as applier_module, stream
from pgbridge.bridge.apply.applier import Applier
from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.apply.record import finish_batch
from pgbridge.bridge.apply.stream import StreamHistory, recover
from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes
from pgbridge.bridge.catalog import catalog as catalog_module, refresh, reset
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import RelRow, sync_name
from pgbridge.bridge.catalog.database import Database
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.lake import table_position
from pgbridge.bridge.lake.commit import restore
from pgbridge.bridge.lake.log.history import History
from pgbridge.bridge.receive.stream import walreceiver
from pgbridge.bridge.receive.stream.queue import BatchLimits, TransactionQueue
from pgbridge.bridge.receive.stream.walreceiver import StreamOptions, WalReceiver
from pgbridge.bridge.recovery import fence, manifest_table, recover as recovery
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import ApplyError, OutcomeUnknown, PublisherError, StateError, TargetError
from pgbridge.bridge.sync import server_check, tablesync
from pgbridge.bridge.sync.server_check import ServerCheck
from pgbridge.bridge.sync.tablesync import TableSync
from pgbridge.bridge.targets.target import target_schema
from pgbridge.bridge.track.progress import Progress
from pgbridge.bridge.track.spool import SpoolFolder, spool_folder
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.stream.transactions import divide
from pgbridge.protocol.values.types import resolve
from tests.simulation.alone import Pool, VirtualClock
from tests.simulation.lake import Manifests, MemoryLake, MemorySession
from tests.simulation.server import UNFIT, MemoryServer
from tests.simulation.walsender import Walsender, relation_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

    from pgbridge.bridge.batch.batch import TableChanges
    from pgbridge.bridge.lake.log.stamp import CommitStamp
    from pgbridge.protocol.stream.transactions import Item
    from tests.simulation.lake import Change

NAME = "sub"
_SCHEMA = target_schema([("n", pa.int64())])


class Killed(BaseException):
    """Stands for kill -9: no error handler may catch it."""


class _SharedFolders:
    def __init__(self, *_: object) -> None: ...

    def check(self, location: str) -> None: ...


class MemoryBridge:
    """A subscription, one life after the other.

    Args:
        server: The publisher.
        folder: Of the state.
        patch: Replaces what needs Spark or a server.
        batch_transactions: How many transactions a batch has.
    """

    def __init__(
        self, server: MemoryServer, folder: Path, patch: pytest.MonkeyPatch, *, batch_transactions: int = 2
    ) -> None:
        self.server, self.folder, self.batch_transactions = server, folder, batch_transactions
        self.lake = MemoryLake()
        self.session: Any = MemorySession(self.lake)
        self.subscription = Subscription(name=NAME, connection="", publications=("pub",), warehouse="lake")
        self.window: Callable[[], None] = lambda: None  # between the check and START_REPLICATION
        self.streaming: Callable[[], None] = lambda: None  # just after it
        self.chance = Random(0)
        self.full_in = 0  # the disk is full at the n-th transaction of the catalog; 0 for no such one
        self.fails_in = 0  # the n-th flush of a batch fails
        self.copy_fails_in = 0  # that of a copy
        self.arrives_in = 0  # what is under way arrives at the n-th fault point
        self.happens_in = 0  # so does this
        self.meanwhile: Callable[[], None] = lambda: None
        self._boots = self._incarnations = 0
        self._lives = False
        self._patch(patch)
        self._patch_clock(patch)

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        lake = self.lake

        def commits(_: Any, path: str, latest: int) -> Any:
            return lake.commits(path, latest)

        def commit_nothing(_: Any, path: str, __: Any, *stamps: CommitStamp) -> None:
            def commit() -> None:
                for stamp in stamps:
                    _commit(lake, path, lambda rows: rows, stamp)

            lake.send(commit)

        def history_of(_: Any, path: str, *__: object) -> History:
            return History(path, lambda latest: lake.commits(path, latest))

        class LocalTables:
            """Flushes tables of the lake."""

            def __init__(self, *_: object) -> None: ...

            def flush(_, paths: Any, begin: Callable[[], None] | None = None) -> None:  # noqa: N805 - self is the bridge
                """Have the tables on the disk; the error is that of a disk that fails. A copy does not begin."""
                if not (paths := list(paths)):
                    return
                if begin is not None:
                    begin()
                self.fails_in -= begin is not None
                self.copy_fails_in -= begin is None
                if (self.fails_in if begin is not None else self.copy_fails_in) == 0:
                    lake.fail_flush(paths)
                    raise StateError("a flush has failed", retry=True)
                lake.flush(paths)

        transaction = Database.transaction

        @contextmanager
        def until_full(database: Database, **options: Any) -> Iterator[Any]:
            with transaction(database, **options) as db:
                yield db
                self.full_in -= self._lives
                if not self.full_in and self._lives:
                    raise StateError("database or disk is full", retry=True)

        patch.setattr(Database, "transaction", until_full)
        pool = Pool(self.chance)
        for module in (applier_module, restore, tablesync, recovery, fence):
            patch.setattr(module, "ThreadPoolExecutor", lambda *_, **__: Pool(self.chance))
        patch.setattr(applier_module, "wait", pool.wait)
        for module in (catalog_module, manifest_table, recovery):
            patch.setattr(module, "boot_id", lambda: f"boot {self._boots}")

        def apply_table(session: Any, changes: TableChanges, **_: Any) -> None:
            if max(_numbers(changes)) >= UNFIT:
                raise TargetError(f"{changes.target.path} does not hold it")
            session.append(changes.target.path, _numbers(changes))

        patch.setattr(table_position, "log_commits", commits)
        patch.setattr(restore, "commit_nothing", commit_nothing)
        for module in (restore, tablesync):
            patch.setattr(module, "write_checkpoint", lambda _, path: lake.checkpoint(path))
        patch.setattr(restore, "written_schema", lambda _, path: True if path in lake.tables else None)
        patch.setattr(applier_module, "apply_table", apply_table)
        patch.setattr(applier_module, "LocalTables", LocalTables)
        patch.setattr(stream, "LocalTables", LocalTables)
        patch.setattr(tablesync, "LocalTables", LocalTables)
        patch.setattr(tablesync, "SharedFolders", _SharedFolders)
        patch.setattr(tablesync, "read_target_schema", lambda _, path, __: _SCHEMA if path in lake.tables else None)
        for module in (manifest_table, recovery):
            patch.setattr(module, "table_in", lambda _: Manifests(lake))
        for module in (recovery, fence, restore):
            patch.setattr(module, "history_of", history_of)
        patch.setattr(recovery, "place_of", lambda _, path: path)
        for name in ("Publisher", "ReplicationConnection"):
            patch.setattr(recovery, name, lambda *_, **__: self.server)
        patch.setattr(recovery, "told", nullcontext)
        patch.setattr(recovery, "CommitRows", mock.Mock(of=lambda *_: mock.Mock(last_numbers=lambda _: {})))
        for module in (server_check, walreceiver):
            patch.setattr(module, "ReplicationConnection", lambda *_, **__: self.server)
        patch.setattr(walreceiver, "copy_both", lambda *_: SimpleNamespace(send=lambda _: None))

    def _patch_clock(self, patch: pytest.MonkeyPatch) -> None:
        """Have time pass only when somebody looks or sleeps, and no thread begin."""
        clock = VirtualClock()

        def start(thread: threading.Thread) -> None:
            raise AssertionError(f"a thread: {thread.name}")

        patch.setattr(time, "time", clock)
        patch.setattr(time, "monotonic", clock)
        patch.setattr(time, "time_ns", lambda: round(clock() * 1e9))
        patch.setattr(time, "sleep", clock.sleep)
        patch.setattr(threading.Thread, "start", start)

    def cut_power(self) -> None:
        """The machine loses its power, and is started again."""
        self.lake.cut_power(self.chance)
        self._boots += 1

    def path(self, table: str) -> str:
        """The location of a table."""
        return f"/lake/public/{table}"

    def differences(self) -> dict[str, tuple[list[int], list[int]]]:
        """What tables lack, and what they have too much, where there is a difference."""
        tables = {}
        for table in self.server.tables:
            source, target = self.server.rows(table), self.lake.rows(self.path(table))
            if source != target:
                tables[table] = (source, target)
        return tables

    def live(self, point: str = "", number: int = 1) -> BaseException | None:
        """One life, until all is applied, an error ends it, or a fault point is reached for the n-th time.

        Returns:
            What ended it; None if all is applied. An error that asks for another try soon gets it.
        """
        passed = 0

        def reached(here: str) -> None:
            nonlocal passed
            self.arrives_in -= 1
            if not self.arrives_in:
                self.lake.arrive()
            self.happens_in -= 1
            if not self.happens_in:
                self.meanwhile()
            passed += here == point
            if here == point and passed == number:
                raise Killed

        faults.install(reached)
        error: BaseException | None = None
        catalog = Catalog(catalog_path(self.folder))
        self._lives = True
        try:
            for _ in range(4):
                try:
                    catalog.register(NAME, enabled=True)
                    self._stream(catalog)
                except Exception as caught:  # noqa: BLE001 - the daemon catches all
                    error = caught
                    if not getattr(caught, "retry", True):
                        break
                else:
                    error = None
                    break
        except Killed as killed:
            error = killed
        finally:
            self._lives = False
            faults.install(lambda _: None)
            catalog.close()
        return error

    def lose_state(self) -> None:
        """The state directory is gone."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def recover(self, point: str = "") -> BaseException | None:
        """`pgbridge recover`, in place of whatever state there is; until a fault point is reached, if one is given.

        Returns:
            What ended it; None if the state is made anew.
        """
        self.lose_state()

        def reached(here: str) -> None:
            if here == point:
                raise Killed

        faults.install(reached)
        try:
            with closing(Catalog(catalog_path(self.folder))) as catalog:
                catalog.register(NAME, enabled=True)
                for _ in recovery.recovered(self.session, catalog, self.subscription, alone=True):
                    pass
        except (Exception, Killed) as error:  # noqa: BLE001 - the command shows all
            return error
        finally:
            faults.install(lambda _: None)
        return None

    def skip(self, finish_lsn: Lsn) -> None:
        """`pgbridge skip`."""
        catalog = Catalog(catalog_path(self.folder))
        catalog.set_skip_lsn(NAME, finish_lsn)
        catalog.close()

    def tables_copied_after(self, lsn: int) -> set[str]:
        """The tables that have a transaction by their copy."""
        with closing(Catalog(catalog_path(self.folder))) as catalog:
            return {rel.name for rel in catalog.rels(NAME) if rel.lsn > lsn}

    def start_afresh(self) -> None:
        """What `pgbridge resync` does with the catalog, once the slot is dropped."""
        catalog = Catalog(catalog_path(self.folder))
        reset.start_afresh(catalog, NAME, {("public", table) for table in self.server.tables})
        catalog.close()
        self.server.confirmed_lsn = None

    def save_state(self) -> Callable[[], None]:
        """Copy the state directory; returns what puts it back."""
        saved = self.folder.with_name("state.saved")
        shutil.rmtree(saved, ignore_errors=True)
        shutil.copytree(self.folder, saved)

        def put_back() -> None:
            self.lose_state()
            shutil.copytree(saved, self.folder)

        return put_back

    # --- the daemon's steps, in its order -----------------------------------------------------------------------------

    def _stream(self, catalog: Catalog) -> None:
        log, server = structlog.get_logger(), self.server
        context = Context(self.subscription, self.session, catalog, log)
        record = partial(manifest_table.record, self.session, catalog, self.subscription)
        manifest_table.check_owned(self.session, catalog, self.subscription)
        check = ServerCheck(context, server)  # type: ignore[arg-type]
        history = check.look()
        recover(context, StreamHistory())
        sync = _Copies(context)
        if (
            catalog.remote_lsn(NAME) is None
            or catalog.rels(sync_name(NAME))
            or any(map(sync.needs_copy, catalog.rels(NAME)))
        ):
            server.await_prepared()
        snapshot = (server.end_lsn, server.timeline, {table: server.rows(table) for table in server.tables})
        if catalog.remote_lsn(NAME) is None:
            self._create_origin(catalog, sync)
        for rel in catalog.rels(sync_name(NAME)):  # which the tablesync worker would copy, and hand over
            refresh.take_up(catalog, NAME, 0, bring_in=(), follow=[rel], remove=[("public", rel.name)])
        for rel in catalog.rels(NAME):
            if sync.needs_copy(rel):
                sync.copy_rows(rel, *snapshot)
        check.check(server)  # type: ignore[arg-type]
        published = {
            ("public", name): SimpleNamespace(relid=relid, primary_key=(), cut_identity=frozenset(), columns=())
            for name, relid in relation_ids(server.tables).items()
        }
        subscribed = sync.follow(published, server, history)  # type: ignore[arg-type]
        start_lsn = catalog.remote_lsn(NAME)
        assert start_lsn is not None
        manifest_table.record_all(self.session, catalog, self.subscription)
        self.window()
        check.admit(server)  # type: ignore[arg-type]
        self.streaming()
        items = self._received(catalog, start_lsn)
        check.admitted()
        manifest_table.check_owned(self.session, catalog, self.subscription)
        applier = Applier(context)
        batcher = Batcher(NAME, Routes(subscribed), lambda types: [resolve(*each) for each in types])
        singly = catalog.skip_lsn(NAME) is not None or catalog.last_error(NAME) is not None
        size = 1 if singly else self.batch_transactions
        while items:
            here, items = divide(items, size)
            start_lsn = self._apply(here, start_lsn, batcher, applier, catalog, check)
            if not applier.holds:
                record()
                server.confirmed_lsn = start_lsn
        check.certify()
        if applier.holds and (released_lsn := applier.release(server.end_lsn, start_lsn)) is not None:
            record()
            server.confirmed_lsn = released_lsn
        if not applier.holds and catalog.advance_origin(NAME, server.end_lsn):
            record()
            server.confirmed_lsn = server.end_lsn

    def _received(self, catalog: Catalog, start_lsn: Lsn) -> list[Item]:
        """What the receiver hands over of the server's messages, by its own steps but without its thread.

        All changes of what is in progress go to spool files.
        """
        queue = TransactionQueue(1 << 30)
        spools = SpoolFolder(spool_folder(catalog.state_dir, NAME), [row.file for row in catalog.prepared(NAME)])
        options = StreamOptions(NAME, start_lsn, {"proto_version": 4, "publication_names": ["pub"]}, memory_bytes=0)
        receiver = WalReceiver("", options, queue, Progress(start_lsn), spools, application_name=NAME)
        for segment in Walsender(self.server.tables).segments(self.server.stream(start_lsn)):
            receiver._assemble(MessageArray.of(segment))
            receiver._limit_memory()
        items: list[Item] = []
        while taken := queue.take(BatchLimits(1 << 30, 1 << 40, 0.0), 0.0):
            items += taken
        return items

    def _create_origin(self, catalog: Catalog, sync: _Copies) -> None:
        """As `Start` does."""
        server = self.server
        sync.check_new("7")
        row = catalog.subscription(NAME)
        self._incarnations += 1
        incarnation = (row.incarnation if row is not None else None) or f"i{self._incarnations}"
        made = {"slot_name": NAME, "system_identifier": "7", "incarnation": incarnation}
        catalog.set_slot(NAME, slot_state="creating", **made)
        sync.begin_another_life("7")
        server.confirmed_lsn = server.end_lsn
        rels = {rel.name: rel for rel in catalog.rels(NAME)}
        new = [RelRow("public", t, "i", INVALID, self.path(t)) for t in server.tables if t not in rels]
        faults.reach("slot_created")
        catalog.create_origin(NAME, server.end_lsn, incarnation, new, server.timeline)

    def _apply(
        self,
        items: list[Item],
        start_lsn: Lsn,
        batcher: Batcher,
        applier: Applier,
        catalog: Catalog,
        check: ServerCheck,
    ) -> Lsn:
        """Apply a batch, or skip its only transaction; divide it if it fails. Returns its end."""
        batch, skip_lsn = batcher.form(items, start_lsn), catalog.skip_lsn(NAME)
        check.certify()
        manifest_table.record(self.session, catalog, self.subscription)
        if skip_lsn == batch.finish_lsn and batch.committed:
            if applier.bring_back():
                raise PublisherError("the stream has to begin again", retry=True)
            finish_batch(catalog, NAME, [batch], skip_lsn)
            return batch.end_lsn
        try:
            applier.apply(batch)
        except OutcomeUnknown:
            raise
        except ApplyError as error:
            if catalog.batch(NAME) is not None:
                raise
            if batch.transactions == 1:
                catalog.record_error(NAME, error.message, counter=None, finish_lsn=error.context.finish_lsn)
                raise
            batcher.rewind(batch)
            while items:
                here, items = divide(items, 1)
                start_lsn = self._apply(here, start_lsn, batcher, applier, catalog, check)
        faults.reach("before_confirm")
        return batch.end_lsn


class _Copies(TableSync):
    """Copies rows from memory, as `TableSync` copies them from a server."""

    def copy_rows(self, rel: RelRow, lsn: Lsn, timeline: int, rows: dict[str, list[int]]) -> None:
        """Replace a table's rows by those of a snapshot."""
        stamp = self._stamp(SimpleNamespace(consistent_point=lsn, timeline=timeline))  # type: ignore[arg-type]
        self._catalog.put_rel(NAME, rel := replace(rel, state="d"))
        lake: MemoryLake = self._spark.lake  # type: ignore[attr-defined]
        existed = rel.path in lake.tables
        lake.send(lambda: _commit(lake, rel.path, lambda _: rows[rel.name], stamp))
        self._make_durable(rel.path, stamp, existed=existed)
        faults.reach("table_copied")
        self._catalog.put_rel(NAME, replace(rel, state="f", lsn=lsn, position=lsn, timeline=timeline))


def _commit(lake: MemoryLake, path: str, change: Change, stamp: CommitStamp) -> None:
    """Commit with a stamp."""
    lake.commit(path, change, app_id=stamp.txn_app_id_in_delta, version=stamp.txn_version, metadata=stamp.user_metadata)


def _numbers(changes: TableChanges) -> list[int]:
    assert isinstance(changes.changes, pa.Table)
    numbers: list[int] = changes.changes["new_0"].to_pylist()
    return numbers
