"""A private PostgreSQL server for the demo, the tests and the benchmarks.

It is not for data that must be kept: all data is deleted when the process that started the server ends, however it
ends. The server listens on a Unix socket (`trust`), in a folder that only its OS user and root can enter, and on
127.0.0.1 with a password.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

from psycopg.conninfo import make_conninfo

from pgbridge.bridge.demo.programs import Account, EmbeddedPostgresError, Programs
from pgbridge.bridge.runtime.threads import Closing

if TYPE_CHECKING:
    from collections.abc import Mapping

    Setting = str | int | bool

DEFAULT_SETTINGS: Final[Mapping[str, Setting]] = {
    "wal_level": "logical",
    # tests create many slots; a slot that is left behind must not make later tests fail
    "max_wal_senders": 40,
    "max_replication_slots": 40,
    "max_logical_replication_workers": 20,
    "max_worker_processes": 40,
    "max_prepared_transactions": 20,
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "log_line_prefix": "%m [%p] %b %q%u@%d ",
}
"""Settings instead of PostgreSQL's defaults; `EmbeddedPostgres(settings=...)` overrides them."""

StopMode = Literal["smart", "fast", "immediate"]
_SIGNALS: Final[Mapping[StopMode, signal.Signals]] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

_SOCKET_PATH_BYTES: Final = 107  # sockaddr_un.sun_path on Linux, less its NUL
_SHORT_FOLDERS: Final = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 # mkdtemp makes the folders in there
_POLL_S: Final = 0.02
_TAIL_LINES: Final = 20
_START_S = 60.0  # crash recovery included
_STOP_S = 60.0
_ESCALATE_S = 20.0  # an immediate shutdown kills what is left after 5 s (postmaster.c, SIGKILL_CHILDREN_AFTER_SECS)

# A shell that outlives us if we are killed: it stops the server and removes its folder.
_KEEPER: Final = """
read -r _ && exit 0
"$1" stop -s -m immediate -D "$2/data" >/dev/null 2>&1
rm -rf "$2"
"""


class EmbeddedPostgres(Closing):
    """One private server: made at the first `start()`, gone after `close()` or the end of a `with` block.

    The superuser is `postgres`, the encoding UTF8, the locale C.UTF-8.

    Args:
        bindir: A folder of PostgreSQL's programs; None for the installed package's.
        settings: Settings over `DEFAULT_SETTINGS`; a change takes effect at the next start.
        fsync: False is faster and survives a killed server, but not a crash of the machine.

    Attributes:
        version: The server's version, e.g. `18.6`.
    """

    host: Final = "127.0.0.1"
    user: Final = "postgres"

    def __init__(
        self, bindir: Path | None = None, *, settings: Mapping[str, Setting] | None = None, fsync: bool = True
    ) -> None:
        self.settings: dict[str, Setting] = {**DEFAULT_SETTINGS, "fsync": fsync, **(settings or {})}
        self.password = secrets.token_hex(12)
        self.port = 0
        self.programs = Programs.find(bindir)
        self.version = self.programs.run("postgres", "--version").split()[2]
        self._account = Account.choose()
        self._folder: Path | None = None
        self._postmaster: subprocess.Popen[bytes] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    @property
    def folder(self) -> Path:
        """The folder of data/, log and the socket; made by the first start.

        Raises:
            EmbeddedPostgresError: The server was never started, or is closed.
        """
        if self._folder is None:
            raise EmbeddedPostgresError("the server has no folder: it was never started, or is closed")
        return self._folder

    @property
    def datadir(self) -> Path:
        """The data directory (PGDATA)."""
        return self.folder / "data"

    @property
    def pid(self) -> int:
        """The postmaster's process id.

        Raises:
            EmbeddedPostgresError: The server does not run.
        """
        return self._running().pid

    def _running(self) -> subprocess.Popen[bytes]:
        if self._postmaster is None or self._postmaster.poll() is not None:
            raise EmbeddedPostgresError("the server does not run")
        return self._postmaster

    def conninfo(self, dbname: str = "postgres") -> str:
        """A libpq connection string through the Unix socket, the faster way for a walsender."""
        return make_conninfo(host=str(self.folder), port=self.port, user=self.user, dbname=dbname)

    def tcp_conninfo(self, dbname: str = "postgres") -> str:
        """A libpq connection string over TCP, for a proxy or what cannot use sockets; holds the password."""
        return make_conninfo(host=self.host, port=self.port, user=self.user, password=self.password, dbname=dbname)

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """Return the last lines of the server's log."""
        return _tail((self.folder / "log").read_bytes(), lines)

    def start(self) -> None:
        """Start the server, and make it before the first time; returns when it accepts connections.

        Raises:
            EmbeddedPostgresError: It runs already, cannot be made, or does not start; with its log's end. A server that
                could not be started the first time is closed.
        """
        if self._postmaster is not None and self._postmaster.poll() is None:
            raise EmbeddedPostgresError(f"the server already runs, as process {self.pid}")
        new = self._folder is None
        try:
            if new:
                self._make()
            self._start(new=new)
        except BaseException:
            if new:
                self.close()
            raise

    def _start(self, *, new: bool) -> None:
        deadline_s = time.monotonic() + _START_S
        log = self.folder / "log"
        while True:
            self._write_settings()
            seen_bytes = log.stat().st_size if log.exists() else 0
            problem = self._launch(log, deadline_s)
            if problem is None:
                return
            said = log.read_bytes()[seen_bytes:]
            if time.monotonic() < deadline_s:
                # after kill(): busy backends have not ended yet
                if b"pre-existing shared memory block" in said:
                    time.sleep(_POLL_S)
                    continue
                # another process took the port after it was chosen
                if new and b"Address already in use" in said:
                    self._choose_port()
                    continue
            raise EmbeddedPostgresError(f"PostgreSQL {self.version} {problem}; the end of its log:\n{_tail(said)}")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server in one of pg_ctl's modes and wait for its end; nothing to do when it does not run.

        A fast shutdown waits until each walsender's client has taken all WAL; after a minute an immediate one follows,
        which does not wait.
        """
        if self._postmaster is not None and self._postmaster.poll() is None:
            self._postmaster.send_signal(_SIGNALS[mode])
            try:
                self._postmaster.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._end(self._postmaster)
        self._postmaster = None

    @staticmethod
    def _end(postmaster: subprocess.Popen[bytes]) -> None:
        postmaster.send_signal(_SIGNALS["immediate"])
        try:
            postmaster.wait(_ESCALATE_S)
        except subprocess.TimeoutExpired:
            postmaster.kill()
            postmaster.wait()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start; port, password and data stay. Raises as `start()`."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill -9 the postmaster; its children end as soon as they notice, perhaps after this returns.

        Raises:
            EmbeddedPostgresError: The server does not run.
        """
        postmaster = self._running()
        postmaster.kill()
        postmaster.wait()
        self._postmaster = None

    def close(self) -> None:
        """Stop the server and remove its folder."""
        self.stop("immediate")
        if self._keeper is not None:
            self._keeper.communicate(b"done\n")
            self._keeper = None
        until_s = time.monotonic() + _ESCALATE_S
        while self._folder is not None:
            # the children of a killed postmaster may still write
            shutil.rmtree(self._folder, ignore_errors=True)
            if not self._folder.exists() or time.monotonic() > until_s:
                self._folder = None
            else:
                time.sleep(_POLL_S)

    def _make(self) -> None:
        """Make the folder, what removes it should we be killed, and the data directory."""
        self._choose_port()
        self._folder = folder = self._make_folder()
        self.programs = self.programs.for_account(self._account, folder)
        self._keeper = self._account.spawn(
            ["/bin/sh", "-c", _KEEPER, "pgbridge-keeper", self.programs.bindir / "pg_ctl", folder],
            stdin=subprocess.PIPE,
            output=subprocess.DEVNULL,
        )
        self._fill()

    def _fill(self) -> None:
        """Fill the data directory."""
        password_file = self.folder / "password"
        password_file.write_text(self.password, encoding="ascii")
        self._account.own(password_file)
        self.programs.run(
            "initdb",
            "--pgdata", self.datadir,
            "--username", self.user,
            "--pwfile", password_file,
            "--auth-local", "trust",
            "--auth-host", "scram-sha-256",
            "--encoding", "UTF8",
            "--locale", "C.UTF-8",
            "--no-sync",  # a data directory that is not complete is created again
        )  # fmt: skip
        password_file.unlink()
        with (self.datadir / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write("include 'pgbridge.conf'\n")

    def _make_folder(self) -> Path:
        """A new folder whose socket's path is short enough and that the server's user can reach."""
        longest = len(f"/pgbridge-pg-12345678/.s.PGSQL.{self.port}")
        for root in (Path(tempfile.gettempdir()).resolve(), *_SHORT_FOLDERS):
            if len(bytes(root)) + longest <= _SOCKET_PATH_BYTES and self._account.can_enter(root):
                folder = Path(tempfile.mkdtemp(prefix="pgbridge-pg-", dir=root))
                self._account.own(folder)
                return folder
        raise EmbeddedPostgresError(
            f"no temporary folder for a server: user {self._account.name} must be able to enter it and its path must"
            f" leave room for a socket ({_SOCKET_PATH_BYTES} bytes)",
            hint="set TMPDIR to such a folder",
        )

    def _choose_port(self) -> None:
        with socket.create_server((self.host, 0)) as probe:
            self.port = probe.getsockname()[1]

    def _write_settings(self) -> None:
        place: dict[str, Setting] = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": f'"{self.folder}"',
        }
        lines = [f"{name} = {_literal(value)}\n" for name, value in {**self.settings, **place}.items()]
        path = self.datadir / "pgbridge.conf"
        path.write_text("".join(lines), encoding="utf-8")
        self._account.own(path)

    def _launch(self, log: Path, deadline_s: float) -> str | None:
        """Start the postmaster and wait until it is ready: None, or what went wrong; then it does not run."""
        with log.open("ab") as output:
            self._postmaster = postmaster = self._account.spawn(
                [self.programs.bindir / "postgres", "-D", self.datadir], stdin=subprocess.DEVNULL, output=output
            )
        # the pid file's first and eighth lines (pidfile.h) are what pg_ctl waits for, too
        ready = re.compile(rf"{postmaster.pid}\n(?:.*\n){{6}}ready\s*")
        pid_file = self.datadir / "postmaster.pid"
        while postmaster.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                if ready.fullmatch(pid_file.read_text(encoding="utf-8")):
                    return None
            if time.monotonic() > deadline_s:
                self._end(postmaster)
                self._postmaster = None
                return f"was not ready after {_START_S:g} s"
            time.sleep(_POLL_S)
        self._postmaster = None
        return f"did not start (status {postmaster.returncode})"


def _tail(text: bytes, lines: int = _TAIL_LINES) -> str:
    return "\n".join(text.decode(errors="replace").splitlines()[-lines:])


def _literal(value: Setting) -> str:
    """A value as postgresql.conf wants it: quoted, quotes and backslashes doubled."""
    if isinstance(value, bool):
        return "on" if value else "off"
    text = str(value).replace("\\", "\\\\").replace("'", "''")
    return f"'{text}'"
