"""A subscription within a Python program: its committed transactions as Spark DataFrames.

It has the parts of the daemon: worker, receiver, batches, catalog. Only the last step differs, where a function of the
program gets the batch (`bridge.apply.handler`). Spark is imported when it is needed.
"""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import ValidationError

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.commands.refresh import drop
from pgbridge.bridge.commands.state import State
from pgbridge.bridge.config import config
from pgbridge.bridge.config.explain import explain
from pgbridge.bridge.runtime.errors import ConfigError, StateError
from pgbridge.bridge.track.progress import parse_skip_lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from pyspark.sql import SparkSession

    from pgbridge.bridge.apply.handler import ChangeBatch
    from pgbridge.bridge.service.subscriber import SubscriptionWorker

OF_DELTA_TABLES: Final = frozenset(
    {
        "warehouse",
        "enabled",
        "conflict",
        "schema_evolution",
        "target",
        "mode",
        "tables",
    }
)
"""Keys of `[subscription.NAME]` that a handler has no use for."""

_LOOK_S: Final = 0.1
_ONE_PROGRAM: Final = "end the program that runs this subscription; another subscription needs its own state_dir"


class Subscription:
    """A subscription to publications, whose changes a function gets as Spark DataFrames.

    One process at a time may run it. Its position is in `state_dir`, and in its slot on the server.

    Args:
        connection: A libpq connection string of the publisher.
        publications: The names of one or more publications.
        state_dir: A folder of its own for its position. It has to outlive the program.
        name: The subscription's name; the first publication's by default. The slot's name comes from it.
        copy_data: Must be False: a handler gets changes, and no copy of the rows that were there before.
        options: Further keys of `[subscription.NAME]`, such as `slot_name`, `publication_definitions`, `streaming`,
            `disable_on_error`; its tables are dictionaries, as in `batch={"max_rows": 10_000}`.

    Raises:
        ConfigError: An option is unknown, or its value is not allowed.
    """

    def __init__(
        self,
        *,
        connection: str,
        publications: Sequence[str],
        state_dir: str | Path,
        name: str | None = None,
        copy_data: bool = True,
        **options: Any,
    ) -> None:
        if useless := sorted(OF_DELTA_TABLES.intersection(options)):
            raise ConfigError(f"{useless[0]}: a subscription with a handler has no Delta tables of its own")
        if isinstance(publications, str):
            raise ConfigError("publications: must be a list of names, not a text")
        if copy_data:
            raise ConfigError(
                "copy_data: a handler gets changes only, not the rows that the tables have already",
                hint="set copy_data=False; to begin with the rows, read them once the slot exists, and apply the "
                "changes to them by key",
            )
        self._config = _validated(
            {
                "name": name or next(iter(publications), ""),
                "connection": connection,
                "publications": tuple(publications),
                "warehouse": "handler",
                "copy_data": copy_data,
                **options,
            }
        )
        if self._config.messages == "table":
            raise ConfigError('messages: "table" is for Delta tables', hint='set messages="log"')
        if "max_sync_workers" in self._config.workers.model_fields_set:
            raise ConfigError("workers.max_sync_workers: a subscription with a handler copies no tables")
        self._state_dir = Path(state_dir)
        self._stopping = threading.Event()

    @property
    def name(self) -> str:
        """The subscription's name."""
        return self._config.name

    def __repr__(self) -> str:
        """Say what it is of; the connection may have a password."""
        return f"<subscription {self.name} of {', '.join(self._config.publications)}, slot {self.slot_name}>"

    @property
    def slot_name(self) -> str:
        """The replication slot's name."""
        return self._config.slot_name

    @property
    def remote_lsn(self) -> int | None:
        """The LSN up to which all transactions are handled; None before the first run."""
        with self._catalog() as catalog:
            return catalog.remote_lsn(self.name)

    def for_each_batch(
        self,
        handler: Callable[[ChangeBatch], object],
        *,
        spark: SparkSession | None = None,
        until_caught_up: bool = False,
    ) -> None:
        """Give committed transactions to a function, batch by batch, until `stop` is called.

        The first run creates the slot. The function runs in another thread, one batch at a time. When it returns, the
        batch is recorded and confirmed to the server, so that what it has written must be durable by then. When it
        raises an error, the batch is handed over again, in parts, until the transaction is found that it does not take;
        that one is tried again and again, unless `disable_on_error` is set, or `until_caught_up`.

        Args:
            handler: Gets each batch.
            spark: A session; the DataFrames belong to a session of its own on the same cluster, in UTC and with ANSI
                rules. None: Spark is started on this machine, with Delta, and stopped at the end.
            until_caught_up: Return once everything is handled that the server had flushed at the start.

        Raises:
            ApplyError: The handler does not take a transaction, and it is not to be tried again.
            BridgeError: The server, the slot or the state directory is not as it must be.
            TypeError: The handler is no function.
            KeyboardInterrupt: After the batch under way has ended.
        """
        from pgbridge.bridge.spark import session  # noqa: PLC0415 - it imports Spark

        if not callable(handler):
            raise TypeError(f"the handler must be a function, not {type(handler).__name__}")
        self._stopping.clear()
        with locked(self._state_dir, _ONE_PROGRAM), self._catalog() as catalog:
            row = catalog.subscription(self.name)
            if row is not None and not row.enabled:
                raise StateError(
                    f'subscription "{self.name}" is disabled (disable_on_error): {_last_error(catalog, self.name)}',
                    hint="call enable(), or skip(lsn) before it",
                )
            used = spark or session.start()
            try:
                self._run(handler, session.fork_exact(used), catalog, until_caught_up=until_caught_up)
            finally:
                if spark is None:
                    session.driver_of(used).stop(used)

    def _run(
        self, handler: Callable[[ChangeBatch], object], spark: SparkSession, catalog: Catalog, *, until_caught_up: bool
    ) -> None:
        from pgbridge.bridge.service import subscriber  # noqa: PLC0415 - it imports Spark

        worker = subscriber.SubscriptionWorker(
            self._config, spark, catalog, until_caught_up=until_caught_up, handler=handler
        )
        worker.thread.start()
        try:
            while worker.thread.is_alive():
                worker.thread.join(_LOOK_S)
                if self._stopping.is_set():
                    worker.stop()
        finally:
            _end(worker)
        if worker.error is not None:
            raise worker.error

    def stop(self) -> None:
        """Have `for_each_batch` return after the batch under way. It may be called in any thread, also by a handler."""
        self._stopping.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def skip(self, lsn: str | None) -> None:
        """ALTER SUBSCRIPTION … SKIP: the transaction with this finish LSN is not handed over; None skips none.

        Its changes are kept in `<state_dir>/skipped`. It may be called while the subscription runs.

        Raises:
            SkipError: It is not an LSN, or that transaction is handled already.
        """
        with self._catalog() as catalog:
            catalog.set_skip_lsn(self.name, parse_skip_lsn(lsn or "none", catalog.remote_lsn(self.name)))

    def enable(self) -> None:
        """ALTER SUBSCRIPTION … ENABLE, after `disable_on_error`."""
        with self._catalog() as catalog:
            catalog.set_enabled(self.name, enabled=True)

    def drop(self) -> None:
        """DROP SUBSCRIPTION: drop the slot on the server, and forget the position.

        Raises:
            StateError: The subscription runs.
            PublisherError: The server cannot be reached, or the slot is in use; nothing is forgotten then.
        """
        settings = config.Config(state_dir=self._state_dir, subscription={self.name: self._config})
        with locked(self._state_dir, _ONE_PROGRAM), self._catalog() as catalog:
            state = State(settings, catalog, running=False)
            for _ in drop(self._config, state, keep_slot=False, force=True):
                pass
            catalog.set_enabled(self.name, enabled=True)

    @contextmanager
    def _catalog(self) -> Iterator[Catalog]:
        try:
            self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"state_dir {self._state_dir} cannot be written: {error}") from error
        with closing(Catalog(catalog_path(self._state_dir))) as catalog:
            catalog.register(self.name, enabled=True)
            yield catalog


def _end(worker: SubscriptionWorker) -> None:
    """Stop a worker and wait for its end, also when a second KeyboardInterrupt comes."""
    while worker.thread.is_alive():
        worker.stop()
        worker.thread.join(_LOOK_S)


def _last_error(catalog: Catalog, name: str) -> str:
    error = catalog.last_error(name)
    return error.message if error is not None else "by hand"


def _validated(options: dict[str, Any]) -> config.Subscription:
    try:
        return config.Subscription.model_validate(options)
    except ValidationError as error:
        lines = []
        for fault in error.errors():
            location = [str(part) for part in fault["loc"]] or ["options"]
            keys = [key for key in config.known_keys(config.Subscription, location) if key not in OF_DELTA_TABLES]
            lines.append(explain(fault, location, keys))
        raise ConfigError("\n".join(lines)) from None
