"""A server that computes row filters: the one whose verdicts are PostgreSQL's because they are PostgreSQL's.

It has a connection of its own, which reads only and sees no table: the rows come as parameters, as the stream had them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import psycopg
from psycopg import errors, pq

import sql
from bridge.errors import ConfigError, PublisherError
from bridge.receive.connection import connect, dictionaries, translated
from bridge.rowfilter.on_server import parse_tree, server_filter
from bridge.rowfilter.on_server.server_filter import VerdictError
from bridge.sqltext.refusal import MUTABLE_FUNCTIONS, Refused, RowFilterError
from protocol.messages import ValueKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from bridge.config import Subscription
    from bridge.rowfilter.on_server.server_filter import Candidate, ServerColumn, ServerFilter
    from protocol.messages import Tuple
    from protocol.values.value_array import Bools

_SETTINGS: Final = {
    "default_transaction_read_only": "on",
    # What an expression's text means, and its literals, beyond what every connection of the bridge has.
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "datestyle": "ISO, MDY",
    # The expression is computed for each row, and not with a row's values for constants.
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
_ROWS: Final = 1000
_PARAMETERS: Final = 65_535  # of a statement, by the protocol
_BYTES: Final = 8 << 20
_NOT_OF_VALUES: Final = frozenset({"08", "25", "53", "57", "58"})
"""SQLSTATE classes of errors that no value causes: connection, transaction, resources, operators, system."""

_CLOCK_TYPES: Final = frozenset({1082, 1083, 1114, 1184, 1266})


class FilterServer:
    """The server of `untranslatable_filters = "server"`; connected when it is first asked.

    Args:
        subscription: Whose `filter_connection`, or else `connection`, it is.

    Raises:
        PublisherError: From every method, when the server cannot be reached or is lost; `retry` says which.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._connected: psycopg.Connection[tuple[Any, ...]] | None = None
        self._shown: list[str] = []
        self._taken: dict[tuple[str, tuple[str, str], tuple[ServerColumn, ...]], ServerFilter] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._connected is not None:
            self._connected.close()
        self._connected = None

    @property
    def _connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connected is None:
            self._connected = self._open(self._subscription.filter_connection or self._subscription.connection)
            self._connected.add_notice_handler(self._notice)
            if self._subscription.filter_connection is not None:
                self._check_alike()
        return self._connected

    def _open(self, conninfo: str) -> psycopg.Connection[tuple[Any, ...]]:
        connection = connect(conninfo, application_name=f"{self._subscription.name}_filter")
        try:
            for name, value in _SETTINGS.items():
                connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))
        except psycopg.Error as error:
            connection.close()
            raise translated(error, "cannot prepare the connection for row filters") from error
        return connection

    def _check_alike(self) -> None:
        """Refuse a server on which the same expression may mean something else.

        Raises:
            ConfigError: It is of another major version, or its database has another encoding or default collation.
        """
        with self._open(self._subscription.connection) as publisher:
            (theirs,), (ours,) = (
                list(dictionaries(one.execute(sql.load("locale")))) for one in (publisher, self._connection)
            )
        names = [name for name in ours if ours[name] != theirs[name]]
        if different := [f"{name} is {ours[name]!r}, not {theirs[name]!r}" for name in names]:
            self.close()
            raise ConfigError(
                f"filter_connection: that server does not compute as the publisher does: {'; '.join(different)}",
                hint="name a standby of the publisher, or leave filter_connection out",
            )

    def _notice(self, diagnostic: errors.Diagnostic) -> None:
        # not what a server's own settings (debug_print_rewritten, log_statement) add to it
        if (diagnostic.message_primary or "").startswith("parse tree") and diagnostic.message_detail:
            self._shown.append(diagnostic.message_detail)

    # --- which expressions ----------------------------------------------------------------------------------------

    def take(self, expression: str, columns: Mapping[str, ServerColumn], table: tuple[str, str]) -> ServerFilter:
        """Have the server read an expression, and hold what it makes of it against the rules for row filters.

        Args:
            expression: The text between the parentheses of WHERE.
            columns: The table's, by name.
            table: Its schema and name.

        Raises:
            RowFilterError: A publication on the server would not take it.
        """
        key = (expression, table, tuple(columns.values()))
        if key not in self._taken:
            try:
                self._taken[key] = self._read(server_filter.candidate(expression, columns, table))
            except Refused as refused:
                raise RowFilterError(expression, refused.at or 0, refused.reason) from None
        return self._taken[key]

    def _read(self, found: Candidate) -> ServerFilter:
        tree = parse_tree.where(self._parsed(found))
        wanted = {"functions": list(tree.functions), "operators": list(tree.operators)}
        mutable: dict[str, set[int]] = {"function": set(), "operator": set()}
        try:
            for kind, oid in self._connection.execute(sql.load("mutable_functions"), wanted):
                mutable[kind].add(oid)
        except psycopg.Error as error:
            raise translated(error, "cannot look up the functions of a row filter") from error
        try:
            tree.check(mutable["function"], mutable["operator"])
        except Refused as refused:
            raise Refused(refused.reason, found.place(refused.at or 0)) from None
        if found.reads_clock and not tree.constant_types.isdisjoint(_CLOCK_TYPES):
            raise Refused(f"{MUTABLE_FUNCTIONS} Nor is a time that is read from the clock.", 0)
        return found.taken(tree.columns)

    def _parsed(self, found: Candidate) -> str:
        """The statement's parse tree. The server's log has it too: a LOG message goes there as well."""
        connection = self._connection
        settings = {"debug_print_parse": "on", "debug_pretty_print": "off", "client_min_messages": "log"}
        try:
            before = {name: connection.execute("SELECT current_setting(%s)", (name,)).fetchone() for name in settings}
            for name, value in settings.items():
                connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            self._shown.clear()
            types = [column.type_oid for column in found.columns]
            result = connection.pgconn.prepare(b"", found.statement.encode(), types)
            shown = list(self._shown)
            for name, row in before.items():
                connection.execute("SELECT set_config(%s, %s, false)", (name, row[0] if row else None))
        except psycopg.Error as error:
            raise translated(error, "cannot have a row filter read") from error
        if result.status != pq.ExecStatus.COMMAND_OK:
            failure = errors.error_from_result(result)
            if (failure.sqlstate or "08")[:2] in _NOT_OF_VALUES:
                raise translated(failure, "cannot have a row filter read") from failure
            position = int(failure.diag.statement_position or 1)
            at = len(found.statement[: position - 1].encode())
            raise Refused(failure.diag.message_primary or str(failure), found.place(at))
        if not shown:
            raise PublisherError("the server did not show what it reads a row filter as (debug_print_parse)")
        return shown[-1]

    # --- verdicts -------------------------------------------------------------------------------------------------

    def verdicts(self, row_filter: ServerFilter, types: Sequence[int], rows: Sequence[Tuple]) -> Bools:
        """Which rows pass.

        Args:
            row_filter: The filter.
            types: OIDs of its columns' types, as the stream has them.
            rows: The values of its columns, as they were sent; unchanged TOAST stands for NULL.

        Raises:
            VerdictError: The server raises an error for a row; for the first of these.
            PublisherError: The server is lost.
        """
        most = max(1, min(_ROWS, _PARAMETERS // max(1, len(types))))
        found = np.zeros(len(rows), np.bool_)
        first = size = 0
        for i, row in enumerate(rows):
            size += sum(len(value.data) for value in row)
            if i + 1 - first == most or size >= _BYTES or i + 1 == len(rows):
                found[first : i + 1] = self._ask_dividing(row_filter, types, rows[first : i + 1], first)
                first, size = i + 1, 0
        return found

    def _ask_dividing(self, row_filter: ServerFilter, types: Sequence[int], rows: Sequence[Tuple], first: int) -> Bools:
        """The verdicts on some rows; where there is an error, on ever fewer of them, until it is known whose it is."""
        try:
            return self._ask(row_filter, types, rows)
        except psycopg.Error as error:
            if self._connection.closed or (error.sqlstate or "08")[:2] in _NOT_OF_VALUES:
                raise translated(error, "cannot have a row filter computed") from error
            if len(rows) == 1:
                raise VerdictError(first, error.diag.message_primary or str(error).strip()) from error
        middle = len(rows) // 2
        before = self._ask_dividing(row_filter, types, rows[:middle], first)
        return np.concatenate([before, self._ask_dividing(row_filter, types, rows[middle:], first + middle)])

    def _ask(self, row_filter: ServerFilter, types: Sequence[int], rows: Sequence[Tuple]) -> Bools:
        values = [value for row in rows for value in row]
        null, unchanged, binary = ValueKind.NULL, ValueKind.UNCHANGED_TOAST, ValueKind.BINARY
        result = self._connection.pgconn.exec_params(
            row_filter.statement(len(rows)).encode(),
            [None if value.kind is null or value.kind is unchanged else value.data for value in values],
            list(types) * len(rows),
            [1 if value.kind is binary else 0 for value in values],
        )
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise errors.error_from_result(result)
        letters = np.frombuffer(result.get_value(0, 0) or b"", np.uint8)
        if len(letters) != len(rows):
            raise PublisherError(f"the server gave {len(letters)} verdicts on {len(rows)} rows")
        passes: Bools = letters == ord("t")
        return passes
