"""Row filters that a server computes, over rows as they were sent: which changes pass, and as what.

The rules are those of `filtering`. What passes is known before values are decoded, so that one that no Delta table
holds is of no harm in a row that does not pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.effects.operations import DELETE, INSERT, NO_OLD, UPDATE
from bridge.rowfilter.on_server.server_filter import VerdictError
from protocol.messages import ValueKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bridge.rowfilter.on_server.server_filter import ServerFilter
    from protocol.columns import RowMessages
    from protocol.messages import Relation, Tuple
    from protocol.values.value_array import Bools, Bytes, Ints


class VerdictSource(Protocol):
    """Who computes filters."""

    def verdicts(self, row_filter: ServerFilter, types: Sequence[int], rows: Sequence[Tuple]) -> Bools:
        """Which rows pass a filter, of the values of its columns in these types.

        Raises:
            VerdictError: There is no verdict on a row.
        """


class _Image(NamedTuple):
    """A message's old or new row, by the values of the columns that filters look at, and where its verdict goes."""

    row: int
    values: Tuple
    passes: Bools


@dataclass(frozen=True, slots=True)
class ServerFilters:
    """A table's filters by action, and who computes them; None where all rows pass."""

    server: VerdictSource
    insert: ServerFilter | None = None
    update: ServerFilter | None = None
    delete: ServerFilter | None = None

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that any of them looks at."""
        return frozenset().union(*(f.columns for f in (self.insert, self.update, self.delete) if f is not None))

    def passing(self, messages: RowMessages, relation: Relation, rows: Ints) -> tuple[Ints, Bytes]:
        """What passes, of messages of one relation.

        Args:
            messages: A block's.
            relation: As it was when these messages were sent; it has all columns that the filters look at.
            rows: Indices of the messages.

        Returns:
            Indices of the messages that pass, and what each is from now on: `INSERT`, `UPDATE` or `DELETE`.

        Raises:
            VerdictError: There is none on a row; `row` is the message's index.
        """
        if not len(rows):
            return rows, messages.tags[rows]
        names = sorted(self.columns)
        place = {column.name: i for i, column in enumerate(relation.columns)}
        olds, news = messages.raw(relation, [place[name] for name in names], rows)
        tags = messages.tags[rows]
        has_old = np.fromiter((old is not None for old in olds), np.bool_, len(rows))
        # an UPDATE without an old tuple has the same values there, as far as a filter looks at them
        new_passes, old_passes = np.ones(len(rows), np.bool_), np.ones(len(rows), np.bool_)
        wanted: dict[ServerFilter, list[_Image]] = {}
        by_tag = {
            tag: wanted.setdefault(row_filter, [])
            for tag, row_filter in ((INSERT, self.insert), (UPDATE, self.update), (DELETE, self.delete))
            if row_filter is not None
        }
        for i, (tag, old, new) in enumerate(zip(tags.tolist(), olds, news, strict=True)):
            images = by_tag.get(tag)
            if images is None:
                continue
            if old is not None:
                images.append(_Image(i, old, old_passes))
            if new is not None:
                images.append(_Image(i, _whole(new, old), new_passes))
        try:
            self._ask(wanted, relation, names)
        except VerdictError as error:
            raise VerdictError(int(rows[error.row]), error.reason) from error
        becomes = np.where(has_old & (tags == UPDATE), _of_updates(old_passes, new_passes), tags).astype(np.uint8)
        kept = np.where(tags == DELETE, old_passes, new_passes | (has_old & (tags == UPDATE) & old_passes))
        return rows[kept], becomes[kept]

    def _ask(self, wanted: Mapping[ServerFilter, Sequence[_Image]], relation: Relation, names: Sequence[str]) -> None:
        """Have verdicts on rows, of which the values of some columns are known, and mark which pass.

        Raises:
            VerdictError: There is none on a row; `row` is its message's, the first of these.
        """
        failed: VerdictError | None = None
        type_oids = {column.name: column.type_oid for column in relation.columns}
        for row_filter, images in wanted.items():
            if not images:
                continue
            own = [names.index(name) for name in row_filter.columns]
            types = [type_oids[name] for name in row_filter.columns]
            values = [image.values for image in images]
            if own != list(range(len(names))):
                values = [tuple(image[k] for k in own) for image in values]
            try:
                found = self.server.verdicts(row_filter, types, values)
            except VerdictError as error:
                row = images[error.row].row
                failed = VerdictError(row, error.reason) if failed is None or row < failed.row else failed
                continue
            for image, verdict in zip(images, found.tolist(), strict=True):
                image.passes[image.row] = verdict
        if failed is not None:
            raise failed


def _of_updates(old_passes: Bools, new_passes: Bools) -> Bytes:
    return np.where(new_passes, np.where(old_passes, UPDATE, INSERT), DELETE).astype(np.uint8)


def _whole(new: Tuple, old: Tuple | None) -> Tuple:
    """A new row with values that were not sent, being unchanged, from the old one."""
    if old is None or all(value.kind is not ValueKind.UNCHANGED_TOAST for value in new):
        return new
    pairs = zip(new, old, strict=True)
    return tuple(before if value.kind is ValueKind.UNCHANGED_TOAST else value for value, before in pairs)


def with_new_operations(changes: pa.Table, becomes: Bytes) -> tuple[pa.Table, int]:
    """Changes with their new operations.

    Args:
        changes: In the columns of `TableChanges.changes`, with their operations as they were sent.
        becomes: What each is.

    Returns:
        The changes, and how many UPDATEs became INSERTs without a value that the stream does not carry: it is NULL.
    """
    sent = changes["op"].to_numpy()
    born = (sent == UPDATE) & (becomes == INSERT)
    at = changes.column_names.index("op")
    changed = changes.set_column(at, "op", pa.array(becomes.astype(np.int16)))
    lost = np.zeros(len(born), np.bool_)
    for name in changes.column_names:
        if name.startswith("unchanged_"):
            marks = pc.fill_null(changes[name], fill_value=False).to_numpy()
            lost |= born & marks
            changed = changed.set_column(changed.column_names.index(name), name, pa.array(marks & ~born))
    if born.any():
        old = np.where(born, NO_OLD, changes["old"].to_numpy()).astype(np.int16)
        changed = changed.set_column(changed.column_names.index("old"), "old", pa.array(old))
    return changed, int(lost.sum())
