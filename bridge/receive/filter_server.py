"""A PostgreSQL server that evaluates the row filters that are not translated (the key `filter_server`).

It is used over a read-only connection of its own and reads no table: rows are sent as parameters, with the values of
the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psycopg

from pgbridge import sql
from pgbridge.bridge.receive.connection import connect, dictionaries, follow_encoding, translated
from pgbridge.bridge.rowfilter import server_filter
from pgbridge.bridge.runtime import errors, threads
from pgbridge.bridge.sqltext.refusal import MUTABLE_FUNCTIONS, Refused, RowFilterError
from pgbridge.protocol.codec.messages import Tuple, ValueKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgbridge.bridge.config.config import Subscription
    from pgbridge.protocol.values.value_array import Bools

_SETTINGS: Final = {
    "default_transaction_read_only": "on",
    # One plan for all rows, in which a row's values are parameters, not constants.
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
_ROWS_AT_ONCE: Final = 1000
_MAX_PARAMETERS: Final = 65_535  # of a statement, by the protocol
_BYTES_AT_ONCE: Final = 8 << 20
_NOT_CAUSED_BY_VALUES: Final = frozenset({"08", "25", "53", "57", "58"})
"""SQLSTATE classes of errors that no value causes: connection, transaction, resources, operator, system."""

_CLOCK_TYPES: Final = frozenset({1082, 1083, 1114, 1184, 1266})


class FilterServer(threads.Closing):
    """Evaluates row filters on a server; connects on first use.

    Args:
        subscription: Its `filter_connection` is that server's, or else its `connection`.

    Raises:
        PublisherError: From every method, if the server cannot be reached or the connection is lost; `retry` tells
            whether trying again may help.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._opened: psycopg.Connection[tuple[Any, ...]] | None = None
        self._log_details: list[str] = []
        self._accepted: dict[
            tuple[str, tuple[str, str], tuple[server_filter.ServerColumn, ...]], server_filter.ServerFilter
        ] = {}

    def close(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    @property
    def _connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._opened is None:
            self._opened = self._open(self._subscription.filter_connection or self._subscription.connection)
            self._opened.add_notice_handler(self._notice)
            if self._subscription.filter_connection is not None:
                self._check_same_results()
        return self._opened

    def _open(self, conninfo: str) -> psycopg.Connection[tuple[Any, ...]]:
        connection = connect(conninfo, application_name=f"{self._subscription.name}_filter")
        try:
            for name, value in _SETTINGS.items():
                connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))
            follow_encoding(connection)  # values are sent as the stream has them
        except psycopg.Error as error:
            connection.close()
            raise translated(error, "cannot prepare the connection for row filters") from error
        return connection

    def _check_same_results(self) -> None:
        """Refuse a server on which an expression may have another result than on the publisher.

        Raises:
            ConfigError: It has another major version, or its database another encoding or default collation.
        """
        with self._open(self._subscription.connection) as publisher:
            (theirs,), (ours,) = (
                list(dictionaries(server.execute(sql.load("locale")))) for server in (publisher, self._connection)
            )
        names = [name for name in ours if ours[name] != theirs[name]]
        if different := [f"{name} is {ours[name]!r}, not {theirs[name]!r}" for name in names]:
            self.close()
            raise errors.ConfigError(
                f"filter_server: that server may evaluate row filters differently: {'; '.join(different)}",
                hint='use a standby of the publisher, or set filter_server = "publisher"',
            )

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        # other messages come from the server's settings (debug_print_rewritten, log_statement)
        if (diagnostic.message_primary or "").startswith("parse tree") and diagnostic.message_detail:
            self._log_details.append(diagnostic.message_detail)

    # --- which expressions ----------------------------------------------------------------------------------------

    def accept(
        self, expression: str, columns: Mapping[str, server_filter.ServerColumn], table: tuple[str, str]
    ) -> server_filter.ServerFilter:
        """Have the server parse an expression, and check its parse tree by the rules for row filters.

        Args:
            expression: The text between the parentheses of WHERE.
            columns: The table's columns, by name.
            table: Its schema and name.

        Raises:
            RowFilterError: The server would refuse it as a publication's row filter.
        """
        key = (expression, table, tuple(columns.values()))
        if key not in self._accepted:
            try:
                self._accepted[key] = self._read(server_filter.candidate(expression, columns, table))
            except Refused as refused:
                raise RowFilterError(expression, refused.at or 0, refused.reason) from None
        return self._accepted[key]

    def _read(self, candidate: server_filter.Candidate) -> server_filter.ServerFilter:
        tree = server_filter.where(self._parsed(candidate))
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
            raise Refused(refused.reason, candidate.place(refused.at or 0)) from None
        if candidate.reads_clock and not tree.constant_types.isdisjoint(_CLOCK_TYPES):
            raise Refused(f"{MUTABLE_FUNCTIONS} Strings that mean the present time, such as 'today', count as such.", 0)
        return candidate.taken(tree.columns)

    def _parsed(self, candidate: server_filter.Candidate) -> str:
        """The statement's parse tree. It is a LOG message, so the server writes it to its log as well."""
        connection = self._connection
        settings = {"debug_print_parse": "on", "debug_pretty_print": "off", "client_min_messages": "log"}
        try:
            before = {name: connection.execute("SELECT current_setting(%s)", (name,)).fetchone() for name in settings}
            for name, value in settings.items():
                connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            self._log_details.clear()
            types = [column.type_oid for column in candidate.columns]
            result = connection.pgconn.prepare(b"", candidate.statement.encode(), types)
            shown = list(self._log_details)
            for name, row in before.items():
                connection.execute("SELECT set_config(%s, %s, false)", (name, row[0] if row else None))
        except psycopg.Error as error:
            raise translated(error, "cannot have a row filter parsed") from error
        if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
            failure = psycopg.errors.error_from_result(result)
            if (failure.sqlstate or "08")[:2] in _NOT_CAUSED_BY_VALUES:
                raise translated(failure, "cannot have a row filter parsed") from failure
            position = int(failure.diag.statement_position or 1)
            at = len(candidate.statement[: position - 1].encode())
            raise Refused(failure.diag.message_primary or str(failure), candidate.place(at))
        if not shown:
            raise errors.PublisherError("the server did not return the parse tree of a row filter (debug_print_parse)")
        return shown[-1]

    # --- verdicts -------------------------------------------------------------------------------------------------

    def verdicts(self, row_filter: server_filter.ServerFilter, types: Sequence[int], rows: Sequence[Tuple]) -> Bools:
        """Return which rows pass.

        Args:
            types: OIDs of its columns' types in the stream.
            rows: The values of its columns, as the stream has them; an unchanged TOAST value counts as NULL.

        Raises:
            VerdictError: The filter raises an error for a row; has the first such row.
            PublisherError: The connection is lost.
        """
        most = max(1, min(_ROWS_AT_ONCE, _MAX_PARAMETERS // max(1, len(types))))
        passes = np.zeros(len(rows), np.bool_)
        first = size = 0
        for i, row in enumerate(rows):
            size += sum(len(value.data) for value in row)
            if i + 1 - first == most or size >= _BYTES_AT_ONCE or i + 1 == len(rows):
                passes[first : i + 1] = self._evaluate_halving(row_filter, types, rows[first : i + 1], first)
                first, size = i + 1, 0
        return passes

    def _evaluate_halving(
        self, row_filter: server_filter.ServerFilter, types: Sequence[int], rows: Sequence[Tuple], first: int
    ) -> Bools:
        """Return which of some rows pass; after an error the rows are halved until the one that causes it is alone."""
        try:
            return self._evaluate(row_filter, types, rows)
        except psycopg.Error as error:
            if self._connection.closed or (error.sqlstate or "08")[:2] in _NOT_CAUSED_BY_VALUES:
                raise translated(error, "cannot have a row filter evaluated") from error
            if len(rows) == 1:
                raise server_filter.VerdictError(first, error.diag.message_primary or str(error).strip()) from error
        middle = len(rows) // 2
        before = self._evaluate_halving(row_filter, types, rows[:middle], first)
        return np.concatenate([before, self._evaluate_halving(row_filter, types, rows[middle:], first + middle)])

    def _evaluate(self, row_filter: server_filter.ServerFilter, types: Sequence[int], rows: Sequence[Tuple]) -> Bools:
        values = [value for row in rows for value in row]
        null, unchanged, binary = ValueKind.NULL, ValueKind.UNCHANGED_TOAST, ValueKind.BINARY
        result = self._connection.pgconn.exec_params(
            row_filter.statement(len(rows)).encode(),
            [None if value.kind is null or value.kind is unchanged else value.data for value in values],
            list(types) * len(rows),
            [1 if value.kind is binary else 0 for value in values],
        )
        if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
            raise psycopg.errors.error_from_result(result)
        letters = np.frombuffer(result.get_value(0, 0) or b"", np.uint8)
        if len(letters) != len(rows):
            raise errors.PublisherError(f"the server gave {len(letters)} verdicts on {len(rows)} rows")
        passes: Bools = letters == ord("t")
        return passes
