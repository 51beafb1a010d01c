"""Reads a server's facts for `pgbridge check`: settings, room, role, clock, open transactions.

Unlike `Publisher` it accepts a server that no subscription can use, so that all reasons are known at once.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbridge.bridge.receive.connection import connect, read_rows
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.runtime.http_address import is_loopback
from pgbridge.protocol.values.pg_type import BUILTIN, TypeInfo
from pgbridge.protocol.values.types import ColumnType, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import psycopg

    from pgbridge.bridge.receive.publisher import Publisher
    from pgbridge.bridge.track.position import ServerHistory

SETTINGS = (
    "effective_wal_level",
    "hot_standby_feedback",
    "idle_replication_slot_timeout",
    "max_replication_slots",
    "max_slot_wal_keep_size",
    "max_wal_senders",
    "server_encoding",
    "synchronous_standby_names",
    "wal_level",
    "wal_sender_timeout",
    # only servers of a provider have one of these (`bridge.check.finding.PROVIDERS`)
    *("rds.extensions", "cloudsql.logical_decoding", "azure.extensions", "neon.timeline_id"),
    "supautils.privileged_extensions",
)

_STANDBY_NAME = re.compile(r'"(?:[^"]|"")*"|[^\s,()"]+')
_LIST_BEGINS = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?\d+\s*\(", re.IGNORECASE)


def is_synchronous(standby_names: str, application_name: str) -> bool:
    """Whether synchronous_standby_names makes commits wait for a connection of this name.

    Source: `SyncRepGetStandbyPriority` in PostgreSQL's syncrep.c, and syncrep_gram.y.
    """
    names = _STANDBY_NAME.findall(_LIST_BEGINS.sub("", standby_names))
    plain = (name[1:-1].replace('""', '"') if name.startswith('"') else name for name in names)
    return any(name == "*" or name.lower() == application_name.lower() for name in plain)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has an id and has not ended.

    Attributes:
        prepared: Whether it is a prepared one; then `name` is its gid, else the process id.
        age_s: Since it began or was prepared; None if the server does not tell.
    """

    prepared: bool
    name: str
    database: str | None
    application_name: str | None
    age_s: float | None


@dataclass(frozen=True, slots=True)
class Security:
    """How the connection is protected.

    Attributes:
        host: As libpq has it: a name, an address, or the folder of a Unix socket.
        tls: Whether it is encrypted.
        sslmode: libpq's mode, which says whether the server's certificate is verified.
    """

    host: str
    tls: bool
    sslmode: str

    @property
    def local(self) -> bool:
        """Whether the connection does not leave this machine."""
        return not self.host or self.host[0] in "/@" or is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The facts about a server, as it states them.

    Attributes:
        version: As server_version_num.
        settings: By name; only those that the version knows. Sizes are in MB, times in seconds or minutes, as
            pg_settings has them.
        slots: How many replication slots exist.
        senders: How many WAL senders run.
        clock_ahead_s: How far the server's clock is ahead of this machine's.
        role: The connection's role.
        superuser: Whether it is a superuser.
        database: The connection's database.
        open_transactions: The oldest first.
        password_left_s: Until the role's password expires; None if it does not.
    """

    version: int
    in_recovery: bool
    settings: Mapping[str, str]
    slots: int
    senders: int
    clock_ahead_s: float
    role: str
    superuser: bool
    database: str
    security: Security
    open_transactions: tuple[OpenTransaction, ...]
    password_left_s: float | None = None


def read_facts(conninfo: str, *, application_name: str) -> ServerFacts:
    """Connect, read, and disconnect.

    Raises:
        ConfigError: The connection string cannot be read.
        PublisherError: The server cannot be reached, or cannot answer.
    """
    with connect(conninfo, application_name=application_name) as connection:
        server = read_rows(connection, "server")[0]
        before_s = time.time()
        room = read_rows(connection, "room")[0]
        here_s = (before_s + time.time()) / 2
        return ServerFacts(
            server["server_version_num"],
            server["in_recovery"],
            {row["name"]: row["setting"] for row in read_rows(connection, "settings", {"names": list(SETTINGS)})},
            room["slots"],
            room["senders"],
            room["clock_s"] - here_s,
            room["role"],
            room["superuser"],
            connection.info.dbname,
            _security(connection),
            tuple(OpenTransaction(**row) for row in read_rows(connection, "open_transactions")),
            server["password_left_s"],
        )


def identify(conninfo: str, *, application_name: str) -> ServerHistory:
    """Open a WAL sender, as the stream does, and identify the server.

    Raises:
        PublisherError: There is no room, or the role may not replicate.
    """
    with ReplicationConnection(conninfo, application_name=application_name) as replication:
        return replication.history()


@dataclass(frozen=True, slots=True)
class Privileges:
    """The role's privileges on a table.

    Attributes:
        usage: Of its schema.
        unreadable: The columns that it may not read.
        row_security: Whether a policy hides rows from it.
    """

    usage: bool
    unreadable: tuple[str, ...]
    row_security: bool


def read_privileges(connection: psycopg.Connection[tuple[Any, ...]], relids: Sequence[int]) -> dict[int, Privileges]:
    """Return what the connection's role may read of tables, by relid."""
    return {
        row["relid"]: Privileges(row["usage"], tuple(row["unreadable"]), row["row_security"])
        for row in read_rows(connection, "privileges", {"relids": sorted(relids)})
    }


def _security(connection: psycopg.Connection[tuple[Any, ...]]) -> Security:
    options = {option.keyword.decode(): option.val for option in connection.pgconn.info}
    sslmode = options.get("sslmode")
    return Security(
        connection.info.host, bool(connection.pgconn.ssl_in_use), sslmode.decode() if sslmode is not None else "prefer"
    )


# --- The types of a server's columns, asked for as they come up -------------------------------------------------------


class ServerTypes:
    """Resolves the types of columns, and asks the server for those that are new.

    A type never changes into another one, so one that the server has dropped is what it was.

    Args:
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
            types = self._publisher.types({oid for oid, _ in wanted})
            new = [info for oid, info in types.items() if oid not in BUILTIN and self._kept.get(oid) != info]
            if new:
                self._keep(new)
            self._kept.update((info.oid, info) for info in new)
            self._known = {**self._kept, **self._known, **types}
        return [resolve(oid, typmod, self._known) for oid, typmod in wanted]
