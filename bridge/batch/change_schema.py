"""The change schema: the columns in which every committed change is handed out, in order and with both of its images.

    column       Spark type             what it has
    operation    string                 INSERT, UPDATE, DELETE or TRUNCATE
    commit_lsn   bigint                 LSN of the commit record, PostgreSQL's finish LSN; `lsn_text` prints it
    ordinal      bigint                 position within the transaction, from 0, over all tables
    xid          bigint                 transaction id
    commit_time  timestamp              by the server's clock
    origin       string                 the replication origin that the transaction came from; NULL for none
    old          struct of the columns  the old image; NULL if none was sent
    new          struct of the columns  the new image; NULL for DELETE and TRUNCATE
    unchanged    array<string>          columns of `new` whose value was not sent; NULL if there are none

(commit_lsn, ordinal) is unique and orders all changes of a stream. The ordinal counts what the server sent: row
messages, and each table of a TRUNCATE; those of rolled back subtransactions do not count. So changes that a row filter
drops, and those of tables that are not subscribed, leave gaps, and the numbers are the same whenever and however often
the transaction is received.

`old` has the key's columns, the others NULL, or with REPLICA IDENTITY FULL the whole row. An INSERT has none, also if
it was an UPDATE whose old row does not match the row filter. A value in `unchanged` is a large one (TOAST) that an
UPDATE left as it was, and which the server does not send; in `new` it is NULL. If `old` has it, `new` has it too.

Row filters (with the four cases of an UPDATE), column lists, published actions and partition roots are applied before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable

OPERATION: Final = "operation"
OLD: Final = "old"
NEW: Final = "new"
UNCHANGED: Final = "unchanged"

POSITION: Final = (
    ("commit_lsn", pa.int64()),
    ("ordinal", pa.int64()),
    ("xid", pa.int64()),
    ("commit_time", pa.timestamp("us", "UTC")),
    ("origin", pa.string()),
)
"""The columns that say where a change is in the stream, and where it came from; in their order."""

POSITION_NAMES: Final = tuple(name for name, _ in POSITION)


def change_schema(columns: Iterable[tuple[str, pa.DataType]]) -> pa.Schema:
    """The change schema of a table.

    Args:
        columns: The table's columns, with the types of their values.
    """
    row = pa.struct([pa.field(name, arrow) for name, arrow in columns])
    return pa.schema(
        [
            pa.field(OPERATION, pa.string()),
            *(pa.field(name, arrow) for name, arrow in POSITION),
            pa.field(OLD, row),
            pa.field(NEW, row),
            pa.field(UNCHANGED, pa.list_(pa.string())),
        ]
    )


def lsn_text(lsn: int) -> str:
    """An LSN as PostgreSQL prints it, such as `16/B374D848`.

    Raises:
        ValueError: It is not an unsigned 64-bit integer.
    """
    return str(Lsn(lsn))


def parse_lsn(text: str) -> int:
    """The number of an LSN that PostgreSQL printed.

    Raises:
        ValueError: The text is not of that form.
    """
    return int(Lsn.parse(text))
