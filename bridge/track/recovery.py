"""Compares a subscription's durable positions with a server's history, and decides what becomes of each. Pure.

Every position that was recorded as durable is compared before anything is streamed: the origin, each table, the batch
under way, the transaction to skip, the batch that a handler did not accept. A position that the server does not have is
never passed over: its table is copied afresh, its batch is taken back, or the server is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridge.track.position import Missing, Position, ServerHistory


@dataclass(frozen=True, slots=True)
class Held:
    """The durable positions of a subscription, or of its tablesync worker.

    Attributes:
        origin: Every transaction that ends at or before it is durable.
        batch: The end of the batch under way; None without one.
        tables: What each table has, by (namespace, name).
        skip: The finish LSN of the transaction to skip.
        fence: The end of a batch that a handler was given and did not accept.
    """

    origin: Position
    batch: Position | None
    tables: Mapping[tuple[str, str], Position]
    skip: Position | None = None
    fence: Position | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of the comparison with a server's history.

    Attributes:
        refused: Why nothing can be streamed from the server.
        position: The position that this is about.
        undo: The batch under way is to be taken back: the server does not have it.
        afresh: Tables that have more than the server, and why; they are to be copied afresh.
        skips_another: The LSN to skip is of a transaction that the server does not have.
    """

    refused: Missing | None = None
    position: Position | None = None
    undo: bool = False
    afresh: Mapping[tuple[str, str], Missing] = field(default_factory=dict)
    skips_another: bool = False

    @property
    def has_all(self) -> bool:
        """Whether the server has all that is durable here."""
        return self == Comparison()


def compare(held: Held, server: ServerHistory) -> Comparison:
    """Compare what is durable here with what a server has."""
    for position in filter(None, (held.origin, held.fence)):
        if (refused := server.missing(position)) is not None:
            return Comparison(refused, position)
    lacking = {table: missing for table, at in held.tables.items() if (missing := server.missing(at)) is not None}
    undo = held.batch is not None and server.missing(held.batch) is not None
    for at in (*(held.tables[table] for table in lacking), *filter(None, [held.batch])):
        if (missing := server.missing(at)) is not None and missing.later:  # a standby that lags: it is waited for
            return Comparison(missing, at)
    skip = held.skip
    # one that is to come may be skipped, too: it is another one only if the server left its timeline before it
    skips_another = skip is not None and skip.timeline not in {None, server.timeline} and bool(server.missing(skip))
    return Comparison(undo=undo, afresh=lacking, skips_another=skips_another)
