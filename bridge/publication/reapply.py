"""A subscription's publications on its server: those of its definitions file, or the server's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.errors import PublicationError
from bridge.publication.coverage import Gap, gaps
from bridge.publication.definitions import load
from bridge.publication.identity import Refusal, refusals
from bridge.publication.routing import Routing
from bridge.receive.relations import read_publications, read_relations

if TYPE_CHECKING:
    from bridge.config import Subscription
    from bridge.publication.publication import Publication
    from bridge.receive.publisher import Publisher


@dataclass(frozen=True, slots=True)
class Applied:
    """What applies to a subscription's stream.

    Attributes:
        routing: By the definitions, or by the server's publications where there are none.
        stream: By the server's publications: as which tables, and how, changes arrive.
        gaps: What the stream lacks for the definitions.
        refusals: UPDATEs and DELETEs that the server would refuse if the definitions were its own publications.
    """

    routing: Routing
    stream: Routing
    gaps: tuple[Gap, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    def check(self) -> None:
        """Refuse what cannot be re-applied rightly.

        Raises:
            PublicationError: The stream lacks what they need.
        """
        for gap in self.gaps:
            if gap.fatal:
                raise PublicationError(
                    gap.message, hint="publication_definitions need a stream of whole, unfiltered tables"
                )


def definitions_of(subscription: Subscription) -> tuple[Publication, ...] | None:
    """The publications of the subscription's file; None without one.

    Raises:
        ConfigError: The file has changed since the configuration was read, and cannot be used now.
    """
    path = subscription.publication_definitions
    return None if path is None else load(Path(path))


def apply_publications(
    subscription: Subscription,
    publisher: Publisher,
    definitions: tuple[Publication, ...] | None,
    *,
    missing_ok: bool = False,
) -> Applied:
    """Read the catalog, and work out what applies.

    Args:
        subscription: Names the server's publications.
        publisher: The server.
        definitions: What `definitions_of` gave; read once, so that a file that is being edited does no harm.
        missing_ok: A table of the definitions that is not there is passed over: for a look at the catalog while
            the stream runs, when a table may just have been dropped.

    Raises:
        PublicationError: The publications do not fit the tables, or not each other.
        PublisherError: A publication does not exist, or the server cannot answer.
    """
    relations = read_relations(publisher)
    stream = Routing(read_publications(publisher, subscription.publications), relations, missing_ok=True)
    if definitions is None:
        return Applied(stream, stream)
    routing = Routing(definitions, relations, missing_ok=missing_ok)
    return Applied(routing, stream, tuple(gaps(routing, stream)), tuple(refusals(routing)))
