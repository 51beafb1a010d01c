"""The types of a server's columns, asked for as they come up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.receive.publisher import Publisher
    from protocol.values.pg_type import TypeInfo
    from protocol.values.types import ColumnType


class ServerTypes:
    """Resolves the types of columns, and asks the server for those that are new.

    Args:
        publisher: The server.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._known: dict[int, TypeInfo] = {}

    def __call__(self, wanted: Sequence[tuple[int, int]]) -> list[ColumnType]:
        """Return how values of these (type oid, typmod) are decoded.

        Raises:
            PublisherError: The server cannot answer.
        """
        if any(oid not in self._known for oid, _ in wanted):
            self._known.update(self._publisher.types({oid for oid, _ in wanted}))
        return [resolve(oid, typmod, self._known) for oid, typmod in wanted]
