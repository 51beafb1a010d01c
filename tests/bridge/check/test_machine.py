"""Rules on this machine. Nothing is left behind in the folders that are tried.

Packages of the extra `connect` that are missing are named, with the command.
"""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from pgbridge.bridge.check import machine
from pgbridge.bridge.check.finding import Level
from pgbridge.bridge.check.machine import check_connect, check_http, check_ports, check_warehouse
from pgbridge.bridge.config.daemon_tables import Http
from pgbridge.bridge.runtime import process
from pgbridge.bridge.spark.session import driver_for


class Usage(NamedTuple):
    """As of shutil.disk_usage."""

    total: int
    used: int
    free: int


def test_memory():
    assert machine.check_memory(1 << 30, 2 << 30).level is Level.PASS
    assert machine.check_memory(2 << 30, 1 << 30).level is Level.WARNING
    assert machine.check_memory(2 << 30, None).level is Level.PASS
    passed = machine.check_memory(3 << 30, 9 << 30, 128 << 20)
    assert passed.message == "pgbridge may use 3072 MB (for rows of up to 128 MB), and 9216 MB are available"


@pytest.mark.parametrize(
    ("limit", "subscriptions", "level"),
    [(1024, 1, Level.PASS), (1024, 200, Level.WARNING), (65536, 200, Level.PASS), (None, 10_000, Level.PASS)],
)
def test_file_descriptors(monkeypatch, limit, subscriptions, level):
    monkeypatch.setattr(process, "limit", lambda: limit)
    found = machine.check_descriptors(subscriptions)
    assert found.level is level
    assert (found.statement == "ulimit -Hn 2512") is (level is Level.WARNING)


def test_a_folder_that_does_not_exist_is_tried_where_it_would_be_made(tmp_path):
    assert machine.writes(tmp_path / "a" / "b") is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written():
    """/proc takes no files, not even root's."""
    folder = Path("/proc/pgbridge")
    assert "/proc cannot be written" in (machine.writes(folder) or "")
    assert machine.check_warehouse(folder, "x").level is Level.FAILURE
    assert [found.level for found in machine.check_state_dir(folder)] == [Level.FAILURE]


def test_a_warehouse_elsewhere_is_left_to_spark():
    found = machine.check_warehouse(None, "s3a://lake")
    assert (found.level, "Spark alone can tell" in found.message) == (Level.PASS, True)


@pytest.mark.parametrize(
    ("free", "level"), [(50 << 30, Level.PASS), (1 << 30, Level.WARNING), (1 << 20, Level.FAILURE)]
)
def test_room_on_the_disk(monkeypatch, tmp_path, free, level):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 << 30, 0, free))
    state, disk = machine.check_state_dir(tmp_path / "state")
    assert (state.level, disk.level) == (Level.PASS, level)


def test_a_password_in_a_file_that_others_can_read(tmp_path):
    file = tmp_path / "pgbridge.toml"
    file.write_text("")
    file.chmod(0o644)
    (found,) = machine.check_secrets(file, "shop", ["connection"])
    assert found.statement == f"chmod 600 {file}"
    assert list(machine.check_secrets(file, "shop", [])) == []
    for mode, count in [(0o640, 1), (0o604, 1), (0o600, 0), (0o611, 0)]:
        file.chmod(mode)
        assert len(list(machine.check_secrets(file, "shop", ["connection"]))) == count, oct(mode)


def test_the_command_against_it_is_quoted(tmp_path):
    file = tmp_path / "it's mine.toml"
    file.write_text("")
    file.chmod(0o644)
    (found,) = machine.check_secrets(file, "shop", ["connection", "filter_server"])
    assert shlex.split(found.statement) == ["chmod", "600", str(file)]
    subprocess.run(["sh", "-c", found.statement], check=True)
    assert list(machine.check_secrets(file, "shop", ["connection"])) == []
    assert 'in connection and filter_server of subscription "shop"' in found.message


def test_no_file(tmp_path):
    assert list(machine.check_secrets(tmp_path / "none", "shop", ["connection"])) == []


def test_a_state_directory_that_everybody_can_enter(tmp_path):
    """An earlier version made it with the umask's mode."""
    folder = tmp_path / "my state"
    folder.mkdir(mode=0o755)
    state, _ = machine.check_state_dir(folder)
    assert (state.level, state.statement) == (Level.WARNING, f"chmod -R o= '{folder}'")
    subprocess.run(["sh", "-c", state.statement], check=True)
    state, _ = machine.check_state_dir(folder)
    assert state.level is Level.PASS


@pytest.mark.parametrize(
    ("master", "conf", "environment", "level", "said"),
    [
        ("local[2]", {}, {}, Level.PASS, "loopback only"),
        ("local[2]", {"spark.driver.host": "127.0.0.1"}, {}, Level.PASS, "loopback only"),
        (
            "local[2]",
            {"spark.driver.host": "10.1.2.3"},
            {},
            Level.WARNING,
            "listens on 10.1.2.3, and asks for no secret",
        ),
        ("local[2]", {}, {"SPARK_LOCAL_IP": "10.1.2.3"}, Level.WARNING, "listens on 10.1.2.3"),
        ("spark://host:7077", {"spark.ui.enabled": True}, {}, Level.WARNING, "no secret (its UI never does)"),
        ("yarn", {"spark.authenticate": "true"}, {}, Level.PASS, "and asks for its secret"),
    ],
)
def test_ports(master, conf, environment, level, said):
    found = check_ports(driver_for(master), conf, environment)
    assert (found.level, said in found.message) == (level, True)


def test_below_a_folder_that_may_not_be_entered(tmp_path, monkeypatch):
    """B5: `exists` raises there, which is no reason to end."""
    closed = tmp_path / "closed"
    exists = Path.exists

    def refused(path: Path) -> bool:
        if closed in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", refused)
    assert check_warehouse(closed / "lake", str(closed / "lake")).level is Level.FAILURE


def test_the_page(tmp_path):
    """What the daemon would refuse: a port that is taken, and a token that others can read."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert check_http(Http(listen=listen), running=False).level is Level.FAILURE
        assert check_http(Http(listen=listen), running=True).level is Level.PASS
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o644)
    found = check_http(Http(listen=listen, token_file=str(token)), running=True)
    assert (found.level, found.remedy) == (Level.FAILURE, f"chmod 600 {token}")


def test_all_are_there():
    assert check_connect(find_spec).level is Level.PASS


def test_what_is_missing_is_named():
    def find(name: str) -> object | None:
        if name == "google.rpc":
            raise ModuleNotFoundError("google")
        return None if name == "grpc" else name

    found = check_connect(find)
    assert found.level is Level.FAILURE
    assert found.message == "packages are not installed: grpcio, googleapis-common-protos"
    assert re.fullmatch(r"pip install( '[a-z-]+>=[\d.]+')+", found.statement)
    assert "'grpcio>=" in found.statement
