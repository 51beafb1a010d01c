"""A snapshot of the source for a verification, with what the stream has since.

One connection reads under the snapshot. What a verification needs of the stream is peeked at in the connection that has
made the temporary slot.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg

from pgbridge import sql
from pgbridge.bridge.publication.shape import SALT_SETTING
from pgbridge.bridge.receive import connection, slot
from pgbridge.bridge.runtime import errors, threads
from pgbridge.bridge.sqltext.lexer import quote_identifier
from pgbridge.bridge.sync.table_reading import rows_made_anew, select_statement, where_clause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.protocol.lsn import Lsn

_SETTINGS: Final = (
    "SET LOCAL lock_timeout = '5s'",
    "SET LOCAL max_parallel_workers_per_gather = 0",
)


class Source(threads.Closing):
    """A snapshot of the source.

    Args:
        application_name: For pg_stat_activity.
        patience_s: How long to wait for transactions that are open at the start: a slot begins after their end.
        stopping: Whether to give that up.

    Attributes:
        lsn: The snapshot's: transactions that commit before it are in it, and all others come in the stream.
        version: The server's version number.
        at_s: What was committed before is in it: seconds since 1970, by the server's clock.

    Raises:
        PublisherError: From the constructor and every method, if the server refuses.
        VerifyError: From the constructor: a transaction did not end.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        application_name: str,
        patience_s: float = 120.0,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._slot_name = f"pgbridge_verify_{uuid.uuid4().hex[:12]}"
        self._replication = slot.ReplicationConnection(conninfo, application_name=application_name, stopping=stopping)
        try:
            # a commit has its time before its record is written
            now = "SELECT extract(epoch FROM clock_timestamp() - interval '1 s')"
            self.at_s = float(self._replication.connection.execute(now.encode()).fetchall()[0][0])
            snapshot = self._create_slot(patience_s)
            self.lsn = snapshot.consistent_point
            self._connection = connection.connect(conninfo, application_name=application_name)
            self.version = self._connection.info.server_version
            try:
                self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                name = psycopg.sql.Literal(snapshot.name)
                self._connection.execute(psycopg.sql.SQL("SET TRANSACTION SNAPSHOT {}").format(name))
                for setting in _SETTINGS:
                    self._connection.execute(setting.encode())
            except psycopg.Error as error:
                self._connection.close()
                raise connection.translated(error, "cannot read under the snapshot") from error
        except BaseException:
            self._replication.close()
            raise

    def _create_slot(self, patience_s: float) -> slot.Snapshot:
        try:
            # the wait for a transaction is a wait for its lock
            self._replication.connection.execute(f"SET lock_timeout = {max(1, int(patience_s * 1000))}".encode())
            return self._replication.create_slot(self._slot_name, temporary=True)
        except errors.PublisherError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            raise errors.VerifyError(
                f"no snapshot: a transaction that was open {patience_s:g} s ago has not ended",
                hint="see xact_start in pg_stat_activity, and pg_prepared_xacts; verify again once it has ended, or "
                "with a greater --wait",
            ) from error

    def use_salt(self, salt: bytes) -> None:
        """Have the server mask values with a salt, until `close`; it is a parameter, and in no statement's text."""
        for _ in self.query("SELECT set_config(%(name)s, %(salt)s, true)", {"name": SALT_SETTING, "salt": salt.hex()}):
            pass

    def cut(self) -> None:
        """End both connections from another thread: who waits for an answer on one gets a PublisherError."""
        for opened in (self._connection, self._replication.connection):
            connection.cut(opened)

    def close(self) -> None:
        """End the snapshot; the temporary slot goes with its connection."""
        self._connection.close()
        self._replication.close()

    def export(self) -> str:
        """Export the snapshot to other connections, until `close`."""
        ((name,),) = self.query("SELECT pg_export_snapshot()")
        return str(name)

    def changes(self, up_to: Lsn, publications: Sequence[str], options: Mapping[str, str]) -> Iterator[bytes]:
        """The stream's messages from the snapshot on, of transactions that commit up to an LSN, and perhaps some more.

        Args:
            up_to: The LSN.
            publications: The subscription's publications.
            options: Further options of pgoutput.
        """
        statement = self._peek(self._slot_name, up_to, publications, options)
        replication = self._replication.connection  # it has no cursors of the protocol
        with _peeking():
            replication.execute(b"BEGIN")
            replication.execute(b"DECLARE changes NO SCROLL CURSOR FOR " + statement)  # there may be many
            while rows := replication.execute(b"FETCH 1000 FROM changes").fetchall():
                yield from (bytes(data) for (data,) in rows)
            replication.execute(b"COMMIT")

    def waiting(
        self, slot_name: str, up_to: Lsn, publications: Sequence[str], options: Mapping[str, str]
    ) -> Iterator[bytes]:
        """The messages that a subscription's slot would send next; nobody may stream from it."""
        with _peeking(), self._connection.cursor(name="waiting") as cursor:
            cursor.execute(self._peek(slot_name, up_to, publications, options))
            yield from (bytes(data) for (data,) in cursor)

    @staticmethod
    def _peek(slot_name: str, up_to: Lsn, publications: Sequence[str], options: Mapping[str, str]) -> bytes:
        named = ", ".join(quote_identifier(name) for name in publications)
        given = {"proto_version": "1", "publication_names": named, **options}
        arguments = psycopg.sql.SQL(", ").join(psycopg.sql.Literal(text) for pair in given.items() for text in pair)
        statement = psycopg.sql.SQL("SELECT data FROM pg_logical_slot_peek_binary_changes({}, {}, NULL, {})").format(
            psycopg.sql.Literal(slot_name), psycopg.sql.Literal(str(up_to)), arguments
        )
        return statement.as_bytes(None)

    def hold(self, tables: Iterable[PublishedTable]) -> dict[int, str]:
        """Lock tables until `close`, so that none is rewritten: a snapshot does not show the rows that it had before.

        Returns:
            By relid, why a table cannot be read: another session has a lock, or has rewritten it since the snapshot, or
            the server refuses.
        """
        could_not: dict[int, str] = {}
        for table in tables:
            statement = f"EXPLAIN {select_statement(table)}{where_clause(table.row_filters)}"
            try:
                with self._connection.transaction():  # a savepoint
                    self._connection.execute(statement.encode())  # planning locks a partitioned table's leaves, too
                    if rows_made_anew(self._connection, table):
                        could_not[table.relid] = "it was rewritten meanwhile (TRUNCATE or ALTER TABLE)"
            except psycopg.errors.LockNotAvailable:
                could_not[table.relid] = "another session has locked it"
            except psycopg.Error as error:
                translated = connection.translated(error, f'cannot read table "{table.qualified_name}"')
                if self._connection.closed:
                    raise translated from error
                could_not[table.relid] = translated.message
        return could_not

    def leaves_out_changes(self, publications: Sequence[str]) -> bool:
        """Whether one of the publications does not publish all kinds of changes."""
        ((every,),) = self.query(
            "SELECT coalesce(bool_and(pubinsert AND pubupdate AND pubdelete AND pubtruncate), true) "
            "FROM pg_publication WHERE pubname = ANY (%(names)s)",
            {"names": list(publications)},
        )
        return not every

    def sizes(self, relid: int) -> list[dict[str, Any]]:
        """The sizes of a table, or of each of its partitions, as `sql/copy_sizes.sql` says."""
        try:
            return list(connection.dictionaries(self._connection.execute(sql.load("copy_sizes"), {"relid": relid})))
        except psycopg.Error as error:
            raise connection.translated(error, "cannot read a table's size") from error

    def declarations(self, relid: int) -> dict[str, str]:
        """The types of a table's columns as SQL, by the columns' names; of a domain the type beneath it."""
        declared: dict[str, str] = dict(self.query(sql.load("column_types"), {"relid": relid}))
        return declared

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Run statements in a savepoint: if the server refuses one, the snapshot stays.

        Raises:
            VerifyError: The server refused a statement.
            PublisherError: The connection is lost.
        """
        try:
            with self._connection.transaction():  # a savepoint
                yield
        except errors.PublisherError as error:
            if self._connection.closed:
                raise
            raise errors.VerifyError(error.message, hint=error.hint) from error
        except psycopg.Error as error:
            raise connection.translated(error, "the snapshot is lost") from error

    def query(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement under the snapshot."""
        try:
            yield from self._connection.execute(statement.encode(), parameters).fetchall()
        except psycopg.Error as error:
            raise connection.translated(error, "cannot read the source's rows") from error


@contextmanager
def _peeking() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise connection.translated(error, "cannot read what the stream has since the snapshot") from error
