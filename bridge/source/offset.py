"""Offsets, as Spark's checkpoint keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bridge.errors import StateError
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Offset:
    """A position of a server's WAL: all transactions that end at or before it belong to earlier batches.

    It need not be the end of a transaction.

    Attributes:
        system_identifier: The server's cluster: a query keeps to it.
        timeline: The server's timeline when the offset was made; None on a standby, which may change it while it sends.
    """

    lsn: Lsn
    system_identifier: str
    timeline: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into its checkpoint."""
        timeline = {} if self.timeline is None else {"timeline": self.timeline}
        return {"lsn": str(self.lsn), "system_identifier": self.system_identifier, **timeline}

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Offset:
        """Read an offset of a checkpoint.

        Raises:
            StateError: It is none of this source.
        """
        try:
            timeline = found.get("timeline")
            return cls(
                Lsn.parse(found["lsn"]), str(found["system_identifier"]), None if timeline is None else int(timeline)
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(
                f'the checkpoint has an offset that format("pgoutput") did not write: {found}',
                hint="give the query a checkpointLocation of its own",
            ) from error
