"""The options of `format("pgoutput")`: read and checked, each named in its error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive import password_command
from pgbridge.bridge.runtime.errors import ConfigError, PublisherError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.receive.publisher import Publisher

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)b?", re.IGNORECASE)
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")

_STREAM_ONLY: Final = frozenset(
    {
        "slot",
        "create_slot",
        "maxBytesPerTrigger",
        "maxRowsPerTrigger",
        "idleIntervalSeconds",
        "slotTimeoutSeconds",
        "shape",
        "unknownTables",
        "upgradedFrom",
    }
)
_SNAPSHOT_ONLY: Final = frozenset({"snapshot"})
_BOTH: Final = frozenset({"connection", "publication", "table", "unrepresentable"})

DEFAULT_MAX_BYTES: Final = 1 << 30
"""WAL of one batch by default: a restart repeats no more, and a batch of it takes seconds to a minute."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a query, checked.

    Attributes:
        connection: libpq's connection string or URI, as the executors reach the server.
        publications: At least one.
        table: `namespace.name` of the one table to read; None for all published tables.
        slot: The slot's name; "" for a snapshot.
        create_slot: Whether a first batch may create the slot.
        max_bytes: WAL bytes of one batch.
        max_rows: Rows of one batch, in whole transactions; None for no limit.
        idle_interval_s: How long the offset may stay behind the server if nothing published was changed.
        slot_timeout_s: How long to wait for a slot that another process has, and for a server that is not there.
        unrepresentable: Whether a value that Spark's type cannot hold is an error, or NULL.
        unknown_tables: Whether changes of a table that the DataFrame has no column for are an error, or ignored.
        flat: Whether a change has the columns of its row, in the place of its images.
        upgraded_from: The system identifier of the server that pg_upgrade has made this one of: offsets of it in the
            checkpoint are before all that this one has. None if it was not upgraded.
        snapshot: The exported snapshot to read; None for one of its own.
    """

    connection: str = field(repr=False)
    publications: tuple[str, ...]
    table: str | None = None
    slot: str = ""
    create_slot: bool = False
    max_bytes: int = DEFAULT_MAX_BYTES
    max_rows: int | None = None
    idle_interval_s: float = 60.0
    slot_timeout_s: float = 120.0
    unrepresentable: Literal["error", "null"] = "error"
    unknown_tables: Literal["error", "ignore"] = "error"
    flat: bool = False
    upgraded_from: str | None = None
    snapshot: str | None = None

    @property
    def application_name(self) -> str:
        """The name that pg_stat_activity and pg_stat_replication show."""
        return self.slot or "pgbridge_snapshot"

    @property
    def subscription(self) -> Subscription:
        """The same as the daemon has it, for what it shares with the source: pgoutput's options."""
        return Subscription(
            name=self.application_name,
            connection=self.connection,
            publications=self.publications,
            warehouse="-",
            slot_name=self.slot or "none",
            messages="off",
        )


_MISSING: Final = {
    "slot": "the name of a slot of the query's own, which pgbridge.stream(…).to_delta creates; or set create_slot",
    "publication": "the publication's name, or several with commas between them",
    "connection": "libpq's connection string or URI",
}


def stream_options(options: Mapping[str, str]) -> SourceOptions:
    """Read the options of `readStream`.

    Raises:
        ConfigError: One is missing, unknown, or has a value that it cannot have.
    """
    read = _Options(options, _BOTH | _STREAM_ONLY, "readStream")
    slot = read.required("slot")
    if not _SLOT_NAME.fullmatch(slot):
        raise ConfigError(f'option "slot": "{slot}" is no name of a slot: 1 to 63 lower case letters, digits and _')
    rows = read.number("maxRowsPerTrigger", least=1)
    flat = read.choice("shape", "images", "flat") == "flat"
    if flat and read.table() is None:
        raise ConfigError('shape = "flat" is of one table', hint='set the option "table", as in "public.orders"')
    return SourceOptions(
        read.connection(),
        read.names("publication"),
        read.table(),
        slot,
        create_slot=read.choice("create_slot", "false", "true") == "true",
        max_bytes=read.size("maxBytesPerTrigger", DEFAULT_MAX_BYTES),
        max_rows=None if rows is None else int(rows),
        idle_interval_s=read.seconds("idleIntervalSeconds", 60.0),
        slot_timeout_s=read.seconds("slotTimeoutSeconds", 120.0),
        unrepresentable="null" if read.choice("unrepresentable", "error", "null") == "null" else "error",
        unknown_tables="ignore" if read.choice("unknownTables", "error", "ignore") == "ignore" else "error",
        flat=flat,
        upgraded_from=read.identifier("upgradedFrom"),
    )


def snapshot_options(options: Mapping[str, str]) -> SourceOptions:
    """Read the options of `read`.

    Raises:
        ConfigError: One is missing, unknown, or has a value that it cannot have.
    """
    read = _Options(options, _BOTH | _SNAPSHOT_ONLY, "read")
    table = read.table()
    if table is None:
        raise ConfigError('option "table" is missing: a snapshot is of one table, as in "public.orders"')
    return SourceOptions(
        read.connection(),
        read.names("publication"),
        table,
        unrepresentable="null" if read.choice("unrepresentable", "error", "null") == "null" else "error",
        snapshot=read.get("snapshot"),
    )


class _Options:
    """Options by name, whatever case they were written in; Spark hands them over in lower case."""

    def __init__(self, options: Mapping[str, str], known: frozenset[str], reader: str) -> None:
        by_lower = {name.lower(): name for name in known}
        unknown = sorted(name for name in options if name.lower() not in by_lower)
        if unknown:
            names = ", ".join(sorted(known))
            raise ConfigError(f'format("pgoutput") has no option "{unknown[0]}" for {reader}', hint=f"it has: {names}")
        self._found = {by_lower[name.lower()]: value for name, value in options.items()}

    def get(self, name: str) -> str | None:
        return self._found.get(name)

    def required(self, name: str) -> str:
        value = self._found.get(name, "")
        if not value.strip():
            raise ConfigError(f'option "{name}" is missing', hint=_MISSING.get(name, ""))
        return value

    def connection(self) -> str:
        value = self.required("connection")
        if password_command.apart(value)[1] is not None:
            raise ConfigError(
                "connection: a query runs no password_command on Spark's machines",
                hint="have the command write the password into a file, and name it by passfile=",
            )
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """Names with commas between them; a name with a comma in it stands in double quotes."""
        text = self.required(name)
        parts = re.findall(r'\s*("(?:[^"]|"")*"|[^,"]+)\s*(?:,|$)', text)
        names = tuple(
            part[1:-1].replace('""', '"') if part.startswith('"') else part.strip() for part in parts if part.strip()
        )
        if not names or len(set(names)) < len(names):
            raise ConfigError(f'option "{name}": names with commas between them, each once, not "{text}"')
        return names

    def table(self) -> str | None:
        value = self._found.get("table")
        if value is None:
            return None
        if "." not in value:
            raise ConfigError(f'option "table": "{value}" has no schema; write for example "public.{value}"')
        return value

    def identifier(self, name: str) -> str | None:
        """A server's system identifier, as pg_control_system() has it."""
        value = self._found.get(name)
        if value is not None and not re.fullmatch(r"[0-9]{1,20}", value):
            raise ConfigError(
                f'option "{name}" is the system identifier of the server before pg_upgrade, not "{value}"',
                hint="the error of the query names it; pg_controldata shows it as Database system identifier",
            )
        return value

    def choice(self, name: str, *allowed: str) -> str:
        """One of some values; the first is the default."""
        value = self._found.get(name, allowed[0]).lower()
        if value not in allowed:
            raise ConfigError(f'option "{name}" is {" or ".join(allowed)}, not "{self._found[name]}"')
        return value

    def number(self, name: str, *, least: float) -> float | None:
        text = self._found.get(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not least <= value < float("inf"):
            raise ConfigError(f'option "{name}" is a number of at least {least:g}, not "{text}"')
        return value

    def seconds(self, name: str, default: float) -> float:
        value = self.number(name, least=0)
        return default if value is None else value

    def size(self, name: str, default: int) -> int:
        """Bytes, perhaps with a unit as in Spark's settings: 64m, 1g."""
        text = self._found.get(name)
        if text is None:
            return default
        match = _SIZE.fullmatch(text.strip())
        value = int(match[1]) << _UNITS[match[2].lower()] if match else 0
        if value < 1:
            raise ConfigError(f'option "{name}" is a size such as 67108864, 64m or 1g, not "{text}"')
        return value


def published_tables(publisher: Publisher, options: SourceOptions) -> list[PublishedTable]:
    """Return the tables that a stream or snapshot is of.

    Raises:
        PublisherError: The publication, or the table in it, does not exist.
    """
    with publisher.snapshot():
        missing = publisher.missing(options.publications)
        if missing:
            raise PublisherError(
                f'publication "{missing[0]}" does not exist on the server',
                hint=f'run in the database of the connection: CREATE PUBLICATION "{missing[0]}" FOR TABLE …;',
            )
        tables = publisher.tables(options.publications)
    if options.table is None:
        return tables
    chosen = [table for table in tables if table.qualified_name == options.table]
    if not chosen:
        names = ", ".join(table.qualified_name for table in tables) or "none"
        raise PublisherError(
            f'table "{options.table}" is not published by {", ".join(options.publications)}',
            hint=f"published are: {names}",
        )
    return chosen
