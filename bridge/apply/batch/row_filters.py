"""Row filters that Spark computes, as batches know them. `delta/filter_changes` applies them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

    from bridge.apply.batch.server_filters import ServerFilters
    from bridge.publication.entry import Entry


class RowFilter(Protocol):
    """A condition on a row."""

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that it looks at."""

    def to_spark(self, resolve: Callable[[str], Column]) -> Column:
        """The condition over the columns that `resolve` gives by name; NULL where PostgreSQL has NULL."""


@dataclass(frozen=True, slots=True)
class RowFilters:
    """A table's filters by action; None where all rows pass."""

    insert: RowFilter | None = None
    update: RowFilter | None = None
    delete: RowFilter | None = None

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that any of them looks at."""
        return frozenset().union(*(f.columns for f in (self.insert, self.update, self.delete) if f is not None))

    def __bool__(self) -> bool:
        return any(f is not None for f in (self.insert, self.update, self.delete))


class FilterCompiler(Protocol):
    """Makes the row filters of an entry of the publications."""

    def compile(self, entry: Entry) -> RowFilters | ServerFilters:
        """The filters of an entry, by action.

        Raises:
            ConfigError: A filter cannot be computed exactly as PostgreSQL computes it.
        """

    def columns_of(self, text: str) -> frozenset[str]:
        """Names of the columns that a filter's text may look at, as exactly as they are known."""
