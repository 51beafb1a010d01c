"""A snapshot that is kept for as long as a program reads under it, perhaps with a slot that begins exactly there."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.bridge.sync.table_reading import TableLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pgbridge.protocol.lsn import Lsn

_APPLICATION_NAME = "pgbridge_snapshot"


class ExportedSnapshot(NamedTuple):
    """A snapshot for the option `snapshot`.

    Attributes:
        name: As pg_export_snapshot gives it.
        lsn: Transactions that committed before it are in the snapshot. All others come in the stream of the slot that
            was created with it.
        tables: The published tables that are locked, each `namespace.name`.
    """

    name: str
    lsn: Lsn
    tables: tuple[str, ...]


@contextmanager
def export_snapshot(
    connection: str, publication: str | Sequence[str], *, slot: str | None = None, table: str | None = None
) -> Iterator[ExportedSnapshot]:
    """Export a snapshot, which is valid within the `with` block, and lock the published tables in it.

    The lock is that of a SELECT: it stands in the way of ALTER TABLE, TRUNCATE and VACUUM FULL, not of changes.

    Args:
        connection: libpq's connection string or URI.
        publication: One, or several.
        slot: Create this slot, whose stream begins where the snapshot ends. It stays when the block is left, also by
            an error. None: a temporary slot gives the snapshot, and goes with it.
        table: Lock this one alone, `namespace.name`, if no other is read: the role needs SELECT on what is locked.

    Raises:
        PublisherError: The server refuses, for example because the slot exists; or the table is not published.
    """
    names = [publication] if isinstance(publication, str) else list(publication)
    with ExitStack() as stack:
        publisher = stack.enter_context(Publisher(connection, application_name=_APPLICATION_NAME))
        tables = [each for each in publisher.tables(names) if table in {None, each.qualified_name}]
        if table is not None and not tables:
            raise PublisherError(
                f'table "{table}" is not published by {", ".join(names)}',
                hint="name it with its schema, as in public.orders",
            )
        for each in tables:
            stack.enter_context(TableLock(connection, each, application_name=_APPLICATION_NAME))
        replication = stack.enter_context(ReplicationConnection(connection, application_name=_APPLICATION_NAME))
        created = replication.create_slot(
            slot or f"pgbridge_snapshot_{replication.connection.info.backend_pid}", temporary=slot is None
        )
        if created.name is None:
            raise PublisherError("the server exported no snapshot")
        yield ExportedSnapshot(created.name, created.consistent_point, tuple(each.qualified_name for each in tables))
