"""Which changes a table does not have yet whose copy has ranges of its key under several snapshots. Pure.

A change counts for a row whose range was read before it. An UPDATE that moves a row from one range to another counts
for both or for one: then it is a DELETE of the old row, or an INSERT of the new one. A TRUNCATE comes after all ranges:
it gives the table another file, so that a copy begins anew (`bridge.sync.ranged_copy`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.batch.row_filters import what_becomes
from pgbridge.bridge.effects.events import INSERT, NO_OLD, UPDATE
from pgbridge.bridge.runtime.errors import RangesDiffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbridge.bridge.targets.target import Target
    from pgbridge.protocol.codec.messages import Relation
    from pgbridge.protocol.lsn import Lsn
    from pgbridge.protocol.values.value_array import Bools, Bytes, Ints

Bounds = tuple[int, ...] | tuple[bytes, ...]

PREFIX_BYTES: Final = 64
"""Of texts, by which they are divided."""


def range_of(values: pa.Array, bounds: Bounds) -> Ints:
    """The number of the range that each value is in.

    Args:
        values: Integers or texts, without NULL.
        bounds: The least value of each range but the first, in the order of Arrow and Spark; of texts, the first bytes.
    """
    plain: np.typing.NDArray[np.void | np.int64]
    if pa.types.is_string(values.type):
        padded = pc.binary_join_element_wise(values.cast(pa.binary()), pa.scalar(bytes(PREFIX_BYTES), pa.binary()), b"")
        prefixes = pc.binary_slice(padded, 0, PREFIX_BYTES).cast(pa.binary(PREFIX_BYTES))
        plain = np.frombuffer(prefixes.buffers()[1], f"S{PREFIX_BYTES}", len(prefixes), 0)
    else:
        plain = values.to_numpy(zero_copy_only=False)
    return np.searchsorted(np.array(bounds), plain, side="right")


@dataclass(frozen=True, slots=True)
class RangeCut:
    """The ranges of a copied table.

    Attributes:
        column: The column that they are ranges of.
        bounds: The least value of each range but the first.
        lsns: By range: the table has the transactions that committed before it.
    """

    column: str
    bounds: Bounds
    lsns: tuple[Lsn, ...]

    def left(
        self,
        relation: Relation,
        target: Target,
        rows: Ints,
        table: pa.Table,
        operations: Bytes,
        firsts: Ints,
    ) -> tuple[Bools, Bytes]:
        """Which changes the table does not have, and the operation that each becomes.

        Args:
            rows: Their positions, in the order of the stream.
            table: Decoded rows, with unchanged values resolved.
            operations: What they are, as filters leave them.
            firsts: By range, the position of the first row that commits at or after its LSN.

        Raises:
            RangesDiffer: It cannot be told for a row; or a row has come from a range that was read later, and the
                stream does not have all its values.
        """
        at = next((i for i, column in enumerate(relation.columns) if column.name == self.column), None)
        in_identity = at is not None and (relation.replica_identity == "f" or relation.columns[at].is_key)
        if at is None or not (in_identity or (operations == INSERT).all()):
            raise self._differs(target, f'the replica identity lacked its column "{self.column}"')
        has_old = table["old"].to_numpy() != NO_OLD
        new, old = _values(table, f"new_{at}"), _values(table, f"old_{at}")
        filled = pc.coalesce(new, old), pc.coalesce(old, new)
        if filled[0].null_count:
            raise self._differs(target, f'its column "{self.column}" was NULL in a row')
        new_passes, old_passes = (rows >= firsts[range_of(each, self.bounds)] for each in filled)
        passed, become = what_becomes(operations, has_old, old_passes, new_passes)
        arrived = (operations == UPDATE) & (become == INSERT) & passed
        if arrived.any() and any(_marked(table, name, arrived) for name in _unchanged(table)):
            raise self._differs(target, "a row got another key, and the stream lacks values of it")
        return passed, become

    def _differs(self, target: Target, why: str) -> RangesDiffer:
        return RangesDiffer(
            f'table "{target.qualified_name}" was copied in parts, and between them {why}',
            (target.namespace, target.name),
        )


def _values(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        return pa.nulls(len(table), table[f"new_{name.partition('_')[2]}"].type)
    return table[name].combine_chunks()


def _unchanged(table: pa.Table) -> Sequence[str]:
    return [name for name in table.column_names if name.startswith("unchanged_")]


def _marked(table: pa.Table, name: str, rows: Bools) -> bool:
    return bool((pc.fill_null(table[name], fill_value=False).to_numpy() & rows).any())
