"""The demo's folder is taken only where that harms nobody, and its configuration file is one that loads.

A child process is started, watched, stopped and killed, and leaves nothing behind, on real processes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pgbridge.bridge.config import config
from pgbridge.bridge.demo import subscriber as module
from pgbridge.bridge.demo.subscriber import MARKER, Child, DemoFolder
from pgbridge.bridge.runtime.errors import BridgeError

CONNECTION = r"host='/tmp/a \'b\' \\c' port='5432' user='postgres' dbname='\"shop 🐘'"


def test_new_folder_is_made(tmp_path):
    place = DemoFolder(tmp_path / "some" / "folder")
    with place.taken():
        assert (place.directory / MARKER).exists()


def test_empty_folder_is_taken(tmp_path):
    with DemoFolder(tmp_path).taken():
        assert (tmp_path / MARKER).exists()


def test_folder_of_somebody_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "precious").touch()
    with pytest.raises(BridgeError, match=r"is not the folder of an earlier demo\nHINT: .*--directory"):
        DemoFolder(tmp_path).taken().__enter__()
    assert (tmp_path / "lake" / "precious").exists()
    assert not (tmp_path / MARKER).exists()


def test_results_of_an_earlier_demo_are_replaced_and_nothing_else(tmp_path):
    place = DemoFolder(tmp_path)
    with place.taken():
        place.write_config(CONNECTION)
        for path in (place.lake / "shop" / "part.parquet", tmp_path / "state" / "catalog.sqlite", tmp_path / "own.txt"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        place.log.touch()
        place.proof.touch()
    with place.taken():
        assert sorted(path.name for path in tmp_path.iterdir()) == [MARKER, "own.txt"]


def test_two_demos_do_not_share_a_folder(tmp_path):
    with DemoFolder(tmp_path).taken():
        (tmp_path / "lake").mkdir()
        with pytest.raises(BridgeError, match="another demo runs in"):
            DemoFolder(tmp_path).taken().__enter__()
        assert (tmp_path / "lake").exists()


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BridgeError, match="cannot be used"):
        DemoFolder(tmp_path / "file" / "demo").taken().__enter__()


def test_scratch_goes_with_the_demo(tmp_path):
    place = DemoFolder(tmp_path)
    with place.taken():
        (tmp_path / "scratch" / "blockmgr").mkdir(parents=True)
    assert not (tmp_path / "scratch").exists()


def test_configuration_is_valid(tmp_path, monkeypatch):
    """It loads, keeps a connection string as it is, and has both publications; wherever the demo was started."""
    monkeypatch.chdir(tmp_path.parent)
    place = DemoFolder(tmp_path)
    assert DemoFolder(tmp_path.relative_to(tmp_path.parent)).directory == place.directory
    with place.taken():
        place.write_config(CONNECTION)
        settings = config.load(place.config_file)
    published = {name: subscription.publications for name, subscription in settings.subscription.items()}
    assert published == {"shop": ("shop_pub",), "vip": ("vip_pub",)}
    for name, subscription in settings.subscription.items():
        assert subscription.connection == CONNECTION
        assert subscription.warehouse == str(place.lake / name)
    assert settings.spark.master == "local[2]"
    assert settings.spark.conf["spark.local.dir"] == str(place.directory / "scratch")


def alive(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition, timeout_s: float = 20.0) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Have the child run a shell script in Python's place; it is told its arguments."""

    def be(script: str) -> Path:
        path: Path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{textwrap.dedent(script)}", encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))
        return path

    return be


PATIENT = """
    echo "started $@"
    sleep 300 &
    trap 'echo stopping; kill $!; exit {status}' TERM
    echo $! > {pidfile}.new
    mv {pidfile}.new {pidfile}
    wait
"""


def patient(program, tmp_path, status: int = 0) -> tuple[Child, int]:
    """A child that ends on SIGTERM only, and the id of its own child."""
    pidfile = tmp_path / "pid"
    program(PATIENT.format(pidfile=pidfile, status=status))
    made = Child(tmp_path / "c.toml", tmp_path / "log")
    assert eventually(pidfile.exists)
    return made, int(pidfile.read_text(encoding="utf-8"))


def test_runs_pgbridge_until_sigterm_and_logs(program, tmp_path):
    made, grandchild = patient(program, tmp_path)
    with made:
        assert made.status is None
        assert made.log_tail() == f"started -m pgbridge run --config {tmp_path}/c.toml"
        made.stop()
        assert made.log_tail().endswith("\nstopping")
    assert eventually(lambda: not alive(grandchild))


def test_end_with_an_error_is_told_with_the_log(program, tmp_path):
    made, _ = patient(program, tmp_path, 7)
    told = r"(?s)pgbridge run has ended, with status 7; .*log:\nstarted.*stopping"
    with made, pytest.raises(BridgeError, match=told):
        made.stop()
    with pytest.raises(BridgeError, match=told):
        made.check()


def test_one_that_does_not_end_is_an_error_with_the_log(program, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_STOP_S", 0.2)
    program("trap '' TERM; echo deaf; sleep 300")
    with Child(tmp_path / "c.toml", tmp_path / "log") as made:
        assert eventually(lambda: made.log_tail() == "deaf")
        with pytest.raises(BridgeError, match=r"(?s)still runs, as process \d+; .*deaf"):
            made.stop()
    assert not alive(made.pid)


def test_kill_ends_this_process_only_and_close_the_rest(program, tmp_path):
    made, grandchild = patient(program, tmp_path)
    made.kill()
    assert made.status == -signal.SIGKILL
    assert alive(grandchild)
    made.close()
    assert eventually(lambda: not alive(grandchild))
    made.close()


def test_nothing_survives_the_end_of_the_demo(program, tmp_path):
    """When the demo itself is killed, its child's group goes as well."""
    pidfile = tmp_path / "pid"
    path = program(PATIENT.format(pidfile=pidfile, status=0))
    code = f"""
        import sys, time
        from pathlib import Path
        from pgbridge.bridge.demo.subscriber import Child
        sys.executable = {str(path)!r}
        made = Child(Path("c.toml"), Path({str(tmp_path / "log")!r}))
        print(made.pid, flush=True)
        time.sleep(300)
    """
    python = str(Path(sys.exec_prefix) / "bin" / "python")
    with subprocess.Popen([python, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        pid = int(demo.stdout.readline())
        assert eventually(pidfile.exists)
        grandchild = int(pidfile.read_text(encoding="utf-8"))
        assert alive(pid)
        assert alive(grandchild)
        demo.send_signal(signal.SIGKILL)
    assert eventually(lambda: not alive(pid))
    assert eventually(lambda: not alive(grandchild))


def test_configuration_error_is_pgbridge_s_own(tmp_path):
    """The real command: it is found, and ends with the status of a configuration error."""
    with Child(tmp_path / "missing.toml", tmp_path / "log") as made:
        assert eventually(lambda: made.status == 2)
        assert "missing.toml does not exist" in made.log_tail()
