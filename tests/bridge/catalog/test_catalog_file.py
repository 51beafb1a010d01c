"""When a call has returned, its change is there, however the process ends and whoever else uses the file."""

from __future__ import annotations

import multiprocessing
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.catalog.catalog import Catalog
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, RelRow
from pgbridge.bridge.catalog.schema import SCHEMA_VERSION
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.protocol.lsn import Lsn
from tests.bridge.track.made_catalog import T1, T2, everything

if TYPE_CHECKING:
    from pathlib import Path


def test_reopening_sees_what_was_written(path):
    with closing(Catalog(path)) as catalog:
        catalog.register("shop", enabled=False)
        catalog.set_slot("shop", slot_name="shop", slot_state="creating", system_identifier="7123")
        catalog.create_origin("shop", Lsn(0x16B374D848), "abc", [T1, T2])
        catalog.set_enabled("shop", enabled=True)
        catalog.set_state("shop", "streaming", received_lsn=Lsn(0x16B374D900))
        catalog.begin_batch("shop", BatchIntent(Lsn(0x16B374D848), Lsn(0x16B374D8F0)))
        catalog.record_error("shop", "no", counter="apply", finish_lsn=Lsn(0x16B374D8E0))
        before = everything(catalog)
    with closing(Catalog(path)) as catalog:
        assert everything(catalog) == before


_KILLED = """
import os, signal, sys
from pathlib import Path
from pgbridge.bridge.catalog.catalog import Catalog
from pgbridge.bridge.catalog.catalog_rows import BatchIntent
from pgbridge.protocol.lsn import Lsn
catalog = Catalog(Path(sys.argv[1]))
catalog.register("shop", enabled=True)
catalog.create_origin("shop", Lsn(0x100), "abc", [])
catalog.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
catalog.finish_batch("shop", Lsn(0x150))
catalog.begin_batch("shop", BatchIntent(Lsn(0x150), Lsn(0x190)))
with catalog._transaction() as db:
    db.execute("UPDATE origin SET remote_lsn = 999")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_process_leaves_what_its_calls_returned_from(path):
    """And nothing of the call it was killed in."""
    process = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False)
    assert process.returncode == -9
    with closing(Catalog(path)) as catalog:
        assert catalog.remote_lsn("shop") == 0x150
        assert catalog.batch("shop") == BatchIntent(Lsn(0x150), Lsn(0x190))


def test_survives_a_power_cut(catalog):
    """SQLite promises that for a WAL file only with synchronous = FULL."""
    assert catalog._database.connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert catalog._database.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_later_schema_is_refused(path):
    """And left as it is: the later version may still need it."""
    with closing(Catalog(path)) as catalog:
        catalog.register("shop", enabled=True)
        catalog._database.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StateError, match=rf"later version of pgbridge \(schema {SCHEMA_VERSION + 1}\)"):
        Catalog(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)
        assert db.execute("SELECT name FROM subscription").fetchall() == [("shop",)]


def test_file_that_is_no_catalog(path):
    path.parent.mkdir()
    path.write_text("not a database, but longer than SQLite's header of a hundred bytes " * 20)
    with pytest.raises(StateError, match=r"catalog\.sqlite is damaged: file is not a database\nHINT:  "):
        Catalog(path)


@pytest.mark.parametrize("place", ["file/state/catalog.sqlite", "folder"])
def test_place_that_cannot_be_written(tmp_path, place):
    """Below a file, and in the place of a folder. Permissions would not do: root may run the tests."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StateError, match=r"cannot be opened: .*\nHINT:  state_dir must be a folder"):
        Catalog(tmp_path / place)


def _count_errors(path: Path, barrier, count: int) -> None:
    """In a process of its own: open the catalog with all the others, and count."""
    barrier.wait()
    with closing(Catalog(path)) as catalog:
        catalog.register("shop", enabled=True)
        for n in range(count):
            catalog.record_error("shop", f"error {n}", counter="apply")


def test_processes_at_once(path):
    """They make the file together, and every call of each counts: the daemon and the commands share it."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_count_errors, args=(path, barrier, 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with closing(Catalog(path)) as catalog:
        row = catalog.subscription("shop")
        assert row is not None
        assert row.apply_error_count == 60


def test_threads_at_once(started):
    """One object, many threads: no call sees or rolls back another's transaction."""
    failed: list[Exception] = []

    def write(number: int) -> None:
        try:
            for n in range(40):
                started.record_error("shop", "no", counter="sync")
                started.set_state("shop", f"{number}", received_lsn=Lsn(n))
                if n % 10 == 0:
                    with pytest.raises(sqlite3.IntegrityError):
                        started.put_rel("shop", RelRow("public", "t1", "?", Lsn(0), ""))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failed.append(error)

    def read() -> None:
        try:
            for _ in range(150):
                assert started.subscription("shop") is not None
                assert started.rels("shop") == [T1, T2]
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failed.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)] + [threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert started.subscription("shop").sync_error_count == 120


def test_writer_waits_for_another_process(started, path):
    """A command that holds the write lock for a moment is waited for."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.1, other.execute, ["COMMIT"])
        timer.start()
        started.advance_origin("shop", Lsn(0x180))
        timer.join()
    assert started.remote_lsn("shop") == 0x180
