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
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from bridge.apply.published import Published
from bridge.catalog import verified
from bridge.lake.table import table_version
from bridge.receive.filter_server import FilterServer
from bridge.receive.publisher import Publisher
from bridge.runtime import errors, remedies
from bridge.runtime.threads import Turns, detached
from bridge.spark.session import interrupt, told
from bridge.sync.copy_reader import key_of
from bridge.sync.key_order import key_parts
from bridge.sync.table_reading import RANGE_BYTES, Pace
from bridge.verify.part import part_from
from bridge.verify.schedule import due_s
from bridge.verify.verification import Verification

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from bridge.catalog.catalog import Catalog
    from bridge.catalog.catalog_rows import RelRow
    from bridge.config.config import Subscription
    from bridge.publication.published_table import PublishedTable
    from bridge.verify.part import Part

_STEP_BYTES: Final = 2 * RANGE_BYTES
"""What a step reads, by the tables' sizes on the server's disk: a second or a few. A large table of which no key lies
in order is read by one step."""

_TURNS: Final = Turns("verify", rest=1)

_FIRST_S: Final = 60.0
_LOOK_S: Final = 300.0
"""How often it is looked for a table that is due; and after so long a step that has failed is tried again."""

_PATIENCE_S: Final = 60.0


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
        self._told = ""  # the last error

    def start(self) -> None:
        """Begin, if the configuration says so."""
        if self._every_s:
            _TURNS.begin(self._again, _FIRST_S)

    def stop(self) -> None:
        """End. A step under way is not waited for, and not recorded: the next start repeats it."""
        self._stopping = True
        self._wake.set()
        interrupt(self._spark, "hashing")
        _TURNS.end(self._again)

    def _again(self) -> float:
        self._wake.clear()
        if self._stopping:
            return _LOOK_S
        answer = detached(self.turn, f"verify {self._subscription.name}")  # it may wait for the server
        answer.add_done_callback(lambda _: self._wake.set())
        self._wake.wait()
        return answer.result() if answer.done() else _LOOK_S

    def turn(self) -> float:
        """Take a step, if a table is due; returns after how many seconds to come again."""
        try:
            after_s = self._step()
        except Exception as error:  # noqa: BLE001 - whatever it was, the subscription goes on without
            text = str(error).partition("\n")[0]
            if not self._stopping and text != self._told:
                self._log.warning("tables cannot be verified now; they are tried again", error=text)
            self._told = text
            return _LOOK_S
        self._told = ""
        return after_s

    def _step(self) -> float:
        name, began_s = self._subscription.name, time.monotonic()
        row = self._catalog.subscription(name)
        due = self._due() if row is not None and row.state == "streaming" else []
        if not due:
            return _LOOK_S
        with (
            told(self._spark),
            Publisher(self._subscription.connection, application_name=f"{name}_verify") as publisher,
            FilterServer(self._subscription) as filter_server,
        ):
            published = Published.read(self._subscription, publisher, self._log, filter_server)
            step = self._chosen(publisher, published, due)
            wanted = {rel.qualified_name for rel in step.rels}
            verification = Verification(
                self._spark,
                self._catalog,
                self._subscription,
                published,
                running=self._goes_on,
                pace=Pace(),
                patience_s=_PATIENCE_S,
                shown=0,
                progress=lambda *_: self._raise_if_stopping(),
                part=step.part,
            )
            before = verified.rows(self._catalog, name)
            verification.run(wanted.__contains__)
        self._tell(step.rels, before)
        seconds = time.monotonic() - began_s
        return max(1.0, step.size_bytes / self._subscription.workers.max_verify_rate_bytes_s - seconds)

    def _goes_on(self) -> bool:
        """The daemon applies the stream: it is this one."""
        self._raise_if_stopping()
        return True

    def _raise_if_stopping(self) -> None:
        if self._stopping:
            raise errors.VerifyError("the daemon ends")

    def _due(self) -> list[RelRow]:
        """The tables that are due: one under way first, then the one that was verified longest ago."""
        known = verified.rows(self._catalog, self._subscription.name)
        order: list[tuple[bool, float, RelRow]] = []
        now_s = time.time()
        for rel in self._catalog.rels(self._subscription.name):
            if not rel.follows or self._subscription.mode_of(rel.qualified_name) == "changelog":
                continue
            row = known.get((rel.namespace, rel.name))
            if due_s(row, self._every_s, changed=True) > now_s:
                continue
            seldom = row is not None and due_s(row, self._every_s, changed=False) > now_s
            if row is not None and seldom and self._version(rel) == row.version:
                continue
            under_way = row is not None and row.begun is not None
            order.append((not under_way, row.tried_s if row else 0.0, rel))
        return [rel for *_, rel in sorted(order, key=lambda each: each[:2])]

    def _version(self, rel: RelRow) -> int | None:
        """A Delta table's version; None if it cannot be read, which its verification will say."""
        with suppress(errors.TargetError), told(self._spark):
            return table_version(self._spark, rel.path)
        return None

    def _chosen(self, publisher: Publisher, published: Published, due: Sequence[RelRow]) -> Step:
        rels: list[RelRow] = []
        total_bytes = 0
        for rel in due:
            table = published.tables.get((rel.namespace, rel.name))
            size_bytes = publisher.table_bytes(table.relid) if table is not None else 0
            if rels and total_bytes + size_bytes > _STEP_BYTES:
                break
            rels.append(rel)
            total_bytes += size_bytes
            if table is not None and len(rels) == 1 and size_bytes > _STEP_BYTES:
                number = size_bytes // _STEP_BYTES + 1
                part = self._next_part(publisher, published, rel, table, number)
                return Step(rels, part, size_bytes / (number if part else 1))
        return Step(rels, None, total_bytes)

    def _next_part(
        self, publisher: Publisher, published: Published, rel: RelRow, table: PublishedTable, number: int
    ) -> Part | None:
        """The part of a large table that comes next, of about so many; None if it cannot be divided."""
        types = published.types([(column.type_oid, column.typmod) for column in table.columns])
        schema = pa.schema([(column.name, type_.arrow) for column, type_ in zip(table.columns, types, strict=True)])
        parts = None if table.relkind == "p" else key_parts(publisher, table, key_of(table), schema, number)
        if parts is None:
            return None
        row = verified.rows(self._catalog, self._subscription.name).get((rel.namespace, rel.name))
        begun = row.begun if row is not None else None
        # one that was copied since begins anew
        goes_on = begun is not None and begun.column == parts.column and rel.lsn <= begun.lsn
        return part_from(parts, begun.lower if begun is not None and goes_on else None)

    def _tell(self, rels: Sequence[RelRow], before: dict[tuple[str, str], verified.VerifiedRow]) -> None:
        after = verified.rows(self._catalog, self._subscription.name)
        for rel in rels:
            was, now = (rows.get((rel.namespace, rel.name)) for rows in (before, after))
            differed = was is not None and was.differing(rel) is not None
            if now is None:
                continue
            if now.differing(rel) is not None and not differed:
                self._log.error(
                    "a table differs from the published one",
                    relation=rel.qualified_name,
                    rows=now.differs,
                    lsn=str(now.differs_lsn),
                    hint=remedies.of_difference(self._subscription.name, rel.qualified_name),
                )
            elif now.differs is None and differed:
                self._log.info("a table equals the published one again", relation=rel.qualified_name)
