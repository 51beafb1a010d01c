"""Queries of the publisher's catalog: its version and WAL, slots, published tables, their columns and types.

Decoding the stream never uses these: pgoutput describes relations as of the LSN of each change.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from pgbridge.bridge.publication.published_table import PublishedColumn, PublishedTable
from pgbridge.bridge.publication.tables import Attribute, PrimaryKey
from pgbridge.bridge.receive import column_fill, connection
from pgbridge.bridge.receive.slot_status import Slots, SlotStatus, slots_of
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.bridge.runtime.threads import Closing
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.pg_type import BUILTIN, TypeInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

LOWEST_VERSION = 140000
PASSWORD_WARNING_S = 7 * 86400.0
"""How long before its end a password is warned of: the default of PostgreSQL 19's
password_expiration_warning_threshold, whose notice comes with the login, where psycopg drops it."""

_ORIGIN_VERSION = 160000
_MISSING_VERSION = 180000
_ON_DEMAND_VERSION = 190000


class Publisher(Closing):
    """An open, ordinary connection to the publisher.

    Args:
        application_name: What the server shows of it.
        any_wal_level: Also where the server's wal_level does not allow a subscription.

    Raises:
        PublisherError: From the constructor and every method, if the server cannot answer; from the constructor also
            if the server's version or wal_level does not allow a subscription.
    """

    def __init__(self, conninfo: str, *, application_name: str, any_wal_level: bool = False) -> None:
        self.connection = connection.connect(conninfo, application_name=application_name)
        facts = self._one("server")
        self.version: int = facts["server_version_num"]
        if self.version < LOWEST_VERSION:
            self.close()
            raise PublisherError(f"the publisher is PostgreSQL {self.version // 10000}; the lowest supported is 14")
        levels = (facts["wal_level"], facts["effective_wal_level"])
        refused = wal_level_refusal(self.version, *levels, in_recovery=facts["in_recovery"])
        if refused is not None and not any_wal_level:
            self.close()
            raise refused

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def cut(self) -> None:
        """End the connection from another thread: who waits for an answer on it gets a PublisherError."""
        connection.cut(self.connection)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Within, all queries see the catalog as of one moment: a table that is dropped meanwhile is there for all.

        One within another is a part of it. Functions that open a table themselves see that it is gone.
        """
        if self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            yield
            return
        try:
            with self.connection.transaction():
                self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                yield
        except psycopg.Error as error:
            raise connection.translated(error, "cannot read the publisher's catalog") from error

    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Run `sql/<statement>.sql`; return its rows, each by column name."""
        return connection.read_rows(self.connection, statement, parameters)

    def _one(self, statement: str) -> dict[str, Any]:
        return self.rows(statement)[0]

    @property
    def database(self) -> str:
        """The database of the connection."""
        return self.connection.info.dbname

    @property
    def encoding(self) -> str:
        """The database's encoding, as the server names it."""
        return self.connection.info.parameter_status("server_encoding") or "UTF8"

    def setting(self, name: str) -> str:
        """A setting of the server, as its catalog shows it; empty if this version does not have it."""
        rows = self.rows("settings", {"names": [name]})
        return rows[0]["setting"] or "" if rows else ""

    def flush_lsn(self) -> Lsn:
        """The end of the server's flushed WAL; on a standby, of its replayed WAL."""
        return Lsn.parse(self._one("server")["flush_lsn"])

    def insert_lsn(self) -> Lsn:
        """Return the LSN beyond which every later transaction commits; on a standby, the end of replay."""
        return Lsn.parse(self._one("server")["insert_lsn"])

    def started_us(self) -> int:
        """When the server was started, in microseconds since 1970: no two servers share it."""
        return int(self._one("server")["started_us"])

    def slot(self, slot_name: str) -> SlotStatus | None:
        """The slot's status; None if it does not exist."""
        return self.slots([slot_name]).by_name[slot_name]

    def slots(self, slot_names: Sequence[str]) -> Slots:
        """The statuses of slots, at least one, in one query."""
        return slots_of(self.rows("slots", {"slot_names": list(slot_names)}))

    def missing(self, publications: Sequence[str]) -> list[str]:
        """Return the subscription's publications that the database does not have (yet).

        Raises:
            PublisherError: One is missing on a server before PostgreSQL 18, whose walsender would end the stream at
                the next change; from 18 on it only warns.
        """
        names = {"publications": list(publications)}
        missing = [row["name"] for row in self.rows("missing_publications", names)]
        if missing and self.version < _MISSING_VERSION:
            name = quoted_name(missing[0])
            raise PublisherError(
                f"{missing_message(missing)}, and PostgreSQL before 18 ends a stream that asks for it",
                hint=f"run in the database of the connection: CREATE PUBLICATION {name} FOR TABLE …;",
            )
        return missing

    def existing(self, publications: Sequence[str]) -> list[str]:
        """The publications that the database has; raises as `missing` does."""
        missing = self.missing(publications)
        return [name for name in publications if name not in missing]

    def publication_state(self, publications: Sequence[str], relid: int | None = None) -> str:
        """What is another text once one of the publications was altered, also if it was altered back.

        Args:
            relid: A table, if others that come and go do not matter.
        """
        parameters = {"publications": list(publications), "relid": relid}
        statements = ["publication_state", *(["publication_schemas"] if self.version >= 150_000 else [])]
        return "; ".join(self.rows(statement, parameters)[0]["state"] for statement in statements)

    def tables(self, publications: Sequence[str]) -> list[PublishedTable]:
        """The tables that the publications together publish, sorted by name.

        Raises:
            PublisherError: As from `missing`, or two publications publish a table with different column lists.
        """
        with self.snapshot():
            existing = self.existing(publications)
            if not existing:
                return []
            names = {"publications": existing}
            version = min(self.version // 10000, 16)
            rows = self.rows(f"publication_tables_{version}", names)
            columns = self._columns({row["relid"] for row in rows})
        entries: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            entries.setdefault(row["relid"], []).append(row)
        tables = [_table(same, columns.get(relid, [])) for relid, same in entries.items()]
        return sorted(tables, key=lambda table: (table.namespace, table.name))

    def table_bytes(self, relid: int) -> int:
        """The size of a table, or of its leaf partitions, on the server's disk, as far as it is known."""
        return sum(row["table_bytes"] or 0 for row in self.rows("copy_sizes", {"relid": relid}))

    def _columns(self, relids: Iterable[int]) -> dict[int, list[dict[str, Any]]]:
        columns: dict[int, list[dict[str, Any]]] = {}
        for row in self.rows("table_columns", {"relids": sorted(relids)}):
            columns.setdefault(row["relid"], []).append(row)
        return columns

    def attributes(self, relid: int, xid: int | None = None, *, slot_name: str = "") -> tuple[Attribute, ...]:
        """All columns that a table ever had, in the order of attnum; empty if the table does not exist.

        Args:
            xid: The transaction that `Attribute.settled` is about. It is not durable yet.
            slot_name: The slot that has sent it.
        """
        rows = self.rows(
            "attributes", {"relids": [relid], "slot_name": slot_name, "xid": None if xid is None else str(xid)}
        )
        return tuple(
            Attribute(
                *(row["attnum"], row["name"], row["type_oid"], row["typmod"], row["generated"]),
                *column_fill.fill_of(row, self.connection),
                row["settled"],
                row["unlisted"],
            )
            for row in rows
        )

    def picture(
        self,
        publications: Sequence[str],
        tables: Mapping[tuple[str, str], int | None],
        known: str | None = None,
        *,
        patient: bool = False,
    ) -> tuple[str, str | None]:
        """Read what is published now, and facts about tables, in one query (`bridge.publication.catalog_picture`).

        Args:
            publications: The publications; ones that do not exist are left out.
            tables: The tables to look at beside the published ones: their relids, None if unknown.
            known: The digest of the last answer.
            patient: Wait for those who lock a table, however long; else a second.

        Returns:
            The digest and the picture's JSON; None for the picture whose digest is known.
        """
        asked = {
            "publications": list(publications),
            "relids": sorted({relid for relid in tables.values() if relid is not None}),
            "namespaces": [namespace for namespace, _ in tables],
            "names": [name for _, name in tables],
            "known": known,
        }
        if patient:
            (row,) = self.rows("catalog_picture", asked)
        else:
            try:
                with self.connection.transaction():
                    self.connection.execute("SET LOCAL lock_timeout = '1s'")
                    (row,) = self.rows("catalog_picture", asked)
            except psycopg.Error as error:
                raise connection.translated(error, "cannot look at what is published") from error
        return row["digest"], row["picture"]

    def sequences(self, tables: Sequence[tuple[str, str]], publications: Sequence[str]) -> list[dict[str, Any]]:
        """The sequences of tables, by (namespace, name), and of publications: rows of `sql/sequences.sql`.

        Of one that nextval was not called of, or that was set since, `last_value` is that of `is_called = false`.

        Raises:
            PublisherError: They cannot be read, or somebody has locked one for more than a second.
        """
        asked = {
            "namespaces": [namespace for namespace, _ in tables],
            "names": [name for _, name in tables],
            "publications": list(publications),
        }
        try:
            with self.connection.transaction():
                self.connection.execute("SET LOCAL lock_timeout = '1s'")
                rows = self.rows("sequences", asked)
                for row in rows:
                    row["is_called"] = row["last_value"] is not None if row["readable"] else None
                    if row["is_called"] is False and row["has_values"]:
                        name = quoted_table(row["namespace"], row["name"])
                        ((row["last_value"], row["is_called"]),) = self.connection.execute(
                            f"SELECT last_value, is_called FROM {name}".encode()
                        )
        except psycopg.Error as error:
            raise connection.translated(error, "cannot read sequences") from error
        return rows

    def partition_ancestors(self, relid: int) -> tuple[int, ...]:
        """The tables that a table is a partition of now, its parent first."""
        return tuple(row["relid"] for row in self.rows("partition_ancestors", {"relid": relid}))

    def primary_key(self, relid: int, xid: int | None = None, *, slot_name: str = "") -> PrimaryKey | None:
        """A table's primary key; None if it has none, or a deferrable one, or does not exist.

        The arguments are those of `attributes`.
        """
        rows = self.rows(
            "primary_key", {"relid": relid, "slot_name": slot_name, "xid": None if xid is None else str(xid)}
        )
        return PrimaryKey(tuple(rows[0]["columns"]), rows[0]["settled"]) if rows else None

    def types(self, oids: Iterable[int]) -> dict[int, TypeInfo]:
        """Read what decoding values of these types needs.

        Returns:
            By OID: all built-in types, these types, and the types that they consist of.
        """
        unknown = sorted(set(oids) - BUILTIN.keys())
        if not unknown:
            return dict(BUILTIN)
        rows = self.rows("types", {"oids": unknown})
        return {**BUILTIN, **{row["oid"]: TypeInfo(**row) for row in rows}}


def wal_level_refusal(version: int, wal_level: str, effective: str, *, in_recovery: bool) -> PublisherError | None:
    """Return the error for a server that cannot decode its WAL; None if it can.

    From PostgreSQL 19 on `replica` is enough on a primary: its first logical slot switches decoding on, without a
    restart, and a standby follows the primary (`effective_wal_level`).
    """
    if effective == "logical":
        return None
    if version < _ON_DEMAND_VERSION:
        message, least = f'the publisher\'s wal_level is "{wal_level}", not "logical"', "logical"
    elif in_recovery:
        message = f'the standby\'s effective_wal_level is "{effective}": its primary has no logical slot'
        hint = "create one there that is used, or run there: ALTER SYSTEM SET wal_level = logical; then restart it"
        return PublisherError(message, hint=hint)
    elif wal_level == "minimal":
        message, least = 'the publisher\'s wal_level is "minimal", not "replica" or "logical"', "replica"
    else:
        return None
    return PublisherError(message, hint=f"run on the server: ALTER SYSTEM SET wal_level = {least}; then restart it")


def missing_message(publications: Sequence[str]) -> str:
    """The message that publications do not exist, in the words of CREATE SUBSCRIPTION (`check_publications`)."""
    listed = ", ".join(f'"{name}"' for name in publications)
    if len(publications) > 1:
        return f"publications {listed} do not exist on the publisher"
    return f"publication {listed} does not exist on the publisher"


def quoted_name(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(namespace: str, name: str) -> str:
    """A table's name in SQL, with its schema."""
    return f"{quoted_name(namespace)}.{quoted_name(name)}"


def _table(entries: list[dict[str, Any]], columns: list[dict[str, Any]]) -> PublishedTable:
    """Combine a table's rows, one for each publication, as PostgreSQL's subscriber does (tablesync.c)."""
    first = entries[0]
    published = [_published(entry["columns"], columns) for entry in entries]
    if any(names != published[0] for names in published):
        raise PublisherError(
            f'cannot use different column lists for table "{first["namespace"]}.{first["name"]}" '
            "in different publications",
            hint="give the table the same column list in every publication of the subscription",
        )
    filters = [entry["row_filter"] for entry in entries]
    unfiltered = any(text is None for text in filters)
    return PublishedTable(
        first["relid"],
        first["namespace"],
        first["name"],
        first["relkind"],
        first["relreplident"],
        tuple(_column(column) for column in columns if column["name"] in published[0]),
        () if unfiltered else tuple(dict.fromkeys(filters)),
        tuple(
            _column(column)
            for column in columns
            if column["name"] not in published[0] and (column["in_primary_key"] or column["in_replica_identity_index"])
        ),
        max((column["attnum"] for column in columns), default=0),
    )


def _column(row: dict[str, Any]) -> PublishedColumn:
    return PublishedColumn(
        row["name"], row["type_oid"], row["typmod"], row["in_primary_key"], row["in_replica_identity_index"]
    )


def _published(names: list[str] | None, columns: list[dict[str, Any]]) -> frozenset[str]:
    """A publication's columns of a table: its column list, or all but the generated ones."""
    if names is not None:
        return frozenset(names)
    return frozenset(column["name"] for column in columns if not column["generated"])
