"""A private PostgreSQL server for the demo, the tests and the benchmarks.

It is not for data that must be kept: by default all data is deleted when the process that started the server ends,
however it ends. The server listens on a Unix socket (`trust`), in a folder that only its OS user and root can enter,
and on 127.0.0.1 with a password.
"""

from __future__ import annotations

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

from bridge.demo.programs import PACKAGES, Account, EmbeddedPostgresError, Programs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

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

_SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path on Linux, less its NUL
_SHORT_FOLDERS = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 # mkdtemp makes the folders in there
_POLL_S = 0.02
_TAIL_LINES = 20
_ESCALATE_S = 20.0  # an immediate shutdown kills what is left after 5 s (postmaster.c, SIGKILL_CHILDREN_AFTER_SECS)

# A shell that outlives us if we are killed: it stops the server and removes its folder.
_KEEPER = """
read -r _ && exit 0
"$1" stop -s -m immediate -D "$2" >/dev/null 2>&1
[ -z "$3" ] || rm -rf "$3"
"""


class EmbeddedPostgres:
    """One private server: made at the first `start()`, gone after `close()` or the end of a `with` block.

    The superuser is `postgres`, the encoding UTF8, the locale C.UTF-8.

    Args:
        source: A distribution of `programs.PACKAGES`, or a folder of PostgreSQL's programs.
        settings: Settings over `DEFAULT_SETTINGS`; a change takes effect at the next start.
        fsync: False is faster and survives a killed server, but not a crash of the machine.
        keep: Leave the data folder behind, stopped in order.
        start_timeout_s: How long a start, crash recovery included, may take.
    """

    host: Final = "127.0.0.1"
    user: Final = "postgres"

    def __init__(
        self,
        source: str | Path = PACKAGES[0],
        *,
        settings: Mapping[str, Setting] | None = None,
        fsync: bool = True,
        keep: bool = False,
        start_timeout_s: float = 60.0,
    ) -> None:
        self.settings: dict[str, Setting] = {**DEFAULT_SETTINGS, "fsync": fsync, **(settings or {})}
        self.password = secrets.token_hex(12)
        self.port = 0
        self.programs = Programs.find(source)
        self._account: Account = self.programs.account
        self._keep = keep
        self._start_timeout_s = start_timeout_s
        self._folder: Path | None = None
        self._postmaster: subprocess.Popen[bytes] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def version(self) -> str:
        """The server's version, e.g. `18.6`."""
        return self.programs.version

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
    def log(self) -> Path:
        """The server's log: everything that all its runs wrote to standard error."""
        return self.folder / "log"

    @property
    def pid(self) -> int:
        """The postmaster's process id.

        Raises:
            EmbeddedPostgresError: The server does not run.
        """
        if self._postmaster is None or self._postmaster.poll() is not None:
            raise EmbeddedPostgresError("the server does not run")
        return self._postmaster.pid

    @property
    def running(self) -> bool:
        """Whether the postmaster runs."""
        return self._postmaster is not None and self._postmaster.poll() is None

    def conninfo(self, dbname: str = "postgres") -> str:
        """A libpq connection string through the Unix socket, the faster way for a walsender."""
        return _conninfo(host=self.folder, port=self.port, user=self.user, dbname=dbname)

    def tcp_conninfo(self, dbname: str = "postgres") -> str:
        """A libpq connection string over TCP, for a proxy or what cannot use sockets; holds the password."""
        quoted = dbname.replace("\\", "\\\\").replace("'", "\\'")
        return f"host={self.host} port={self.port} user={self.user} password={self.password} dbname='{quoted}'"

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """Return the last lines of the server's log; empty if there is no log."""
        if self._folder is None or not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def start(self) -> None:
        """Start the server, and make it before the first time; returns when it accepts connections.

        Raises:
            EmbeddedPostgresError: It runs already, cannot be made, or does not start; with its log's end.
        """
        if self.running:
            raise EmbeddedPostgresError(f"the server already runs, as process {self.pid}")
        deadline = time.monotonic() + self._start_timeout_s
        new = self._folder is None
        if new:
            try:
                self._make()
            except BaseException:
                self.close()
                raise
        self._write_settings()
        while True:
            seen_bytes = self.log.stat().st_size if self.log.exists() else 0
            problem = self._launch(deadline)
            if problem is None:
                return
            said = self.log.read_bytes()[seen_bytes:].decode(errors="replace")
            if time.monotonic() < deadline:
                # after kill(): busy backends have not ended yet
                if "pre-existing shared memory block" in said:
                    time.sleep(_POLL_S)
                    continue
                # another process took the port after it was chosen
                if new and "Address already in use" in said:
                    self._choose_port()
                    continue
            tail = "\n".join(said.splitlines()[-_TAIL_LINES:])
            raise EmbeddedPostgresError(f"PostgreSQL {self.version} {problem}; the end of its log:\n{tail}")

    def stop(self, mode: StopMode = "fast", timeout_s: float = 60.0) -> None:
        """Stop the server in one of pg_ctl's modes and wait for its end; nothing to do when it does not run.

        A fast shutdown waits until each walsender's client has taken all WAL; after `timeout_s` an immediate
        one follows, which does not wait.
        """
        if self._postmaster is None:
            return
        if self._postmaster.poll() is None:
            self._postmaster.send_signal(_SIGNALS[mode])
            try:
                self._postmaster.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._postmaster.send_signal(_SIGNALS["immediate"])
                self._wait_or_kill(self._postmaster)
        self._postmaster = None

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start; port, password and data stay. Raises as `start()`."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill -9 the postmaster; its children end as soon as they notice, perhaps after this returns.

        Raises:
            EmbeddedPostgresError: The server does not run.
        """
        if self._postmaster is None or not self.running:
            raise EmbeddedPostgresError("the server does not run")
        self._postmaster.kill()
        self._postmaster.wait()
        self._postmaster = None

    def close(self) -> None:
        """Stop the server and remove its folder; with `keep`, stop it in order and leave the folder."""
        self.stop("fast" if self._keep else "immediate")
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.communicate(b"done\n")
            self._keeper = None
        if self._folder is not None and not self._keep:
            for _ in range(int(_ESCALATE_S / _POLL_S)):
                # the children of a killed postmaster may still write
                shutil.rmtree(self._folder, ignore_errors=True)
                if not self._folder.exists():
                    break
                time.sleep(_POLL_S)
        self._folder = None

    def _make(self) -> None:
        """Make folder, data directory and the keeper that removes them should we be killed."""
        self._choose_port()
        self._folder = folder = self._make_folder()
        self._keeper = self._account.spawn(
            [
                "/bin/sh",
                "-c",
                _KEEPER,
                "pgbridge-keeper",
                self.programs.bindir / "pg_ctl",
                self.datadir,
                "" if self._keep else folder,
            ],
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
            f"no temporary folder for a server: user {self._account.name} must be able to enter it and its"
            f" path must leave room for a socket ({_SOCKET_PATH_BYTES} bytes); set TMPDIR to such a folder"
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
        path = self.datadir / "pgbridge.conf"
        path.write_text(
            "".join(f"{name} = {_literal(value)}\n" for name, value in {**self.settings, **place}.items()),
            encoding="utf-8",
        )
        self._account.own(path)

    def _launch(self, deadline: float) -> str | None:
        """Start the postmaster and wait until it is ready: None, or what went wrong; then it does not run."""
        with self.log.open("ab") as log:
            self._postmaster = postmaster = self._account.spawn(
                [self.programs.bindir / "postgres", "-D", self.datadir], stdin=subprocess.DEVNULL, output=log
            )
        # the pid file's first and eighth lines (pidfile.h) are what pg_ctl waits for, too
        ready = re.compile(rf"{postmaster.pid}\n(?:.*\n){{6}}ready\s*")
        pid_file = self.datadir / "postmaster.pid"
        while postmaster.poll() is None:
            if pid_file.exists() and ready.fullmatch(_read_or_empty(pid_file)):
                return None
            if time.monotonic() > deadline:
                postmaster.send_signal(_SIGNALS["immediate"])
                self._wait_or_kill(postmaster)
                self._postmaster = None
                return f"was not ready after {self._start_timeout_s:g} s"
            time.sleep(_POLL_S)
        self._postmaster = None
        return f"did not start (status {postmaster.returncode})"

    @staticmethod
    def _wait_or_kill(postmaster: subprocess.Popen[bytes]) -> None:
        try:
            postmaster.wait(_ESCALATE_S)
        except subprocess.TimeoutExpired:
            postmaster.kill()
            postmaster.wait()


def _conninfo(**parameters: str | int | Path) -> str:
    """A connection string as libpq reads it: values quoted, quotes and backslashes escaped."""
    quoted = {key: str(value).replace("\\", "\\\\").replace("'", "\\'") for key, value in parameters.items()}
    return " ".join(f"{key}='{value}'" for key, value in quoted.items())


def _literal(value: Setting) -> str:
    """A value as postgresql.conf wants it: quoted, quotes and backslashes doubled."""
    if isinstance(value, bool):
        return "on" if value else "off"
    text = str(value).replace("\\", "\\\\").replace("'", "''")
    return f"'{text}'"


def _read_or_empty(path: Path) -> str:
    """Return a file's text; empty if the file was removed meanwhile."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
