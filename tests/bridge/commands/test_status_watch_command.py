"""`pgbridge status --watch` as a process: on a terminal, into a pipe, and what ends it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from pgbridge.bridge.catalog.lock import locked
from tests.fix_cli import TWO

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "pgbridge", "status", "--watch", "0.5"]
STYLE = re.compile(r"\x1b\[[0-9;]*m")
PATIENCE_S = 60.0
ON_ITS_TERMINAL = """
import fcntl, os, signal, sys, termios
for number in (signal.SIGINT, signal.SIGHUP):  # the tests may have been started with them ignored, as by nohup
    signal.signal(number, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C and Ctrl-Z are signals
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A pseudo-terminal, and the command on it."""

    def __init__(self, folder: Path, columns: int, lines: int) -> None:
        self._own, end = pty.openpty()
        self.resize(columns, lines)
        environment = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES", "NO_COLOR"}}
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_ITS_TERMINAL, *COMMAND, "--config", str(folder / "pgbridge.toml")],
            cwd=ROOT,
            stdin=end,
            stdout=end,
            stderr=end,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(end)
        self.text = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._own, keys)

    def read(self) -> bool:
        """Read what is there; False at the end."""
        if select.select([self._own], [], [], 0.05)[0]:
            try:
                self.text += os.read(self._own, 65_536).decode()
            except OSError:  # EIO: the process has ended
                return False
        return True

    def wait_for(self, text: str) -> str:
        """Wait until the screen or what is below it has a text; return what was written until then, and forget it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while text not in STYLE.sub("", self.text):
            assert self.read(), self.text
            assert time.monotonic() < deadline_s, self.text
        written, self.text = STYLE.sub("", self.text), ""
        return written

    def end(self) -> tuple[int, str]:
        """The exit code, and what was written before it."""
        while self.read():
            pass
        return self.process.wait(PATIENCE_S), STYLE.sub("", self.text)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._own)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pgbridge.toml").write_text(TWO)
    (tmp_path / "state").mkdir()
    return tmp_path


@pytest.fixture
def terminal(folder):
    with closing(Terminal(folder, 100, 20)) as opened:
        yield opened


def test_on_a_terminal(terminal, folder):
    """A daemon comes and goes, and Ctrl-C ends it in order."""
    terminal.wait_for("no daemon runs")
    terminal.wait_for("no daemon runs")  # it goes on by itself
    with locked(folder / "state"):
        terminal.wait_for("the daemon runs")
    terminal.wait_for("no daemon runs")
    terminal.type(b"\x03")
    terminal.type(b"\x03")  # somebody who is in a hurry
    code, text = terminal.end()
    assert code == 0
    left = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text).split()
    assert left[left.index("shop") :][:2] == ["shop", "stopped"]
    assert "\x1b[?1049h" not in text
    assert "Traceback" not in text


def test_a_dumb_terminal_gets_blocks(folder, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    own, end = pty.openpty()
    try:
        with subprocess.Popen([*COMMAND, "--config", str(folder / "pgbridge.toml")], cwd=ROOT, stdout=end) as process:
            os.close(end)
            text = os.read(own, 1000)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
        assert b"\x1b" not in text
    finally:
        os.close(own)


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [*COMMAND, *arguments, "--config", str(folder / "pgbridge.toml")]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(stream: IO[str] | None, count: int) -> list[str]:
    assert stream is not None
    return [stream.readline() for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_into_a_pipe(folder, number):
    with started(folder) as process:
        read = lines(process.stdout, 11)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    assert "no daemon runs" in read[0]
    assert [line.split()[:2] for line in read[3:5]] == [["shop", "stopped"], ["hr", "stopped"]]
    assert read[5] == "\n"
    assert "no daemon runs" in read[6]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", "".join(read))


def test_as_json_lines(folder):
    with started(folder, "--json") as process:
        read = [json.loads(line) for line in lines(process.stdout, 3)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    assert [list(one) for one in read] == [["time", "running", "subscriptions"]] * 3
    assert sorted(one["time"] for one in read) == [one["time"] for one in read]
    assert [one["name"] for one in read[0]["subscriptions"]] == ["shop", "hr"]


def test_a_reader_that_goes_away_ends_it(folder):
    with started(folder, "--json") as process:
        lines(process.stdout, 1)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE_S) == 1


def test_ctrl_c_does_not_wait_for_a_server_that_hangs(folder):
    """Neither for its answer, nor at the end of the process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (folder / "pgbridge.toml").write_text(TWO.replace("/nonexistent", f"127.0.0.1 port={port} connect_timeout=600"))
        with started(folder) as process:
            server.settimeout(PATIENCE_S)
            client, _ = server.accept()
            with client:
                process.send_signal(signal.SIGINT)
                _, error = process.communicate(timeout=PATIENCE_S)
                assert (process.returncode, error) == (0, "")


@pytest.mark.parametrize("arguments", [("--watch", "0.4"), ("--watch", "nan"), ("--watch", "inf"), ("5",)])
def test_wrong_seconds(two, arguments):
    code, out, err = two("status", *arguments)
    assert (code, out) == (2, "")
    assert "--watch" in err


def test_a_wrong_configuration_is_told_as_always(pgbridge):
    code, out, err = pgbridge("status", "--watch")
    assert (code, out) == (2, "")
    assert err.startswith("pgbridge: configuration file pgbridge.toml does not exist")
