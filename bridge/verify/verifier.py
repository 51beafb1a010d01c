"""Verifies a subscription's tables in the daemon, again and again, in steps that the source hardly notices.

A step compares some small tables, or a part of a large one, under a snapshot of its own: so nothing is locked, and no
dead row kept, for longer than a step takes. Then it rests, so that over time no more is read than
`workers.max_verify_rate_bytes_s`. How far a table's parts have come is in the catalog, so a restart goes on. There is
one step at a time for all subscriptions of a process.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from pgbridge.bridge.apply.published import Published
from pgbridge.bridge.catalog import verified
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.receive.filter_server import FilterServer
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.runtime import errors, remedies
from pgbridge.bridge.runtime.threads import Turns, detached
from pgbridge.bridge.spark.session import interrupt, told
from pgbridge.bridge.sync.copy_reader import key_of
from pgbridge.bridge.sync.key_order import key_parts
from pgbridge.bridge.sync.table_reading import RANGE_BYTES, Pace
from pgbridge.bridge.verify.part import part_from
from pgbridge.bridge.verify.schedule import due_s, takes_part
from pgbridge.bridge.verify.verification import Verification
from pgbridge.protocol.lsn import INVALID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.catalog.catalog_rows import RelRow
    from pgbridge.bridge.catalog.verified import VerifiedRow
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.verify.part import Part

_STEP_BYTES: Final = 2 * RANGE_BYTES
"""What a step reads, by the tables' sizes on the server's disk: a second or a few. A large table of which no key lies
in order is read by one step."""

_TURNS: Final = Turns("verify", rest=1)

_FIRST_S: Final = 60.0
_LOOK_S: Final = 300.0
"""How often it is looked for a table that is due; and after so long a step that has failed is tried again."""

_PATIENCE_S: Final = 60.0


_LONG_S: Final = 600.0
"""A step that takes longer does not keep the other subscriptions waiting: of a large table, or of a server that does
not answer."""

_LAST_S: Final = 3.0
"""How long to wait for the end of one that was cut short."""

_MOST_WAL_BYTES: Final = 1 << 30


class Step(NamedTuple):
    """What is compared under one snapshot: tables as a whole, or a part of one."""

    rels: Sequence[RelRow]
    part: Part | None
    size_bytes: float


class Verifier:
    """Verifies the tables of one subscription.

    Args:
        spark: The subscription's session.
        log: Its logger.
    """

    def __init__(
        self, subscription: Subscription, spark: SparkSession, catalog: Catalog, log: FilteringBoundLogger
    ) -> None:
        self._subscription, self._spark, self._catalog, self._log = subscription, spark, catalog, log
        self._every_s = 3600 * subscription.workers.verify_every_h
        self._stopping = False
        self._wake = threading.Event()
        self._answer: Future[float] | None = None
        self._verification: Verification | None = None
        self._unchanged_until_s: dict[RelRow, float] = {}
        self._failed_s: dict[str, float] = {}  # by table: when a step of it failed; its next step has no other table
        self._told = ""  # the last error

    def start(self) -> None:
        """Begin, if the configuration says so."""
        if self._every_s:
            _TURNS.begin(self._again, _FIRST_S)

    def stop(self) -> None:
        """End. A step under way is cut short, and not recorded: the next start repeats it."""
        self._stopping = True
        self._wake.set()
        _TURNS.end(self._again)
        if (verification := self._verification) is not None:
            interrupt(self._spark, "hashing")
            verification.cut()
        if (answer := self._answer) is not None:
            with suppress(TimeoutError):
                answer.result(_LAST_S)

    def _again(self) -> float:
        self._wake.clear()
        if self._stopping or (self._answer is not None and not self._answer.done()):
            return _LOOK_S
        answer = self._answer = detached(self.turn, f"verify {self._subscription.name}")  # it may wait for the server
        answer.add_done_callback(lambda _: self._wake.set())
        self._wake.wait(_LONG_S)
        return answer.result() if answer.done() else _LOOK_S

    def turn(self) -> float:
        """Take a step, if a table is due; returns after how many seconds to come again."""
        try:
            after_s = self._step()
        except Exception as error:  # noqa: BLE001 - whatever it was, the subscription goes on without
            text = str(error).partition("\n")[0]
            if not self._stopping and text != self._told:
                own = isinstance(error, errors.BridgeError)
                self._log.warning("tables cannot be verified now; they are tried again", error=text, exc_info=not own)
            self._told = text
            return _LOOK_S
        finally:
            self._verification = None
        self._told = ""
        return after_s

    def _step(self) -> float:
        name, began_s = self._subscription.name, time.monotonic()
        row = self._catalog.subscription(name)
        due = self._due() if row is not None and row.state == "streaming" else {}
        if not due or self._stopping:
            return _LOOK_S
        with (
            Publisher(self._subscription.connection, application_name=f"{name}_verify") as publisher,
            FilterServer(self._subscription) as filter_server,
        ):
            published = Published.read(self._subscription, publisher, self._log, filter_server)
            step = self._chosen(publisher, published, due)
            wanted = {rel.qualified_name for rel in step.rels}
            verification = self._verification = Verification(
                self._spark,
                self._catalog,
                self._subscription,
                published,
                running=lambda: True,
                pace=Pace(),
                patience_s=_PATIENCE_S + self._subscription.batch.commit_interval_s,
                shown=0,
                part=step.part,
                stopping=lambda: self._stopping,
                most_wal_bytes=_MOST_WAL_BYTES,
            )
            self._failed_s |= dict.fromkeys(wanted, time.time())
            verification.run(wanted.__contains__)
            for relation in wanted:
                del self._failed_s[relation]
        for rel, was, now in verification.noted:
            self._tell(rel, was, now)
        seconds = time.monotonic() - began_s
        return max(1.0, step.size_bytes / self._subscription.workers.max_verify_rate_bytes_s - seconds)

    def _due(self) -> dict[RelRow, VerifiedRow | None]:
        """The tables that are due, with what is known of each: the one first that was looked at longest ago.

        A failed step is not in the catalog, where it would make its tables due much later.
        """
        rels = [rel for rel in self._catalog.rels(self._subscription.name) if takes_part(self._subscription, rel)]
        known, now_s = verified.rows(self._catalog, self._subscription.name, rels), time.time()
        due = [rel for rel in rels if due_s(known.get(rel), self._every_s, changed=True) <= now_s]
        failed_s = self._failed_s
        due.sort(
            key=lambda rel: max(known[rel].tried_s if rel in known else 0.0, failed_s.get(rel.qualified_name, 0.0))
        )
        return {rel: known.get(rel) for rel in due if not self._is_unchanged(rel, known.get(rel), now_s)}

    def _is_unchanged(self, rel: RelRow, row: VerifiedRow | None, now_s: float) -> bool:
        """Whether a table is left out because its Delta table is as it was found equal. It is not asked for often."""
        if row is None or row.version is None or due_s(row, self._every_s, changed=False) <= now_s or self._stopping:
            return False
        place = replace(rel, position=INVALID)
        if self._unchanged_until_s.get(place, 0.0) <= now_s:
            # an error is told by its verification
            with suppress(errors.TargetError), told(self._spark):
                if table_version(self._spark, rel.path) == row.version:
                    self._unchanged_until_s[place] = now_s + self._every_s
        return self._unchanged_until_s.get(place, 0.0) > now_s

    def _chosen(self, publisher: Publisher, published: Published, due: Mapping[RelRow, VerifiedRow | None]) -> Step:
        rels: list[RelRow] = []
        total_bytes = 0
        for rel, row in due.items():
            table = published.tables.get((rel.namespace, rel.name))
            size_bytes = publisher.table_bytes(table.relid) if table is not None else 0
            alone = rel.qualified_name in self._failed_s
            if rels and (alone or total_bytes + size_bytes > _STEP_BYTES):
                break
            rels.append(rel)
            total_bytes += size_bytes
            if table is not None and size_bytes > _STEP_BYTES:
                return self._large(publisher, published, table, size_bytes, rel, row)
            if alone:
                break
        return Step(rels, None, total_bytes)

    def _large(
        self,
        publisher: Publisher,
        published: Published,
        table: PublishedTable,
        size_bytes: int,
        rel: RelRow,
        row: VerifiedRow | None,
    ) -> Step:
        """A step of a table that is too large for one, if it can be divided."""
        types = published.types([column.sent_type for column in table.columns])
        schema = pa.schema([(column.name, type_.arrow) for column, type_ in zip(table.columns, types, strict=True)])
        number = size_bytes // _STEP_BYTES + 1
        key = key_of(table)
        renamed = any(column.renamed is not None for column in table.columns if column.name in key)
        parts = None if table.relkind == "p" or renamed else key_parts(publisher, table, key, schema, number)
        if parts is None:
            return Step([rel], None, size_bytes)
        begun = row.begun if row is not None and row.begun and row.begun.column == parts.column else None
        part = part_from(parts, None if begun is None else begun.lower)
        return Step([rel], part, size_bytes / (len(parts.bounds) + 1))

    def _tell(self, rel: RelRow, was: VerifiedRow | None, now: VerifiedRow) -> None:
        differed = was is not None and was.differs is not None
        if now.differs is not None and not differed:
            self._log.error(
                "a table differs from the published one",
                relation=rel.qualified_name,
                rows=now.differs,
                lsn=str(now.differs_lsn),
                hint=remedies.of_difference(self._subscription.name, rel.qualified_name),
            )
        elif now.differs is None and differed:
            self._log.info("a table equals the published one again", relation=rel.qualified_name)
