"""Offsets, as Spark's checkpoint keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bridge.runtime.errors import StateError
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Offset:
    """A position of a server's WAL: all transactions that end at or before it belong to earlier batches.

    It need not be the end of a transaction.

    Attributes:
        system_identifier: The server's cluster: a query keeps to it.
        timeline: The timeline of the server that the WAL up to it came from; it stays, whatever server is read later.
            None if an earlier version of pgbridge wrote the offset on a standby.
        timeline_lsn: The last position that is certainly of that timeline; None for the offset itself.
    """

    lsn: Lsn
    system_identifier: str
    timeline: int | None = None
    timeline_lsn: Lsn | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into its checkpoint."""
        timeline = {} if self.timeline is None else {"timeline": self.timeline}
        certain = {} if self.timeline_lsn is None else {"timeline_lsn": str(self.timeline_lsn)}
        return {"lsn": str(self.lsn), "system_identifier": self.system_identifier, **timeline, **certain}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Offset:
        """Read an offset of a checkpoint.

        Raises:
            StateError: It is none of this source.
        """
        try:
            timeline, certain = fields.get("timeline"), fields.get("timeline_lsn")
            return cls(
                Lsn.parse(fields["lsn"]),
                str(fields["system_identifier"]),
                None if timeline is None else int(timeline),
                None if certain is None else Lsn.parse(certain),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(
                f'the checkpoint has an offset that format("pgoutput") did not write: {fields}',
                hint="give the query a checkpointLocation of its own",
            ) from error


@dataclass(frozen=True, slots=True)
class Server:
    """The server that a connection leads to.

    Attributes:
        timeline: The timeline that it writes, or replays if it is a standby.
        replayed_lsn: How far a standby was when it was asked: from there on it may replay another timeline. None for a
            primary, whose timeline does not change while it runs.
    """

    system_identifier: str
    timeline: int
    replayed_lsn: Lsn | None

    def offset(self, lsn: Lsn) -> Offset:
        """Return a position of its WAL as an offset."""
        certain = None if self.replayed_lsn is None or lsn <= self.replayed_lsn else self.replayed_lsn
        return Offset(lsn, self.system_identifier, self.timeline, certain)
