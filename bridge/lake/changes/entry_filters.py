"""Makes a routing entry's row filters (`pgoutput_row_filter_init`): translated to Spark, or computed by a server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from bridge.batch.row_filters import RowFilters, ServerFilters, VerdictSource
from bridge.publication.replica_identity import column_names
from bridge.rowfilter import row_filter
from bridge.rowfilter.on_server import server_filter
from bridge.rowfilter.on_server.server_filter import ServerColumn, ServerFilter
from bridge.sqltext.refusal import OF_POSTGRESQL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column

    from bridge.publication.entry import Entry
    from bridge.publication.publication import Action
    from bridge.publication.tables import Collation as CatalogCollation
    from protocol.values.types import ColumnType

    Types = Callable[[Sequence[tuple[int, int]]], list[ColumnType]]

_ROW_ACTIONS: Final[tuple[Action, ...]] = ("insert", "update", "delete")


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Row filters of several publications, combined by OR."""

    filters: tuple[row_filter.RowFilter, ...]

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that they use."""
        return frozenset().union(*(one.columns for one in self.filters))

    def to_spark(self, resolve: Callable[[str], Column]) -> Column:
        """The condition; NULL if none is true and one is NULL."""
        first, *others = (one.to_spark(resolve) for one in self.filters)
        for other in others:
            first |= other
        return first


class FilterServer(VerdictSource, Protocol):
    """A PostgreSQL server that computes row filters which are not translated."""

    def accept(self, expression: str, columns: Mapping[str, ServerColumn], table: tuple[str, str]) -> ServerFilter:
        """Have the server parse an expression.

        Raises:
            RowFilterError: A publication would refuse the expression.
        """


_NO_COLUMN: Final = re.compile('column ".*" does not exist', re.DOTALL)


class EntryFilterCompiler:
    """Makes the filters of entries.

    Args:
        types: Resolves (type oid, typmod).
        server: Computes all filters of a table if one of them is not translated; None to refuse such a filter.
        encoding: The encoding of the publisher's database.
        beyond_spark: Computes translated filters for the rows with a value that Spark has no equal of.
    """

    def __init__(
        self,
        types: Types,
        server: FilterServer | None,
        encoding: str = "UTF8",
        beyond_spark: FilterServer | None = None,
    ) -> None:
        self._types = types
        self._server = server
        self._encoding = encoding
        self._beyond_spark = beyond_spark
        self._used_columns: dict[str, frozenset[str]] = {}  # by the expression, of filters that the server computes

    def compile(self, entry: Entry) -> RowFilters | ServerFilters:
        """Return an entry's filters, by action.

        Raises:
            RowFilterError: A filter cannot be computed exactly as PostgreSQL does.
        """
        try:
            return self._translated(entry)
        except row_filter.RowFilterError as error:
            if self._server is not None:
                return self._served(entry, self._server)
            if error.reason in OF_POSTGRESQL or _NO_COLUMN.fullmatch(error.reason):
                raise  # a server would refuse it, too
            hint = 'filter_server = "publisher" has the PostgreSQL server compute it'
            raise row_filter.RowFilterError(error.expression, error.at, error.reason, hint=hint) from None

    def columns_of(self, text: str) -> frozenset[str]:
        """Names of the columns that a filter uses; of an unparsed one, all names in it."""
        return self._used_columns.get(text) or column_names(text)

    def _served(self, entry: Entry, server: FilterServer) -> ServerFilters:
        target = entry.target
        columns = {
            column.name: ServerColumn(column.name, column.type_oid, column.collation.name if column.collation else None)
            for column in target.columns
        }

        def of(texts: Sequence[str]) -> ServerFilter | None:
            table = (target.namespace, target.name)
            taken = [server.accept(text, columns, table) for text in texts]
            for one in taken:
                self._used_columns[one.expression] = self._used_columns.get(one.expression, frozenset()).union(
                    one.columns
                )
            return server_filter.any_of(taken) if taken else None

        filters = entry.filters
        insert, update, delete = (of(filters.get(action, ())) for action in _ROW_ACTIONS)
        return ServerFilters(server, insert, update, delete)

    def _translated(self, entry: Entry) -> RowFilters:
        target = entry.target
        types = self._types([(column.type_oid, column.typmod) for column in target.columns])
        columns = {
            column.name: row_filter.FilterColumn(type_, _collation(column.collation))
            for column, type_ in zip(target.columns, types, strict=True)
        }

        def of(texts: Sequence[str]) -> AnyOf | None:
            if not texts:
                return None
            table = (target.namespace, target.name)
            return AnyOf(
                tuple(row_filter.translate(text, columns, table=table, encoding=self._encoding) for text in texts)
            )

        filters = entry.filters
        insert, update, delete = (of(filters.get(action, ())) for action in _ROW_ACTIONS)
        server = self._beyond_spark
        return RowFilters(insert, update, delete, None if server is None else partial(self._served, entry, server))


def _collation(collation: CatalogCollation | None) -> row_filter.Collation | None:
    if collation is None:
        return None
    schema, _, name = collation.name.partition(".")
    return row_filter.Collation(
        name,
        bytewise=collation.bytewise,
        deterministic=collation.deterministic,
        ascii_case=collation.ctype in {"C", "POSIX"} and collation.provider in {"b", "c"},
        default=name == "default",
        user_defined=schema != "pg_catalog",
    )
