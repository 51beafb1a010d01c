"""A table's shape: which names and values its Delta table has in place of the published columns'. Pure.

A masked column is text to all that comes after its mask: the text that PostgreSQL's output function writes is replaced
before anything is written or kept. So the stream is masked as it is received, spool files and kept transactions have
masked values only, and a copy masks rows as it reads them. What has to be computed on the server, for a verification,
is the same as an SQL expression.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.sqltext.lexer import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    Masks = Mapping[str, "Mask"]
    """The masks of a table's columns, by their names."""

TEXT: Final = (25, -1)
"""The type, and its modifier, that a masked column has for all that comes after its mask."""

SALT_SETTING: Final = "pgbridge.mask_salt"
"""The server's setting that a verification puts the salt into, in hexadecimal: so it is in no statement's text."""

_FINGERPRINT_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of a column. NULL stays NULL.

    Attributes:
        method: "sha256": the hash of the salt and the value's text in UTF-8, in hexadecimal; "null": NULL; "text": a
            fixed text; "first": the first characters of the value's text; "none": the value itself, of a column that
            has come in place of a masked one.
        text: The fixed text.
        characters: How many characters.
        salt: Of "sha256".
    """

    method: Literal["sha256", "null", "text", "first", "none"]
    text: str = ""
    characters: int = 0
    salt: bytes = field(default=b"", repr=False)

    def of(self, value: bytes) -> bytes | None:
        """What the Delta table has in place of a value, given by its text in UTF-8; None for NULL."""
        match self.method:
            case "sha256":
                return hashlib.sha256(self.salt + value).hexdigest().encode()
            case "text":
                return self.text.encode()
            case "first":  # bytes that are no UTF-8 stay what they are: whoever reads the text says so
                return value.decode("utf-8", "surrogateescape")[: self.characters].encode("utf-8", "surrogateescape")
            case "none":
                return value
            case _:
                return None

    def sql(self, column: str) -> str:
        """The same as an SQL expression, of type text; the salt is in the setting `SALT_SETTING`."""
        name = quote_identifier(column)
        text = _OUTPUT.format(name)
        match self.method:
            case "sha256":
                salt = f"pg_catalog.decode(pg_catalog.current_setting('{SALT_SETTING}'), 'hex')"
                hashed = f"pg_catalog.sha256({salt} || pg_catalog.convert_to({text}, 'UTF8'))"
                masked = f"pg_catalog.encode({hashed}, 'hex')"
            case "text":
                fixed = self.text.replace("\\", "\\\\").replace("'", "''")
                masked = f"E'{fixed}'::text"
            case "first":
                masked = f'pg_catalog."left"({text}, {self.characters})'
            case "none":
                masked = text
            case _:
                return "NULL::text"
        return _unless_null(name, masked)

    @property
    def description(self) -> str:
        """What it does, for comparison with what it did: of the salt only a fingerprint."""
        further = {"sha256": hashlib.sha256(b"fingerprint" + self.salt).hexdigest()[:_FINGERPRINT_DIGITS]}
        return f"{self.method} {further.get(self.method, self.text or self.characters or '')}".strip()


_OUTPUT: Final = "pg_catalog.concat({})"
"""What the output function writes; a cast to text may be another."""


def _unless_null(value: str, expression: str) -> str:
    """An SQL expression; NULL where a value is. A composite value with NULLs only is none."""
    return f"CASE WHEN {value} IS DISTINCT FROM NULL THEN {expression} END"


def output_text(value: str) -> str:
    """The SQL expression of the text that PostgreSQL's output function writes for a value."""
    return _unless_null(value, _OUTPUT.format(value))


class Shape(NamedTuple):
    """What a Delta table has in place of a published table's columns.

    Attributes:
        masks: The masks of columns, by the published columns' names.
        names: The names that columns have in the Delta table, by the published columns' names; the others keep theirs.
    """

    masks: Masks = MappingProxyType({})
    names: Mapping[str, str] = MappingProxyType({})

    def mask(self, column: str) -> Mask | None:
        """The mask of a published column; None if it has none."""
        mask = self.masks.get(column)
        return None if mask is None or mask.method == "none" else mask

    def name(self, column: str) -> str:
        """The name that a published column has in the Delta table."""
        return self.names.get(column, column)

    @property
    def description(self) -> str:
        """It as one text, which is equal for equal shapes."""
        masked = {column: mask.description for column in sorted(self.masks) if (mask := self.mask(column)) is not None}
        return json.dumps({"masks": masked, "names": dict(sorted(self.names.items()))})

    def differs(self, before: str, columns: Collection[str], published: Collection[str] | None = None) -> bool:
        """Whether the columns of a Delta table are of another shape than this one.

        Args:
            before: The `description` of the shape that they were made by.
            columns: Their names.
            published: The published columns, without those that were renamed or dropped since; None if not known. What
                the shape says of others' names counts no more.
        """
        was, now = json.loads(before), json.loads(self.description)
        named = {**was["names"], **now["names"]} if published is None else published
        return any(
            was[what].get(column) != now[what].get(column)
            for what, of in (("masks", {**was["masks"], **now["masks"]}), ("names", named))
            for column in of
            if was["names"].get(column, column) in columns
        )


def masks_of(description: str) -> dict[str, str]:
    """What the masks of a `Shape.description` do, by column."""
    return dict(json.loads(description)["masks"])


AS_PUBLISHED: Final = Shape()
"""The shape of a table whose columns are the published ones."""


def identifies(relation: str, column: str) -> TargetError:
    """The error for a masked column that is part of the primary key or the replica identity's index."""
    return TargetError(
        f'column "{column}" of table "{relation}" identifies rows, and cannot be masked',
        hint=f'remove it from mask in tables."{relation}"; or leave it out by a column list, with another replica '
        "identity",
    )
