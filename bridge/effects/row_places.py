"""Where a table's rows are, by their keys: each row's data file, and its index in the file.

Whoever knows it can change rows of a large table without reading any: a deletion vector marks the rows as deleted, and
what they became is appended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Keys = NDArray[Any]  # of int64 or bytes
    Ints = NDArray[np.int64]

_MOST_KEY_BYTES: Final = 64
"""Longer texts are not kept; a UUID has 36."""

_INDEX_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Where the rows of a table are.

    Attributes:
        files: The data files by number, as whoever reads and writes them names them.
    """

    LEAST_ROW_BYTES: ClassVar = 9
    """A row takes no less memory."""

    files: Mapping[int, str]
    _keys: Keys  # ascending, none twice
    _places: Ints  # the file's number, and the row's index in the lower bits

    @classmethod
    def of(cls, files: Sequence[tuple[str, Keys, Ints]]) -> Self | None:
        """Places by the files, their keys, and these rows' indexes; None if a key is there twice."""
        keys = np.concatenate([keys for _, keys, _ in files]) if files else np.empty(0, np.int64)
        places = [_places(number, indexes) for number, (_, _, indexes) in enumerate(files)]
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        if len(keys) > 1 and (keys[1:] == keys[:-1]).any():
            return None
        together = np.concatenate(places)[order] if places else np.empty(0, np.int64)
        return cls({number: file for number, (file, _, _) in enumerate(files)}, keys, together)

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        return self._keys.nbytes + self._places.nbytes

    def are_of(self, keys: Keys) -> bool:
        """Whether these keys are of the kind of the table's."""
        return not len(self._keys) or self._keys.dtype.kind == keys.dtype.kind

    def holds(self, keys: Keys) -> NDArray[np.bool_]:
        """Whether each key is there."""
        if not len(self._keys):
            return np.zeros(len(keys), np.bool_)
        at = np.minimum(self._at(keys), len(self._keys) - 1)
        there: NDArray[np.bool_] = self._keys[at] == keys
        return there

    def indexes_of(self, keys: Keys) -> dict[int, Ints]:
        """The row indexes of keys that are there, ascending, by the number of their file."""
        places = np.sort(self._places[self._at(keys)])
        numbers, starts = np.unique(places >> _INDEX_BITS, return_index=True)
        parts = np.split(places & ((1 << _INDEX_BITS) - 1), starts[1:])
        return dict(zip(numbers.tolist(), parts, strict=True)) if len(places) else {}

    def after(self, gone: Keys, files: Mapping[int, str | None], added: Sequence[tuple[str, Keys, Ints]]) -> Self:
        """The places after a commit.

        Args:
            gone: Keys that are there, of rows that are marked as deleted.
            files: What became of the files that have them, by number; None for one that is removed.
            added: New files, their keys, and these rows' indexes.
        """
        left = {number: file for number, file in {**self.files, **files}.items() if file is not None}
        first = max(self.files, default=-1) + 1
        left |= {number: file for number, (file, _, _) in enumerate(added, first)}
        new = np.concatenate([gone[:0], *(keys for _, keys, _ in added)])
        parts = (_places(number, indexes) for number, (_, _, indexes) in enumerate(added, first))
        put = np.concatenate([self._places[:0], *parts])
        order = np.argsort(new)
        new, put = new[order], put[order]
        # most rows are changed, and keep their keys: of a million, these are not copied
        stay = self.holds(new)
        places = self._places.copy()
        places[self._at(new[stay])] = put[stay]
        keys, ended = self._keys, self._at(gone[~np.isin(gone, new)])
        if len(ended):
            keys, places = np.delete(keys, ended), np.delete(places, ended)
        if not stay.all():
            keys, places = _inserted(keys, places, new[~stay], put[~stay])
        return type(self)(left, keys, places)

    def _at(self, keys: Keys) -> Ints:
        return np.searchsorted(self._keys, keys)


def _places(number: int, indexes: Ints) -> Ints:
    return (number << _INDEX_BITS) + indexes


def _inserted(keys: Keys, places: Ints, new: Keys, put: Ints) -> tuple[Keys, Ints]:
    # longer texts than the others need wider elements, to which `insert` would cut them
    wide = keys.astype(np.promote_types(keys.dtype, new.dtype), copy=False)
    at = np.searchsorted(wide, new)
    return np.insert(wide, at, new), np.insert(places, at, put)


def can_be_key(arrow: pa.DataType) -> bool:
    """Whether places are known by keys of a type."""
    return bool(pa.types.is_integer(arrow) or pa.types.is_string(arrow))


def as_keys(values: pa.ChunkedArray) -> Keys | None:
    """Values of a type of `can_be_key` as keys, which are equal if they are; None for NULL, and for long texts."""
    if values.null_count:
        return None
    if pa.types.is_integer(values.type):
        return np.asarray(values.to_numpy(), np.int64)
    width = pc.max(pc.binary_length(values)).as_py() or 1
    # a text is filled up with zeros, of which PostgreSQL's have none
    if width > _MOST_KEY_BYTES or pc.any(pc.match_substring(values, "\0")).as_py():
        return None
    filled = pc.binary_join_element_wise(values.cast(pa.binary()), pa.scalar(b"\0" * width), b"")
    cut = pc.binary_slice(filled, 0, width).cast(pa.binary(width)).combine_chunks()
    return np.frombuffer(cut.buffers()[1], f"S{width}", len(values), cut.offset * width)
