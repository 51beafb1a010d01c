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
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakSet

from pyspark.errors import PySparkException

from pgbridge.bridge.runtime import errors, log, remedies, threads
from pgbridge.bridge.spark.driver import Conf, Driver
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, lost_in, root_text
from pgbridge.bridge.spark.settings import REQUIRED, all_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    # sends so much at once (`Connect.piece_bytes`).
    "spark.sql.session.localRelationCacheThreshold": str(64 << 20),
}


class Connect(Driver):
    """A Spark Connect server. Others may use it, too."""

    is_ours = False
    sends_plans = True
    piece_bytes = 8 << 20  # it takes requests of at most 128 MiB
    copied_bytes = 32 << 20  # the rows have to be sent: some megabytes a second
    loss = "the connection to the Spark Connect server is lost"

    def __init__(self, master: str) -> None:
        super().__init__(master)
        self._settings: dict[str, str] = {}
        self._sessions: WeakSet[SparkSession] = WeakSet()
        self._lost: str | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()

    @property
    def shown(self) -> str:
        """The URL without parameters: one of them may be a token."""
        return self.master.partition("/;")[0].partition(";")[0]

    def _open(self, conf: Conf, *_: object) -> SparkSession:
        _import()
        settings = all_settings(conf)
        self._settings = {**_OWN, **{key: settings[key] for key in settings if key.startswith(_SETTABLE)}}
        try:
            session = self._session()
            _check(session, self.shown)
        except BaseException as error:
            threads.detached(self._close, "close of Spark Connect")
            if not isinstance(error, SPARK_ERRORS) or lost_in(error) is None:
                raise
            raise errors.SparkLost(
                f"the Spark Connect server at {self.shown} cannot be used: {_first_line(error)}",
                hint="start it, or correct master; over a network check that the port is open, and whether it needs "
                "use_ssl or a token",
            ) from error
        if refused := sorted(conf.keys() - self._settings.keys()):
            log.get().warning(
                "the Spark Connect server's own settings hold: these cannot be set by a client",
                settings=refused,
                hint="set them where the server is started",
            )
        threading.Thread(target=self._use, name="keep sessions", daemon=True).start()
        return session

    def _session(self) -> SparkSession:
        """Open a session, with the settings.

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
                    self._lose(exception)
                return pause_ms

            state.next_attempt = next_or_lost  # type: ignore[method-assign]
            return state

        class Patience(DefaultPolicy):
            """Once one call has waited in vain, no other one waits."""

            to_state = patience

            def can_retry(policy, error: BaseException) -> bool:  # noqa: N805 - `self` is the driver
                return self._lost is None and not self._closed.is_set() and super().can_retry(error)

        from pyspark.sql.connect.session import SparkSession as Remote  # noqa: PLC0415

        session: Any = Remote(DefaultChannelBuilder(self.master, list(_CHANNEL)))
        session.client.set_retry_policies([Patience(_TRIES, _GROWTH, _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS)])
        with self._lock:
            self._sessions.add(session)
        atexit.unregister(self._close)
        atexit.register(self._close)  # before PySpark's own, which would wait for a server that is away
        try:
            for key, value in list(self._settings.items()):
                self._set(session, key, value)
        except BaseException:
            _close(session)
            raise
        opened: SparkSession = session
        return opened

    def _set(self, session: SparkSession, key: str, value: str) -> None:
        try:
            session.conf.set(key, value)
        except PySparkException as error:
            if not (error.getCondition() or "").startswith("CANNOT_MODIFY"):
                raise
            self._settings.pop(key, None)  # the server's own: asked once

    def _use(self) -> None:
        """Use each session from time to time, so that the server keeps it; a lost server is found, too."""
        while not self._closed.wait(_USED_EVERY_S) and self._lost is None:
            for session in self._open_sessions():
                try:
                    session.conf.get("spark.sql.ansi.enabled")
                except Exception as error:  # noqa: BLE001 - what uses the session tells
                    client: Any = session.client
                    if not client.is_closed:
                        self.lost(error)

    def _open_sessions(self) -> list[SparkSession]:
        with self._lock:
            return list(self._sessions)

    def another(self, session: SparkSession) -> SparkSession:
        """Open another session on the server."""
        if self._closed.is_set() or session not in self._open_sessions():
            raise errors.SparkLost("the session's connection to the Spark Connect server is gone")
        return self._session()

    def lost(self, error: BaseException | None = None) -> str | None:
        """Return why the connection is lost; None if it is not."""
        if error is not None and (cause := lost_in(error)) is not None:
            self._lose(cause)
        return self._lost

    def _lose(self, cause: BaseException | None) -> None:
        self._lost = self._lost or ("it does not answer" if cause is None else _first_line(cause))

    def forget(self) -> Self:
        """Close all sessions, as far as the server answers; return another driver."""
        wait([threads.detached(self._close, "close of Spark Connect")], timeout=_CLOSING_S)
        return type(self)(self.master)

    def _close(self) -> None:
        """Close all sessions, on the server too: it interrupts what still runs there."""
        self._closed.set()
        atexit.unregister(self._close)
        for session in self._open_sessions():
            _close(session)

    def stop(self, session: SparkSession) -> None:
        """Close all sessions; those that are lost are left to `forget`."""
        del session
        if self._lost is None:
            self.forget()

    def memory_bytes(self, conf: Conf) -> int:
        """Nothing: it has its memory where it was started."""
        del conf
        return 0

    @contextlib.contextmanager
    def active(self, session: SparkSession) -> Iterator[None]:
        """Make a session the active one of this thread: PySpark's client has a checkpoint belong to that one."""
        remote: Any = type(session)
        active = remote._active_session  # noqa: SLF001 - PySpark sets it only where there is none
        before = getattr(active, "session", None)
        active.session = session
        try:
            yield
        finally:
            active.session = before


def _import() -> None:
    """Import what speaks to a server.

    Raises:
        SparkLost: A package is missing.
    """
    try:
        import delta.connect.exceptions  # noqa: PLC0415, F401 - has Delta's conflicts raised as such
        import pyspark.sql.connect.session  # noqa: PLC0415, F401
    except (ImportError, PySparkException) as error:
        raise errors.SparkLost(
            f"Spark Connect needs packages that are not installed: {_first_line(error)}",
            hint=f"install them: {remedies.install('connect')}",
        ) from error
    # PySpark's functions then make columns for Connect: a process has sessions of one kind
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")


def _check(session: SparkSession, server: str) -> None:
    lacking = {}
    for key, value in REQUIRED.items():
        values = session.conf.get(key, None) or ""
        if value.lower() not in (listed.strip().lower() for listed in values.split(",")):
            lacking[key] = value
    if lacking:
        options = " ".join(f"--conf {key}={value}" for key, value in lacking.items())
        raise errors.SparkLost(
            f"the Spark Connect server at {server} lacks settings that only its start can give: {', '.join(lacking)}",
            hint=f"start it with Delta's jars, and with {options}",
        )


def _close(session: SparkSession) -> None:
    """Close a session without waiting for a server that is away."""
    client: Any = session.client
    with contextlib.suppress(Exception):  # it is closed as far as possible
        client.set_retry_policies([])
        session.stop()


def _first_line(error: BaseException) -> str:
    return root_text(error).strip().partition("\n")[0]
