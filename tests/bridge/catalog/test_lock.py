"""One daemon to a state directory, and never a lock that outlives its process."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.catalog import lock
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.lock import is_running, locked, spark_lock
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.track.spool import SpoolFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HOLDER = """
import subprocess, sys
from pathlib import Path
from pgbridge.bridge.catalog.lock import locked
with locked(Path(sys.argv[1])):
    child = subprocess.Popen(["sleep", "60"])
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(state_dir: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that holds the lock and has a child of its own, as a daemon has its JVM."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(state_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    child = 0
    try:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        yield process, child
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.communicate()


@pytest.fixture
def impatient(monkeypatch):
    """A refusal does not wait."""
    monkeypatch.setattr(lock, "_PATIENCE_S", 0.0)


def test_makes_the_directory(tmp_path):
    state_dir = tmp_path / "a" / "b"
    assert not is_running(state_dir)
    with locked(state_dir):
        assert is_running(state_dir)
    assert not is_running(state_dir)


def test_looking_leaves_nothing_behind(tmp_path):
    assert not is_running(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("impatient")
def test_a_second_daemon_is_started(tmp_path):
    """With the first one's process id; and the first goes on holding it."""
    for _ in range(2):
        with locked(tmp_path):
            with pytest.raises(StateError) as refused, locked(tmp_path):
                pytest.fail("two hold the lock")
            assert f"another pgbridge daemon (process {os.getpid()}) works on {tmp_path}" in str(refused.value)
            assert "HINT:" in str(refused.value)
            assert not refused.value.retry
            assert is_running(tmp_path)


@pytest.mark.usefixtures("impatient")
def test_lock_of_a_killed_process_is_free(tmp_path):
    """At once, although the killed daemon's children live on; before that, its id is in the refusal."""
    with holder(tmp_path) as (process, child):
        with pytest.raises(StateError, match=rf"\(process {process.pid}\)"), locked(tmp_path):
            pytest.fail("two hold the lock")
        process.kill()
        process.wait()
        os.kill(child, 0)
        assert not is_running(tmp_path)
        with locked(tmp_path):
            assert is_running(tmp_path)


def test_released_by_an_error(tmp_path):
    def fail() -> None:
        with locked(tmp_path):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not is_running(tmp_path)


def test_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    state_dir = tmp_path / "file" / "state"
    with pytest.raises(StateError, match=f"state_dir {state_dir} cannot be written"), locked(state_dir):
        pytest.fail("there is no such directory")


def test_those_who_ask_do_not_keep_a_daemon_from_starting(tmp_path):
    """`pgbridge status` in a loop, from several shells: none takes another for a daemon, and the daemon starts."""
    with locked(tmp_path):
        pass  # so that the file is there
    with (tmp_path / "daemon.lock").open("rb") as asked:
        fcntl.flock(asked, fcntl.LOCK_SH)  # as another asker holds it for a moment
        assert not is_running(tmp_path)
    done = threading.Event()
    answers: list[bool] = []

    def ask() -> None:
        while not done.is_set():
            answers.append(is_running(tmp_path))

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    time.sleep(0.05)
    assert not any(answers)
    try:
        for _ in range(20):
            with locked(tmp_path):
                assert is_running(tmp_path)
    finally:
        done.set()
        for asker in askers:
            asker.join()


def test_what_it_makes_is_private(tmp_path):
    """Error messages have values, spool files and skipped transactions have rows."""
    state_dir = tmp_path / "state"
    with locked(state_dir), closing(Catalog(catalog_path(state_dir))):
        SpoolFolder(state_dir / "spool" / "shop")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (state_dir, *state_dir.glob("catalog*"))}
        assert modes.pop("state") == 0o700
        assert set(modes.values()) == {0o600}
        assert stat.S_IMODE((state_dir / "spool" / "shop").stat().st_mode) == 0o700


def test_the_spark_of_a_killed_daemon_is_waited_for(tmp_path, monkeypatch, capsys):
    """It has inherited the lock, and keeps it until it ends; the log says once what is waited for."""
    monkeypatch.setattr(lock, "_PATIENCE_S", 0.1)
    with spark_lock(tmp_path) as descriptor:
        spark = subprocess.Popen(["sleep", "60"], pass_fds=(descriptor,))
    try:
        with pytest.raises(StateError, match="an earlier daemon still runs"), spark_lock(tmp_path, 0.5):
            pass
    finally:
        spark.kill()
        spark.wait()
    assert capsys.readouterr().out.count("waiting for the Spark of an earlier daemon to end") == 1
    with spark_lock(tmp_path, 0.1):
        pass
    assert capsys.readouterr().out == ""


def test_the_lock_of_spark_cannot_be_written(tmp_path):
    with pytest.raises(StateError, match="cannot be written"), spark_lock(tmp_path / "missing"):
        pass
