"""Tables and changes for `benchmarks.apply`: W1's columns, with serial or random keys."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, UPDATE
from pgbridge.bridge.targets.target import TargetColumn
from pgbridge.protocol.values.types import resolve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

SERIAL: Final = "serial"
RANDOM: Final = "random"
KEYS: Final = (SERIAL, RANDOM)

KINDS: Final = {
    "insert": (0.0, 0.0),
    "update": (1.0, 0.0),
    "delete": (0.0, 1.0),
    "mixed": (0.7, 0.1),
}
"""Parts of updates and deletes; the others are inserts."""

_NUMERIC_12_2: Final = (12 << 16 | 2) + 4
_UUID_PARTS: Final = (8, 4, 4, 4, 12)


@dataclass(frozen=True, slots=True)
class Size:
    """A table.

    Attributes:
        rows: How many it has.
        keys: One of KEYS.
    """

    rows: int
    keys: str

    def __str__(self) -> str:
        return f"{self.rows} rows with {self.keys} keys"

    @property
    def columns(self) -> tuple[TargetColumn, ...]:
        """W1's columns; a random key is a text of 36 characters, as a uuid column becomes."""
        types = {"id": (20 if self.keys == SERIAL else 25, -1), "parent": (20, -1), "ratio": (701, -1)}
        types |= {"code": (25, -1), "digest": (25, -1), "at": (1184, -1), "active": (16, -1)}
        types["amount"] = (1700, _NUMERIC_12_2)
        return tuple(TargetColumn(name, resolve(*type_)) for name, type_ in types.items())

    def expressions(self) -> list[str]:
        """The columns of Spark's `range`."""
        parts, at = [], 1
        for length in _UUID_PARTS:
            parts.append(f"substr(md5(string(id)), {at}, {length})")
            at += length
        key = "id" if self.keys == SERIAL else f"concat_ws('-', {', '.join(parts)}) AS id"
        return [
            key,
            "id * 7919 % 1000003 AS parent",
            "sqrt(id) AS ratio",
            "lpad(string(id), 20, 'x') AS code",
            "lpad(string(id), 32, 'a') AS digest",
            "timestamp_micros(id * 1000001) AS at",
            "id % 3 = 0 AS active",
            "CAST((id * 104729 % 1000000007) / 100.0 AS DECIMAL(12, 2)) AS amount",
        ]

    def changes(self, ids: Ints, op: NDArray[np.int16]) -> pa.Table:
        """Changes of the rows with these numbers, in the columns of `TableChanges.changes`."""
        texts = pc.cast(pa.array(ids), pa.string())
        key = pa.array(ids) if self.keys == SERIAL else pa.array([_uuid(text) for text in texts.to_pylist()])
        values = [
            key,
            pa.array(ids * 7919 % 1_000_003),
            pa.array(np.sqrt(ids) + (op == UPDATE)),
            pc.utf8_lpad(texts, 20, "x"),
            pc.utf8_lpad(texts, 32, "b"),
            pa.array(ids * 1_000_001, pa.timestamp("us", "UTC")),
            pa.array(ids % 3 == 0),
            pc.divide(pa.array(ids * 104_729 % 1_000_000_007).cast(pa.float64()), 100.0).cast(pa.decimal128(12, 2)),
        ]
        deleted = pa.array(op == DELETE)
        return pa.table(
            {
                "seq": pa.array(np.arange(len(ids))),
                "op": pa.array(op),
                "old": pa.array(np.where(op == DELETE, KEY_TUPLE, NO_OLD).astype(np.int16)),
                **{f"new_{i}": _null_where(deleted, value) for i, value in enumerate(values)},
                "old_0": _null_where(pc.invert(deleted), key),
            }
        )


@dataclass(frozen=True, slots=True)
class Case:
    """Changes to a table.

    Attributes:
        size: The table.
        kind: One of KINDS.
        number: How many changes.
    """

    size: Size
    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.number} {self.kind}, {self.size}"

    def changes_of(self, seed: int) -> pa.Table:
        """Changes in the columns of `TableChanges.changes`; other seeds, other rows.

        Those of rows that exist are of the newest rows if keys are serial, and of any rows if they are random.
        """
        updates, deletes = (round(self.number * part) for part in KINDS[self.kind])
        inserts = self.number - updates - deletes
        rng = np.random.default_rng(seed)
        rows = self.size.rows
        among = min(rows, 2 * self.number) if self.size.keys == SERIAL else rows
        old = rows - 1 - rng.choice(among, updates + deletes, replace=False)
        ids = np.concatenate([old, np.arange(rows, rows + inserts)]).astype(np.int64)
        op = np.repeat(np.array([UPDATE, DELETE, INSERT], np.int16), [updates, deletes, inserts])
        order = rng.permutation(self.number)
        return self.size.changes(ids[order], op[order])


def _null_where(mask: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(mask, pa.scalar(None, values.type), values)


def _uuid(text: str) -> str:
    digest, parts, at = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), [], 0
    for length in _UUID_PARTS:
        parts.append(digest[at : at + length])
        at += length
    return "-".join(parts)
