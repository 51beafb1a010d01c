"""A subscription of which only the server, the wire and Spark are in memory: what decides is pgbridge's own code.

The catalog is a real file. Checking the server, settling a batch that was cut short, reading the tables' positions,
copying, committing, undoing and confirming are those of the daemon, in its order; so is what a tablesync worker does
beside the stream, and its hand-over.
"""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import closing, contextmanager, nullcontext
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import structlog
from py4j.protocol import Py4JError

from pgbridge.bridge.apply import applier as applier_module, stream
from pgbridge.bridge.apply.applier import Applier
from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.apply.record import finish_batch
from pgbridge.bridge.apply.stream import StreamHistory, recover
from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes
from pgbridge.bridge.catalog import catalog as catalog_module, refresh, reset
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import sync_name
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
from pgbridge.bridge.spark import session
from pgbridge.bridge.sync import added_tables, server_check, start as start_module, tablesync, tablesync_worker
from pgbridge.bridge.sync.added_tables import AddedTables
from pgbridge.bridge.sync.refresh import Refresh
from pgbridge.bridge.sync.server_check import ServerCheck
from pgbridge.bridge.sync.start import Start
from pgbridge.bridge.targets.target import target_schema
from pgbridge.bridge.track.progress import Progress
from pgbridge.bridge.track.spool import SpoolFolder, spool_folder
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.stream.transactions import divide
from pgbridge.protocol.values.types import resolve
from tests.simulation.alone import Pool, VirtualClock
from tests.simulation.lake import Manifests, MemoryLake, MemorySession
from tests.simulation.server import SLOT_NAME, UNFIT, MemoryServer
from tests.simulation.tablesync import Copies, Paused, SteppedWorker, commit, published
from tests.simulation.walsender import Walsender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

    from pgbridge.bridge.batch.batch import TableChanges
    from pgbridge.bridge.lake.log.stamp import CommitStamp
    from pgbridge.protocol.stream.transactions import Item

NAME = SLOT_NAME
_SCHEMA = target_schema([("n", pa.int64())])


class Killed(BaseException):
    """Stands for kill -9: no error handler may catch it."""


ANY = "any"
"""Whichever fault point is reached."""
_MOST_ATTEMPTS = 40
"""Of one life: after so many, tables that are added are up to the stream, or cannot be."""


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
        self.subscription = Subscription(
            name=NAME, connection="", publications=("pub",), warehouse="lake", two_phase=True
        )
        self.window: Callable[[], None] = lambda: None  # between the check and START_REPLICATION
        self.streaming: Callable[[], None] = lambda: None  # just after it
        self.chance = Random(0)
        self.full_in = 0  # the disk is full at the n-th transaction of the catalog; 0 for no such one
        self.fails_in = 0  # the n-th flush of a batch fails
        self.copy_fails_in = 0  # that of a copy
        self.arrives_in = 0  # what is under way arrives at the n-th fault point
        self.happens_in = 0  # so does this
        self.meanwhile: Callable[[], None] = lambda: None
        self.failed_in = NAME  # what the last error of a life is of: the subscription, or its tablesync worker
        self._boots = self._identifiers = 0
        self._lives = False
        self._patch(patch)
        self._patch_added(patch)
        self._patch_clock(patch)

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        lake = self.lake

        def commits(_: Any, path: str, latest: int) -> Any:
            return lake.commits(path, latest)

        def commit_nothing(_: Any, path: str, __: Any, *stamps: CommitStamp) -> None:
            def commit_stamps() -> None:
                for stamp in stamps:
                    commit(lake, path, lambda rows: rows, stamp)

            lake.send(commit_stamps)

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

    def _patch_added(self, patch: pytest.MonkeyPatch) -> None:
        """Have a tablesync worker go on when the subscription's stream lets it."""

        class Worker(SteppedWorker):
            server = self.server

        def identifier() -> Any:
            self._identifiers += 1
            return SimpleNamespace(hex=f"{self._identifiers:012x}")

        def lost(error: BaseException | None = None) -> str | None:
            return "it is lost" if isinstance(error, Py4JError | OutcomeUnknown) else None

        patch.setattr(added_tables, "TableSyncWorker", Worker)
        patch.setattr(tablesync_worker, "TableSync", Copies)
        patch.setattr(tablesync_worker, "stream", self._stream)
        patch.setattr(start_module, "warn_without_identity", lambda *_: None)
        patch.setattr(start_module, "uuid", SimpleNamespace(uuid4=identifier))
        patch.setattr(session, "fork", lambda _: MemorySession(self.lake))
        patch.setattr(session, "interrupt", lambda _: None)
        patch.setattr(session, "driver_of", lambda _: SimpleNamespace(lost=lost))

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
        """One life, until all is applied, an error ends it, or a fault point, or ANY, is reached for the n-th time.

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
            passed += point in {here, ANY}
            if point in {here, ANY} and passed == number:
                raise Killed

        faults.install(reached)
        error: BaseException | None = None
        catalog = Catalog(catalog_path(self.folder))
        log = structlog.get_logger()
        added = AddedTables(self.subscription, self.session, catalog, log)
        self._lives, self.failed_in = True, NAME
        try:
            for _ in range(4):
                try:
                    catalog.register(NAME, enabled=True)
                    self._run(catalog, added)
                except Exception as caught:  # noqa: BLE001 - the daemon catches all
                    error = caught
                    if not getattr(caught, "retry", True):
                        break
                else:
                    error = None
                    break
            added.stop()
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

    def skip(self, finish_lsn: Lsn) -> set[str]:
        """`pgbridge skip`; returns the tables that the transaction would have come to by the stream that has failed."""
        with closing(Catalog(catalog_path(self.folder))) as catalog:
            catalog.set_skip_lsn(self.failed_in, finish_lsn)
            return {rel.name for rel in catalog.rels(self.failed_in) if rel.lsn <= finish_lsn}

    def resync(self, table: str) -> None:
        """`pgbridge refresh --resync`."""
        with closing(Catalog(catalog_path(self.folder))) as catalog:
            refresh.ask(catalog, NAME, [("public", table)], copy_data=True)

    def start_afresh(self) -> None:
        """What `pgbridge resync` does with the catalog, once the slot is dropped."""
        catalog = Catalog(catalog_path(self.folder))
        reset.start_afresh(catalog, NAME, {("public", table) for table in self.server.tables})
        catalog.close()
        self.server.drop_slots()

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

    def _run(self, catalog: Catalog, added: AddedTables) -> None:
        """Attempt after attempt, until nothing is left to do."""
        for _ in range(_MOST_ATTEMPTS):
            if not self._attempt(catalog, added):
                return
        worker: Any = added._worker
        if worker is None or worker.failure is None:
            raise AssertionError("tables are not handed over")
        self.failed_in = sync_name(NAME)
        raise worker.failure

    def _attempt(self, catalog: Catalog, added: AddedTables) -> bool:
        log, server = structlog.get_logger(), self.server
        context = Context(self.subscription, self.session, catalog, log)
        manifest_table.check_owned(self.session, catalog, self.subscription)
        check = ServerCheck(context, server)  # type: ignore[arg-type]
        history = check.look()
        recover(context, StreamHistory())
        requests, sync = added.requests(), Copies(context)
        tables: Any = published(server).tables
        publisher: Any = server
        if requests:
            sync.record()
            added.forget_worker()
            Refresh(NAME, catalog, sync, log).take_up(requests, tables, publisher)
        added.take_over(threading.Event(), check.look)
        Start(context, publisher, sync, tables, check, lambda: published(server)).run()
        subscribed = sync.follow(tables, publisher, history)
        self._stream(context, None, subscribed, None, check=check, control=_Control(added, self.chance))
        worker: Any = added._worker
        if worker is not None and self.chance.random() < 0.6:  # else the stream goes on alone, and is ahead of it
            worker.thread.join()
        return worker is not None or bool(server.stream(NAME, catalog.remote_lsn(NAME) or INVALID))

    def _stream(
        self, context: Context, _: object, subscribed: Any, __: object, *, check: ServerCheck, control: Any
    ) -> bool:
        """Until all that the server has is applied, or `control` ends it: the subscription's, or its worker's.

        Raises:
            Paused: All is applied, and the worker would wait.
        """
        name, catalog, server = context.name, context.catalog, self.server
        replication: Any = server
        slot_name, is_main = context.subscription.slot_name, name == NAME
        start_lsn = catalog.remote_lsn(name)
        assert start_lsn is not None
        manifest_table.record_all(self.session, catalog, context.subscription)
        if not is_main and self.chance.random() < 0.5:  # the subscription's stream goes on meanwhile
            raise Paused
        if is_main or self.chance.random() < 0.5:
            self.window()
        check.admit(replication)
        if is_main:
            self.streaming()
        end_lsn = server.end_lsn
        items = self._received(context, start_lsn)
        check.admitted()
        started_us = server.started_us()
        manifest_table.check_owned(self.session, catalog, context.subscription)
        applier, progress = Applier(context), Progress(start_lsn)
        batcher = Batcher(name, Routes(subscribed), lambda types: [resolve(*each) for each in types])
        singly = catalog.skip_lsn(name) is not None or catalog.last_error(name) is not None
        size = 1 if singly else self.batch_transactions

        def confirm(lsn: Lsn) -> None:
            manifest_table.record(self.session, catalog, context.subscription)
            if server.started_us() != started_us:
                raise PublisherError("the connection is lost", retry=True)
            server.confirm(slot_name, lsn)
            progress.durable(lsn)
            control.origin_advanced()

        while items:
            if not control.should_continue(progress):
                return False
            here, items = divide(items, size)
            start_lsn = self._apply(here, start_lsn, batcher, applier, context, check)
            if not applier.holds:
                confirm(start_lsn)
            if not is_main and self.chance.random() < 0.5:
                raise Paused
        check.certify()
        if applier.holds and (released_lsn := applier.release(end_lsn, start_lsn)) is not None:
            confirm(released_lsn)
        if not applier.holds and catalog.advance_origin(name, end_lsn):
            confirm(end_lsn)
        if control.should_continue(progress) and not is_main:
            raise Paused
        return False

    def _received(self, context: Context, start_lsn: Lsn) -> list[Item]:
        """What the receiver hands over of the server's messages, by its own steps but without its thread.

        All changes of what is in progress go to spool files.
        """
        name, catalog = context.name, context.catalog
        queue = TransactionQueue(1 << 30)
        spools = SpoolFolder(spool_folder(catalog.state_dir, name), [row.file for row in catalog.prepared(name)])
        options = StreamOptions(name, start_lsn, {"proto_version": 4, "publication_names": ["pub"]}, memory_bytes=0)
        receiver = WalReceiver("", options, queue, Progress(start_lsn), spools, application_name=name)
        sent = self.server.stream(context.subscription.slot_name, start_lsn)
        for segment in Walsender(self.server.tables).segments(sent):
            receiver._assemble(MessageArray.of(segment))
            receiver._limit_memory()
        items: list[Item] = []
        while taken := queue.take(BatchLimits(1 << 30, 1 << 40, 0.0), 0.0):
            items += taken
        return items

    def _apply(
        self,
        items: list[Item],
        start_lsn: Lsn,
        batcher: Batcher,
        applier: Applier,
        context: Context,
        check: ServerCheck,
    ) -> Lsn:
        """Apply a batch, or skip its only transaction; divide it if it fails. Returns its end."""
        name, catalog = context.name, context.catalog
        batch, skip_lsn = batcher.form(items, start_lsn), catalog.skip_lsn(name)
        check.certify()
        manifest_table.record(self.session, catalog, context.subscription)
        if skip_lsn == batch.finish_lsn and batch.committed:
            if applier.bring_back():
                raise PublisherError("the stream has to begin again", retry=True)
            finish_batch(catalog, name, [batch], skip_lsn)
            return batch.end_lsn
        try:
            applier.apply(batch)
        except OutcomeUnknown:
            raise
        except ApplyError as error:
            if catalog.batch(name) is not None:
                raise
            if batch.transactions == 1:
                catalog.record_error(name, error.message, counter=None, finish_lsn=error.context.finish_lsn)
                raise
            batcher.rewind(batch)
            while items:
                here, items = divide(items, 1)
                start_lsn = self._apply(here, start_lsn, batcher, applier, context, check)
        faults.reach("before_confirm")
        return batch.end_lsn


class _Control:
    """The subscription's control of its stream: beside it the tablesync worker goes on, now and then."""

    def __init__(self, added: AddedTables, chance: Random) -> None:
        self._added, self._chance = added, chance

    def should_continue(self, progress: Progress) -> bool:
        """Until added tables can join, or are to be copied."""
        del progress
        worker: Any = self._added._worker
        if worker is not None and self._chance.random() < 0.4:
            worker.thread.join()
        return not self._added.stream_should_end()

    def origin_advanced(self) -> None:
        """Nothing is counted."""


def _numbers(changes: TableChanges) -> list[int]:
    assert isinstance(changes.changes, pa.Table)
    numbers: list[int] = changes.changes["new_0"].to_pylist()
    return numbers
