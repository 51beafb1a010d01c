"""Looks at what is published: at the start, when the stream announces a table anew, and every `catalog_check_s`.

With `workers.refresh = "auto"` a table that has joined the publications is asked for as by `pgbridge refresh`.

One query a look (`sql/catalog_picture.sql`), on a connection of its own that stays open: it may have to wait for a lock
on a published table, and must not keep the stream waiting. What it finds is in the state catalog
(`bridge.catalog.followed`), for `pgbridge status`, the page and the metrics.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.catalog import catalog_rows, followed, notes, refresh
from pgbridge.bridge.publication.catalog_picture import CatalogPicture, Name, parse
from pgbridge.bridge.publication.definitions import load_optional
from pgbridge.bridge.publication.differences import Comparison, Remedies, compare
from pgbridge.bridge.receive.publications import apply_publications
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.runtime import errors, remedies, threads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription

_LEAST_S: Final = 1.0
"""Between two looks, however often the stream announces a table anew."""

_JOINS_S: Final = 10.0
"""How often to look for tables that have joined, if the daemon is to follow them."""

_LAST_S: Final = 10.0
"""How long the end of a subscription waits for a look that was asked for."""

_TURNS: Final = threads.Turns("catalog looks", rest=0)


class CatalogLook:
    """Compares what a subscription follows with what is published; the catalog's answer is kept while it is the same.

    Args:
        subscription: The subscription, not its tablesync worker's.
        catalog: Its catalog; None if there is none yet.
    """

    def __init__(self, subscription: Subscription, catalog: Catalog | None) -> None:
        self._subscription, self._catalog = subscription, catalog
        self._answer: tuple[str, CatalogPicture, Mapping[Name, int]] | None = None
        self._remedies = Remedies(
            remedies.refresh(subscription.name),
            lambda table: remedies.resync(subscription.name, table),
            subscription.publications,
            definitions=subscription.publication_definitions is not None,
        )

    def look(self, publisher: Publisher, *, patient: bool = False) -> Comparison:
        """Ask the server, and compare. Nothing is recorded. Before the first start all that is published is followed.

        With `patient` it waits for those who lock a published table.

        Raises:
            PublisherError: The server cannot answer.
            PublicationError: The definitions contradict its tables.
        """
        name, catalog = self._subscription.name, self._catalog
        applied_lsn = catalog.remote_lsn(name) if catalog is not None else None
        if catalog is None or applied_lsn is None:
            picture, published = self._ask(publisher, {}, patient=patient)
            return compare(published, {}, picture, published, (), self._remedies)
        kept = followed.pictures(catalog, name)
        rels = catalog.rels(name, catalog_rows.sync_name(name))
        copied = {(rel.namespace, rel.name): rel.relid for rel in rels if rel.state not in "id"}
        relids = {table: kept[table].relid if table in kept else relid for table, relid in copied.items()}
        picture, published = self._ask(publisher, relids, patient=patient)
        return compare(
            copied,
            kept,
            picture,
            published,
            [seen.difference for seen in followed.seen(catalog, name)],
            self._remedies,
            others={*notes.left_out(catalog, name), *((rel.namespace, rel.name) for rel in rels)},
            applied_lsn=applied_lsn,
        )

    def _ask(
        self, publisher: Publisher, tables: Mapping[Name, int | None], *, patient: bool
    ) -> tuple[CatalogPicture, Mapping[Name, int]]:
        """The catalog's picture, and the relids of what is published by the definitions, or by the publications."""
        publications = self._subscription.publications
        known = self._answer[0] if self._answer is not None else None
        digest, text = publisher.picture(publications, tables, known, patient=patient)
        if self._answer is None or text is not None:
            picture = parse(text or "{}", publisher.insert_lsn())
            targets: Mapping[Name, int] = picture.targets
            if (definitions := load_optional(self._subscription.publication_definitions)) is not None:
                routing = apply_publications(publisher, publications, definitions, missing_ok=True).routing
                targets = {name: entry.target.relid for name, entry in routing.targets.items()}
            self._answer = digest, picture, targets
        return self._answer[1:]


class CatalogWatch(threads.Closing):
    """Looks again and again, each time in a thread of its own, and logs each difference once.

    Args:
        subscription: The subscription.
        catalog: Its catalog.
        log: Its logger.
    """

    def __init__(self, subscription: Subscription, catalog: Catalog, log: FilteringBoundLogger) -> None:
        self._subscription, self._catalog, self._log = subscription, catalog, log
        self._look = CatalogLook(subscription, catalog)
        workers = subscription.workers
        self._joins = workers.refresh == "auto"
        self._asked: frozenset[Name] = frozenset()
        self._every_s = min(workers.catalog_check_s, _JOINS_S) if self._joins else workers.catalog_check_s
        self._lock = threading.Lock()
        self._started = self._wanted = self._stopping = self._cut = self._failing = False
        self._publisher: Publisher | None = None
        self._thread: threading.Thread | None = None
        self._next_s = 0.0

    def start(self) -> None:
        """Begin to look, the first time after `catalog_check_s`."""
        _TURNS.begin(self._turn, self._every_s)
        self._started = True
        if self._wanted:
            _TURNS.within(self._turn, 0.0)

    def soon(self) -> None:
        """Look soon: the stream says that a table has changed, or the operator that the configuration has."""
        self._wanted = True
        _TURNS.within(self._turn, 0.0)

    def close(self) -> None:
        """Stop, after a look that was asked for; one that lasts is cut short. Nothing is recorded afterwards."""
        self._stopping = True
        _TURNS.end(self._turn)
        end_s = time.monotonic() + _LAST_S
        wanted = self._wanted and self._started
        if wanted and not self._lasts(_LAST_S):
            with suppress(RuntimeError):  # no thread can be started
                self._begin()
        if self._lasts(max(0.0, end_s - time.monotonic()) if wanted else 0.0):
            self._cut = True
            if (publisher := self._publisher) is not None:
                publisher.cut()  # only the thread itself closes what it may be waiting for
        if not self._lasts(_LAST_S) and self._publisher is not None:
            self._publisher.close()

    def look(self, publisher: Publisher) -> None:
        """Look once, on a connection of the caller's, unless a look lasts. A failure is logged once."""
        if self._lock.acquire(blocking=False):
            try:
                self._record(self._look.look(publisher))
            except errors.BridgeError as error:
                self._failed(error)
            finally:
                self._lock.release()

    def _turn(self) -> float:
        """Begin a look, unless one lasts, or has just ended; returns after how many seconds there is another turn."""
        left_s = _LEAST_S if self._lasts(0.0) else self._next_s - time.monotonic()
        if left_s > 0:
            return left_s
        self._begin()
        return self._every_s

    def _begin(self) -> None:
        # a daemon thread, because a look may wait for a lock on the server
        thread = threading.Thread(target=self._run, name=f"catalog {self._subscription.name}", daemon=True)
        wanted, self._wanted = self._wanted, False
        try:
            thread.start()
        except RuntimeError:  # there are too many
            self._wanted = wanted
            raise
        self._thread = thread

    def _lasts(self, wait_s: float) -> bool:
        """Whether a look lasts, after so long at most."""
        if self._thread is not None:
            self._thread.join(wait_s)
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        try:
            with self._lock:
                self._look_once()
        finally:
            self._next_s = time.monotonic() + min(_LEAST_S, self._every_s)
            if self._cut and self._publisher is not None:
                self._publisher.close()

    def _look_once(self) -> None:
        """Look on the open connection; where it was lost meanwhile, on another one."""
        if self._cut or self._catalog.remote_lsn(self._subscription.name) is None:
            return
        fresh = self._publisher is None
        try:
            if self._publisher is None:
                application_name = f"{self._subscription.name}_look"
                self._publisher = Publisher(self._subscription.connection, application_name=application_name)
            if not self._cut:
                self._record(self._look.look(self._publisher, patient=True))
        except errors.BridgeError as error:
            if self._publisher is not None:
                self._publisher.close()
                self._publisher = None
            if not fresh:
                self._look_once()
            elif not self._stopping:
                self._failed(error)

    def _failed(self, error: errors.BridgeError) -> None:
        if not self._failing:
            self._log.warning(
                "what is published cannot be looked at; this is tried again",
                error=str(error),
                every_s=self._every_s,
            )
        self._failing = True

    def _record(self, compared: Comparison) -> None:
        if self._joins:
            compared = self._join(compared)
        recorded = followed.record(self._catalog, self._subscription.name, compared, time.time())
        if self._failing:
            self._log.info("what is published can be looked at again")
        self._failing = False
        for note in compared.notes:
            self._log.info(note.message, relation=".".join(note.relation))
        for new in recorded.new:
            self._log.warning(new.message, relation=".".join(new.relation), kind=new.kind, hint=new.hint)
        for gone in recorded.over:
            self._log.info(f"no longer so: {gone.message}", relation=".".join(gone.relation), kind=gone.kind)

    def _join(self, compared: Comparison) -> Comparison:
        """Ask once for each table that has joined; while it is to be added, it is no difference."""
        name, copied = self._subscription.name, self._subscription.copy_data
        new = [table for table in compared.joining if table not in self._asked]
        self._asked = frozenset(compared.joining)
        if not compared.joining:  # nothing is asked of the state catalog
            return compared
        for table in refresh.ask_to_join(self._catalog, name, new, copy_data=copied):
            self._log.info("table has joined the publications", relation=".".join(table), copied=copied)
        waiting = {row.table for row in refresh.asked(self._catalog, name)}
        left = [
            each
            for each in compared.differences
            if each.kind != "not_followed" or waiting.isdisjoint({None, each.relation})
        ]
        return replace(compared, differences=tuple(left))
