"""A session of the server with the samples' types, and the values it sends, for the tests of the readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgbridge import sql
from pgbridge.protocol.values.pg_type import TypeInfo
from pgbridge.protocol.values.types import resolve
from tests.protocol.sampled import OWN_TYPES, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbridge.protocol.values.types import ColumnType


@dataclass(frozen=True)
class Sent:
    """Values of one column as the server sends them, in both forms; None for NULL."""

    type: ColumnType
    texts: list[bytes | None]
    binaries: list[bytes | None]


class Samples:
    """Sends sample values through a table of the server, inside a transaction."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def type_of(self, declaration: str) -> ColumnType:
        """The declared type, with the facts that `sql/types.sql` gives."""
        oid, typmod = self.connection.execute(
            "SELECT atttypid, atttypmod FROM pg_attribute WHERE attrelid = 'sample'::regclass AND attname = 'v'"
        ).fetchone() or (0, 0)
        rows = self.connection.execute(sql.load("types"), {"oids": [oid]}).fetchall()
        catalog = {info.oid: info for info in (TypeInfo(*row) for row in rows)}
        assert oid in catalog, declaration
        return resolve(oid, typmod, catalog)

    def fill(self, declaration: str, literals: list[str]) -> ColumnType:
        """Make the table `sample` (id, v) anew, of these values and a NULL in front and at the end."""
        if declaration.startswith("interval") and self.connection.info.server_version < 170000:
            literals = [literal for literal in literals if "infinity" not in literal]
        self.connection.execute("DROP TABLE IF EXISTS sample")
        self.connection.execute(f"CREATE TEMP TABLE sample (id serial, v {declaration})")
        with self.connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO sample (v) VALUES (%s::{declaration})",
                [(literal,) for literal in (None, *literals, None)],
            )
        return self.type_of(declaration)

    def send(self, declaration: str, literals: list[str]) -> Sent:
        """Have these values sent, with a NULL in front and at the end."""
        type_ = self.fill(declaration, literals)
        query = b"SELECT v FROM sample ORDER BY id"
        forms = []
        for binary in (0, 1) if type_.binary else (0,):
            result = self.connection.pgconn.exec_params(query, [], result_format=binary)
            assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message.decode()
            forms.append([result.get_value(row, 0) for row in range(result.ntuples)])
        return Sent(type_, forms[0], forms[-1] if type_.binary else [])


@pytest.fixture(scope="module")
def samples(postgresql_server) -> Iterator[Samples]:
    """A transaction that has the samples' types and is rolled back."""
    with psycopg.connect(postgresql_server.conninfo()) as connection:
        for statement in (*SETTINGS, *OWN_TYPES):
            connection.execute(statement)
        yield Samples(connection)
        connection.rollback()
