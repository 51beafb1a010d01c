"""A table to verify: how both sides compute the hashes of its keys and rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bridge.apply.target.location import quoted
from bridge.sqltext.keywords import quote_identifier
from bridge.verify.canonical_text import (
    HASH_DIGITS,
    source_row,
    source_text,
    target_row,
    target_text,
)
from protocol.values.places import AS_NULLS
from protocol.values.types import Place

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from bridge.apply.target.target import Mode
    from bridge.publication.published_table import PublishedTable
    from protocol.values.types import ColumnType

_BUCKET_SHIFT: Final = 4 * HASH_DIGITS - 16
"""A row is in one of 65 536 buckets, by the first bits of its hash. So one hash of each row is enough."""

ValueTexts = tuple[str | None, str | None]
"""A value's canonical text, by which both sides are compared, and its text for people."""


@dataclass(frozen=True, slots=True)
class VerifiedColumn:
    """A published column: its name, its type on the server, and the type and place of its Delta column."""

    name: str
    type: ColumnType
    target: pa.DataType
    place: Place = Place.COLUMN

    @property
    def source_text(self) -> str:
        """PostgreSQL's expression of its text."""
        text = source_text(quote_identifier(self.name), self.type, self.target)
        for value in AS_NULLS if self.place is Place.PARTITION else ():
            text = f"nullif({text}, '{len(value)}:{value}')"
        return text

    @property
    def target_text(self) -> str:
        """Spark's."""
        return target_text(quoted(self.name), self.target)


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """A table to verify.

    Attributes:
        published: The published table.
        path: Its Delta table.
        columns: The published columns that are compared.
        key: The names of those by which changes find rows; none for a table whose rows are a bag.
        declarations: The types of the columns as SQL, by name.
        left_out: Columns that are not compared: VARIANT does not keep a document's text.
        mode: The Delta table's mode. Of a history, the versions that are valid are compared.
    """

    published: PublishedTable
    path: str
    columns: tuple[VerifiedColumn, ...]
    key: tuple[str, ...]
    declarations: Mapping[str, str] = field(default_factory=dict)
    mode: Mode = "mirror"
    left_out: tuple[str, ...] = ()

    @property
    def relation(self) -> str:
        """`namespace.name`."""
        return self.published.qualified_name

    @property
    def keyed(self) -> bool:
        """Whether rows have keys."""
        return bool(self.key)

    @property
    def identifying(self) -> tuple[VerifiedColumn, ...]:
        """The key's columns; all of them if rows have no keys."""
        return tuple(one for one in self.columns if one.name in self.key) if self.key else self.columns

    def source_texts(self) -> list[str]:
        """PostgreSQL's expressions of all columns' texts."""
        return [one.source_text for one in self.columns]

    def target_texts(self) -> list[str]:
        """Spark's."""
        return [one.target_text for one in self.columns]

    @property
    def source_key(self) -> str:
        """PostgreSQL's expression of the key's hash: MD5 in hexadecimal."""
        return source_row(one.source_text for one in self.identifying)

    @property
    def target_key(self) -> str:
        """Spark's."""
        return target_row(one.target_text for one in self.identifying)

    @property
    def source_hash(self) -> str:
        """PostgreSQL's expression of the row's hash, a bigint that is not negative."""
        bits = 4 * HASH_DIGITS
        return f"('x' || left({source_row(self.source_texts())}, {HASH_DIGITS}))::bit({bits})::bigint"

    @property
    def target_hash(self) -> str:
        """Spark's."""
        return f"cast(conv(left({target_row(self.target_texts())}, {HASH_DIGITS}), 16, 10) AS bigint)"


def source_bucket(row_hash: str) -> str:
    """PostgreSQL's expression of a row hash's bucket."""
    return f"({row_hash} >> {_BUCKET_SHIFT})::int"


def target_bucket(row_hash: str) -> str:
    """Spark's."""
    return f"cast(shiftright({row_hash}, {_BUCKET_SHIFT}) AS int)"


def bucket_of(row_hash: int) -> int:
    """The bucket of a row's hash."""
    return row_hash >> _BUCKET_SHIFT
