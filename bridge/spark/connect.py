"""Sessions on a Spark Connect server (`master = "sc://host:port"`).

A session there cannot be forked: each has a client of its own, and gets the settings again. The server's own settings
cannot be set from here, so those that the results depend on are looked at.

A server may be away for a moment, or for good, or be another one when it comes back. Clients try again for
some 20 s; the server runs an operation only for the session that it was sent in, so one that reaches a server
which was started since is refused. When a client has given up, or a session is gone, all sessions of the connection
are lost: an operation may still run in them, so they are closed and never used again.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import warnings
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException

from bridge.config.spark_master import CONNECT
from bridge.runtime import log, remedies
from bridge.runtime.errors import SparkLost
from bridge.runtime.threads import detached
from bridge.spark.outcome import SPARK_ERRORS, lost_in, root_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pyspark.sql import SparkSession

_TRIES, _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS, _GROWTH = 10, 50, 3000, 3.0
"""Together some 20 s. An operation survives a break of the network that is shorter: the client attaches to it again."""

_CHANNEL: Final = (
    # A server accepts a ping in five minutes. With it, Linux also gives up data that is not acknowledged in 20 s.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
)

_CLOSING_S: Final = 5.0

_USED_EVERY_S: Final = 600.0
"""A server closes a session that was not used for an hour, as that of a seldom kind of commit may be."""

_SETTABLE: Final = ("spark.sql.", "spark.databricks.", "spark.delta.")

_OWN: Final = {
    # What is above it goes to the server's block manager, which keeps it as long as the session lives. pgbridge never
    # sends so much at once (see `bridge.lake.source`).
    "spark.sql.session.localRelationCacheThreshold": str(64 << 20),
}


@dataclass(eq=False, slots=True)
class Connection:
    """A connection to a server: its sessions are lost together.

    Attributes:
        url: `sc://host:port`, perhaps with parameters; a token among them is a secret.
        settings: What each session gets.
        lost: Why its sessions cannot be used any more; None while they can.
    """

    url: str
    settings: dict[str, str]
    lost: str | None = None
    _sessions: WeakKeyDictionary[SparkSession, None] = field(default_factory=WeakKeyDictionary)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)

    def keep(self) -> None:
        """Begin to use each session from time to time, so that the server keeps it; a lost server is found, too."""
        threading.Thread(target=self._use, name="keep sessions", daemon=True).start()

    def _use(self) -> None:
        while not self._closed.wait(_USED_EVERY_S) and self.lost is None:
            for session in self.sessions():
                try:
                    session.conf.get("spark.sql.ansi.enabled")
                except Exception as error:  # noqa: BLE001 - what uses the session tells
                    client: Any = session.client
                    if (cause := lost_in(error)) is not None and not client.is_closed:
                        self.lose(_first_line(cause))

    @property
    def shown(self) -> str:
        """The URL without parameters."""
        return shown(self.url)

    def open(self) -> SparkSession:
        """Open a session with the connection's settings.

        Raises:
            PySparkException: The server does not answer, or not as it should.
        """
        from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415 - needs the extra
        from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415

        def patience(policy: Any) -> Any:
            state = DefaultPolicy.to_state(policy)
            next_attempt = state.next_attempt

            def next_or_lost(exception: BaseException | None = None) -> int | None:
                pause_ms: int | None = next_attempt(exception)
                if pause_ms is None:
                    self.lose(_first_line(exception) if exception is not None else "it does not answer")
                return pause_ms

            state.next_attempt = next_or_lost  # type: ignore[method-assign]
            return state

        class Patience(DefaultPolicy):
            """Once one call has waited in vain, no other one waits."""

            to_state = patience

            def can_retry(policy, error: BaseException) -> bool:  # noqa: N805 - `self` is the connection
                return self.lost is None and super().can_retry(error)

        from pyspark.sql.connect.session import SparkSession as Remote  # noqa: PLC0415

        session: Any = Remote(DefaultChannelBuilder(self.url, list(_CHANNEL)))
        session.client.set_retry_policies([Patience(_TRIES, _GROWTH, _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS)])
        with self._lock:
            self._sessions[session] = None
        atexit.unregister(self.close)
        atexit.register(self.close)  # before PySpark's own, which would wait for a server that is away
        try:
            for key, value in list(self.settings.items()):
                self._set(session, key, value)
        except BaseException:
            close([session])
            raise
        opened: SparkSession = session
        return opened

    def _set(self, session: SparkSession, key: str, value: str) -> None:
        try:
            session.conf.set(key, value)
        except PySparkException as error:
            if not (error.getCondition() or "").startswith("CANNOT_MODIFY"):
                raise
            self.settings.pop(key, None)  # the server's own: asked once

    def lose(self, reason: str) -> None:
        """The sessions cannot be used any more."""
        if self.lost is None:
            self.lost = reason

    def sessions(self) -> list[SparkSession]:
        """All sessions that are in use."""
        with self._lock:
            return list(self._sessions)

    def has(self, session: SparkSession) -> bool:
        """Whether this connection has opened a session."""
        with self._lock:
            return session in self._sessions

    def close(self) -> None:
        """Close all sessions, on the server too: it interrupts what still runs there."""
        self.lost = self.lost or "it was closed"
        self._closed.set()
        atexit.unregister(self.close)
        close(self.sessions())


@dataclass(slots=True)
class _Current:
    connection: Connection | None = None


_current: Final = _Current()


def is_connect(master: str) -> bool:
    """Whether a master is a Spark Connect server."""
    return master.startswith(CONNECT)


def shown(master: str) -> str:
    """A master without parameters: one of them may be a token."""
    return master.partition("/;")[0].partition(";")[0] if is_connect(master) else master


def start(
    url: str, settings: Mapping[str, str], required: Mapping[str, str], configured: Collection[str]
) -> SparkSession:
    """Connect to a server, and return a first session.

    Args:
        url: `sc://host:port`.
        settings: What each session is to have.
        required: Those of them without which results would differ.
        configured: Those that a user has set.

    Raises:
        SparkLost: A package is missing here, the server does not answer, or it does not have what is required.
    """
    _check_url(url)
    _import()
    connection = Connection(url, {**_OWN, **{key: settings[key] for key in settings if key.startswith(_SETTABLE)}})
    try:
        session = connection.open()
        _check(session, connection.shown, required)
        refused = sorted(key for key in configured if key not in connection.settings)
        if refused:
            log.get().warning(
                "the Spark Connect server's own settings hold: these cannot be set by a client",
                settings=refused,
                hint="set them where the server is started",
            )
    except BaseException as error:
        detached(connection.close, "close of Spark Connect")
        if not isinstance(error, SPARK_ERRORS) or lost_in(error) is None:
            raise
        raise SparkLost(
            f"the Spark Connect server at {connection.shown} cannot be used: {_first_line(error)}",
            hint="start it, or correct master; over a network check that the port is open, and whether it needs "
            "use_ssl or a token",
        ) from error
    _current.connection = connection
    connection.keep()
    return session


def _check_url(url: str) -> None:
    parts = urlsplit(url.removeprefix(CONNECT) and "//" + url.removeprefix(CONNECT))
    try:
        fine = bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise SparkLost(
            f"{shown(url)} is not the address of a Spark Connect server", hint='write master = "sc://host:15002"'
        )


def _import() -> None:
    """Import what speaks to a server.

    Raises:
        SparkLost: A package is missing.
    """
    try:
        import delta.connect.exceptions  # noqa: PLC0415, F401 - has Delta's conflicts raised as such
        import pyspark.sql.connect.session  # noqa: PLC0415, F401
    except (ImportError, PySparkException) as error:
        raise SparkLost(
            f"Spark Connect needs packages that are not installed: {_first_line(error)}",
            hint=f"install them: {remedies.install('connect')}",
        ) from error
    # PySpark's functions then make columns for Connect: a process has sessions of one kind
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")


def _check(session: SparkSession, server: str, required: Mapping[str, str]) -> None:
    lacking = {}
    for key, value in required.items():
        values = session.conf.get(key, None) or ""
        if value.lower() not in (listed.strip().lower() for listed in values.split(",")):
            lacking[key] = value
    if lacking:
        options = " ".join(f"--conf {key}={value}" for key, value in lacking.items())
        raise SparkLost(
            f"the Spark Connect server at {server} lacks settings that only its start can give: {', '.join(lacking)}",
            hint=f"start it with Delta's jars, and with {options}",
        )


def another(session: SparkSession) -> SparkSession:
    """Open another session on the server of a session."""
    connection = _current.connection
    if connection is None or not connection.has(session):
        raise SparkLost("the session's connection to the Spark Connect server is gone")
    return connection.open()


def lost(error: BaseException | None = None) -> str | None:
    """Why the current connection is lost; None if it is not, or if there is none.

    Args:
        error: What an operation of a session ended with; it may say that the connection is lost.
    """
    connection = _current.connection
    if connection is None:
        return None
    if error is not None and (cause := lost_in(error)) is not None:
        connection.lose(_first_line(cause))
    return connection.lost


def is_used() -> bool:
    """Whether this process has a connection, lost or not."""
    return _current.connection is not None


def forget() -> None:
    """Give up the current connection: its sessions are closed, as far as the server answers."""
    connection, _current.connection = _current.connection, None
    if connection is not None:
        wait([detached(connection.close, "close of Spark Connect")], timeout=_CLOSING_S)


def close(sessions: Iterable[SparkSession]) -> None:
    """Close sessions without waiting for a server that is away."""
    for session in sessions:
        client: Any = session.client
        with contextlib.suppress(Exception):  # it is closed as far as possible
            client.set_retry_policies([])
            session.stop()


def _first_line(error: BaseException) -> str:
    return root_text(error).strip().partition("\n")[0]
