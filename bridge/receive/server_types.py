"""The types of a server's columns, asked for as they come up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.values.pg_type import BUILTIN
from protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bridge.receive.publisher import Publisher
    from protocol.values.pg_type import TypeInfo
    from protocol.values.types import ColumnType


class ServerTypes:
    """Resolves the types of columns, and asks the server for those that are new.

    A type never changes into another one, so one that the server has dropped is what it was.

    Args:
        publisher: The server.
        kept: What was found earlier, by oid: of types that the server may have dropped since.
        keep: Called with what is found beyond that, and is not built in.
    """

    def __init__(
        self,
        publisher: Publisher,
        kept: Mapping[int, TypeInfo] | None = None,
        keep: Callable[[Sequence[TypeInfo]], None] = lambda _: None,
    ) -> None:
        self._publisher = publisher
        self._kept = dict(kept or {})
        self._keep = keep
        self._known: dict[int, TypeInfo] = {}

    def __call__(self, wanted: Sequence[tuple[int, int]]) -> list[ColumnType]:
        """Return how values of these (type oid, typmod) are decoded.

        Raises:
            PublisherError: The server cannot answer.
        """
        if any(oid not in self._known for oid, _ in wanted):
            found = self._publisher.types({oid for oid, _ in wanted})
            new = [info for oid, info in found.items() if oid not in BUILTIN and self._kept.get(oid) != info]
            if new:
                self._keep(new)
            self._kept.update((info.oid, info) for info in new)
            self._known = {**self._kept, **self._known, **found}
        return [resolve(oid, typmod, self._known) for oid, typmod in wanted]
