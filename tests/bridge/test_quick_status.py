"""`status --json` is answered by a running daemon; everything else is left to the command."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from bridge.quick_status import SOCKET, answer, short_path
from bridge.status_socket import StatusSocket


@pytest.fixture
def folder(tmp_path):
    """A configuration whose state directory has a path that is too long for a socket's address."""
    state = tmp_path / ("long" * 30) / "state"
    state.mkdir(parents=True)
    (tmp_path / "pgbridge.toml").write_text(f'state_dir = "{state}"\n[subscription.x]\n')
    return tmp_path


@pytest.fixture
def config(folder):
    return str(folder / "pgbridge.toml")


def state_dir(folder):
    return folder / ("long" * 30) / "state"


def test_a_daemon_answers(folder, config):
    with StatusSocket(state_dir(folder), lambda: {"subscriptions": ["ü" * 100_000]}) as served:
        served.start()
        for arguments in (["status", "--json", "--config", config], ["status", "--config", config, "--json"]):
            text = answer(arguments)
            assert text is not None
            assert json.loads(text) == {"subscriptions": ["ü" * 100_000]}


def test_the_configuration_of_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with StatusSocket(state_dir(folder), dict) as served:
        served.start()
        assert answer(["status", "--json"]) == b"{}\n"


@pytest.mark.parametrize(
    "arguments",
    [[], ["status"], ["status", "--json", "x"], ["run"], ["status", "--json", "--config"], ["--json", "status"]],
)
def test_other_commands_are_not_answered(folder, monkeypatch, arguments):
    monkeypatch.chdir(folder)
    with StatusSocket(state_dir(folder), dict) as served:
        served.start()
        assert answer(arguments) is None


def test_no_daemon(folder, config):
    assert answer(["status", "--json", "--config", config]) is None
    assert answer(["status", "--json", "--config", str(folder / "none.toml")]) is None
    (folder / "pgbridge.toml").write_text("state_dir = [")
    assert answer(["status", "--json", "--config", config]) is None
    (folder / "pgbridge.toml").write_bytes(b"\xff")
    assert answer(["status", "--json", "--config", config]) is None


def test_an_answer_that_is_cut_off_is_none(folder, config):
    """The daemon was killed while it answered."""
    with socket.socket(socket.AF_UNIX) as listener, short_path(state_dir(folder)) as path:
        listener.bind(path)
        listener.listen()

        def cut() -> None:
            with closing(listener.accept()[0]) as reader:
                reader.sendall(b'{"subscriptions":')

        thread = threading.Thread(target=cut)
        thread.start()
        assert answer(["status", "--json", "--config", config]) is None
        thread.join()


def test_a_socket_that_a_killed_daemon_left(folder, config):
    with socket.socket(socket.AF_UNIX) as listener, short_path(state_dir(folder)) as path:
        listener.bind(path)
    assert (state_dir(folder) / SOCKET).exists()
    assert answer(["status", "--json", "--config", config]) is None
    with StatusSocket(state_dir(folder), dict) as served:
        served.start()
        assert answer(["status", "--json", "--config", config]) == b"{}\n"


def test_it_loads_next_to_nothing():
    """Scripts poll it, and each second of a poll counts on the machine of the primary."""
    code = "import sys; before = set(sys.modules); import bridge.__main__; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"typer", "rich", "pydantic", "psycopg", "structlog", "numpy", "pyarrow", "pyspark", "typing"}
