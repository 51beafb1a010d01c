"""Publications of a definitions file, re-applied to the stream of the server's own; or those alone, without a file.

`bridge.receive.publications` reads the catalog for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.errors import PublicationError
from bridge.publication.coverage import Gap, gaps
from bridge.publication.partition_identity import partition_refusals
from bridge.publication.replica_identity import Refusal, refusals
from bridge.publication.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bridge.publication.publication import Publication
    from bridge.publication.tables import Relations


@dataclass(frozen=True, slots=True)
class Applied:
    """What applies to a subscription's stream.

    Attributes:
        routing: By the definitions, or by the server's publications where there are none.
        stream: By the server's publications: as which tables, and how, changes arrive.
        gaps: What the definitions need and the stream does not carry.
        refusals: UPDATEs and DELETEs that the server would refuse if the definitions were its own publications.
    """

    routing: Routing
    stream: Routing
    gaps: tuple[Gap, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    @property
    def sequences(self) -> tuple[str, ...]:
        """A sentence on each publication FOR ALL SEQUENCES."""
        members = (*self.stream.memberships, *self.routing.memberships)
        return tuple(
            f'publication "{name}" has ALL SEQUENCES: no stream carries a sequence, and pgbridge does not copy any'
            for name in dict.fromkeys(one.publication.name for one in members if one.publication.all_sequences)
        )

    def check(self) -> None:
        """Refuse definitions that the stream cannot serve.

        Raises:
            PublicationError: The stream does not carry what they need.
        """
        for gap in self.gaps:
            if gap.fatal:
                raise PublicationError(
                    gap.message, hint="publication_definitions need a stream of whole, unfiltered tables"
                )


def reapply(
    definitions: Sequence[Publication] | None,
    server_publications: Sequence[Publication],
    relations: Relations,
    *,
    missing_ok: bool = False,
    followed: Collection[tuple[str, str]] = (),
) -> Applied:
    """Work out what applies to a subscription's stream.

    Args:
        definitions: The publications of the subscription's file; None without one.
        server_publications: The server's publications that the stream has.
        relations: The server's tables.
        missing_ok: Pass over tables of the definitions that do not exist: while the stream runs, one may just have
            been dropped.
        followed: As for `membership.resolve`.

    Raises:
        PublicationError: The publications contradict the tables or each other.
    """
    stream = Routing(server_publications, relations, missing_ok=True)
    if definitions is None:
        return Applied(stream, stream)
    routing = Routing(definitions, relations, missing_ok=missing_ok, followed=followed)
    refused = (*refusals(routing), *partition_refusals(routing, stream))
    return Applied(routing, stream, tuple(gaps(routing, stream)), refused)
