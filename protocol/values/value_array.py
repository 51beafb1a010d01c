"""Many values in one buffer, and the steps that readers use to turn them into an Arrow array.

A reader sees only values, no columns or messages, so it names a value that it must refuse by its index among the given
ones (`BadValueError`). `decode_chunk`, which knows column and message, turns that into one of `protocol.errors`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.protocol.values.types import ColumnType

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Unrepresentable = Literal["error", "null"]
"""The treatment of a value that the column's type cannot hold: raise an error, or make it NULL."""

PADDING = 64
"""Number of bytes behind the last value of a buffer, so that a read of a fixed width never leaves the buffer."""

_LITTLE_ENDIAN = sys.byteorder == "little"
_SHOWN_BYTES = 60

IN_HEX: Final = "\\x"
"""Begins what is shown of bytes that are not text. No text that a string column cannot hold begins so."""

_ODD_COUNT = 1 << 16
_ODD = pa.array(np.arange(1, 2 * _ODD_COUNT, 2, dtype=np.int32))


class BadValueError(Exception):
    """A value that cannot be read; `index` is its index among the given values."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index: int = int(index)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class MalformedValue(BadValueError):
    """A value whose bytes do not have the form of its type."""


class UnheldValue(BadValueError):
    """A valid value that the Arrow type cannot hold; `text` shows it."""

    def __init__(self, index: int, text: str, reason: str) -> None:
        super().__init__(index, reason)
        self.text = text


class TooLargeError(Exception):
    """The values together need more text than one Arrow array can hold; fewer values may do."""


@dataclass(frozen=True, slots=True)
class ValueArray:
    """Values in the order of their position in a buffer; they do not overlap.

    Attributes:
        data: The buffer; the last value ends before 2 GiB, with PADDING bytes behind it.
        starts: Index in `data` of each value's first byte.
        lengths: Length of each value, in bytes.
    """

    data: Bytes
    starts: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, which: Bools | Ints) -> ValueArray:
        """The values that a mask or ascending indices select."""
        return ValueArray(self.data, self.starts[which], self.lengths[which])

    def without_prefix(self, width: int) -> ValueArray:
        """The values without their first bytes; the caller has checked that they are long enough."""
        return ValueArray(self.data, self.starts + width, self.lengths - width)

    def raw(self, index: int) -> bytes:
        """One value's bytes."""
        start = int(self.starts[index])
        return self.data[start : start + int(self.lengths[index])].tobytes()

    def show(self, index: int) -> str:
        """One value for a message: its text, or hexadecimal if it is not text, shortened."""
        return show(self.raw(index))

    def expect_length(self, width: int, label: str) -> None:
        """Raise MalformedValue unless every value has this many bytes."""
        wrong = self.lengths != width
        if wrong.any():
            index = int(wrong.argmax())
            raise MalformedValue(index, f"{label} of {self.lengths[index]} bytes, expected {width}")

    def numbers(self, dtype: str, offset: int = 0) -> npt.NDArray[Any]:
        """The big-endian numbers at `offset` bytes into each value, in the machine's byte order."""
        return numbers_at(self.data, self.starts, dtype, offset)

    def blocks(self, width: int) -> Bytes:
        """The first bytes of each value as the rows of a matrix; a shorter value is followed by the bytes behind it."""
        sliding = np.ndarray((len(self.data) - width + 1,), f"V{width}", self.data, strides=(1,))
        return sliding[self.starts].view(np.uint8).reshape(len(self), width)

    def gather(self, arrow: pa.DataType | None = None) -> pa.Array:
        """Copy the values into a binary array, or into a string array that the caller validates."""
        arrow = pa.binary() if arrow is None else arrow
        count = len(self)
        if count == 1:  # it may have hundreds of megabytes, of which `take` would have two copies for a moment
            start, length = int(self.starts[0]), int(self.lengths[0])
            return strings_of(np.array([0, length]), self.data[start : start + length].copy(), arrow)
        # An array over the whole buffer has the elements gap, value, gap, value ...: taking every other one copies the
        # values in C++, ten times as fast as NumPy with an index per byte.
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[0] = 0
        offsets[1::2] = self.starts
        np.add(self.starts, self.lengths, out=offsets[2::2], casting="unsafe")
        everything = pa.Array.from_buffers(arrow, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(self.data)])
        odd = _ODD if count <= _ODD_COUNT else pa.array(np.arange(1, 2 * count, 2, dtype=np.int32))
        return pc.take(everything, odd.slice(0, count), boundscheck=False)

    def text(self, policy: Unrepresentable) -> pa.Array:
        """Copy the values into a string array; raises as `strings` does."""
        return strings(self.gather(), policy)


def strings(values: pa.Array, policy: Unrepresentable) -> pa.Array:
    """Make a string array of a binary one. A value that is not UTF-8, as SQL_ASCII databases may have, it cannot hold.

    Raises:
        UnheldValue: A value is not UTF-8, and the policy is "error".
    """
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        raws = values.to_pylist()
        refused = np.array([not _is_utf8(raw) for raw in raws])
        refuse(refused, policy, lambda index: show(raws[index]), "the column holds UTF-8 only")
        return pc.if_else(pa.array(refused), pa.scalar(None, pa.binary()), values).cast(pa.string())


def _is_utf8(raw: bytes | None) -> bool:
    if raw is None:
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


Reader = Callable[[ValueArray, ColumnType, Unrepresentable], pa.Array]
"""Reads values, none of them NULL in PostgreSQL, into an array of the type's Arrow type and of the same length."""


def numbers_at(data: Bytes, places: Ints, dtype: str, offset: int = 0) -> npt.NDArray[Any]:
    """The big-endian numbers at some places of a buffer, in the machine's byte order."""
    size = np.dtype(dtype).itemsize
    sliding: npt.NDArray[Any] = np.ndarray((len(data) - offset - size + 1,), dtype, data, offset=offset, strides=(1,))
    numbers = sliding[places]
    return numbers.byteswap(inplace=True) if _LITTLE_ENDIAN and size > 1 else numbers


def show(raw: bytes) -> str:
    """Bytes for a message: as text, or in hexadecimal if they are not text, shortened."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = IN_HEX + raw[:_SHOWN_BYTES].hex()
    if not text.isprintable():
        text = IN_HEX + raw[:_SHOWN_BYTES].hex()
    return text if len(text) <= _SHOWN_BYTES and len(raw) <= _SHOWN_BYTES else text[:_SHOWN_BYTES] + "..."


def flat(strings: pa.Array) -> tuple[Ints, Bytes]:
    """Return the offsets (one more than values) and the bytes of a binary or string array without NULLs."""
    if not len(strings):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offsets_buffer, bytes_buffer = strings.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[strings.offset : strings.offset + len(strings) + 1]
    content = np.frombuffer(bytes_buffer, np.uint8) if bytes_buffer else np.zeros(0, np.uint8)
    return (offsets - offsets[0]).astype(np.int64), content[offsets[0] : offsets[-1]]


def strings_of(offsets: npt.NDArray[np.integer], content: Bytes, arrow: pa.DataType) -> pa.Array:
    """Make a binary or string array of offsets (one more than values) and bytes."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(content))]
    return pa.Array.from_buffers(arrow, len(offsets) - 1, buffers)


def primitive(arrow: pa.DataType, values: npt.NDArray[Any], nulls: Bools | None = None) -> pa.Array:
    """Wrap NumPy values in an Arrow array of the same memory layout."""
    validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(arrow, len(values), [validity, pa.py_buffer(values)])


def attempt(step: Callable[[pa.Array], pa.Array], values: pa.Array, reason: Callable[[int], str]) -> pa.Array:
    """Apply a step to an array; if Arrow refuses it, raise MalformedValue for the first value that it refuses."""
    try:
        return step(values)
    except pa.ArrowInvalid:
        low, high = 0, len(values)  # the first failing value is in [low, high)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                step(values.slice(low, middle - low))
                low = middle
            except pa.ArrowInvalid:
                high = middle
        raise MalformedValue(low, reason(low)) from None


def refuse(refused: Bools, policy: Unrepresentable, text_of: Callable[[int], str], reason: str) -> Bools | None:
    """Return the values to make NULL, None if there are none; with the policy "error", raise UnheldValue instead."""
    if not refused.any():
        return None
    if policy == "error":
        index = int(refused.argmax())
        raise UnheldValue(index, text_of(index), reason)
    return refused


def merge(parts: Sequence[tuple[Ints, pa.Array]], count: int, arrow: pa.DataType) -> pa.Array:
    """Make an array with each part's values at the part's indices, NULL elsewhere."""
    parts = [(indices, values) for indices, values in parts if len(indices)]
    if not parts:
        return pa.nulls(count, arrow)
    if len(parts) == 1 and len(parts[0][0]) == count:
        return parts[0][1]
    source = np.full(count, -1, np.int64)
    filled = 0
    for indices, values in parts:
        source[indices] = np.arange(filled, filled + len(values))
        filled += len(values)
    joined = parts[0][1] if len(parts) == 1 else pa.concat_arrays([values for _, values in parts])
    where = pa.array(source, mask=source < 0) if filled < count else pa.array(source)
    return pc.take(joined, where, boundscheck=False)


def read_selected(
    values: ValueArray, which: Bools, arrow: pa.DataType, read: Callable[[ValueArray], pa.Array]
) -> pa.Array:
    """Read the values that a mask selects; the others are NULL."""
    if which.all():
        return read(values)
    indices = np.flatnonzero(which)
    with indices_of(indices):
        selected = read(values.select(indices)) if len(indices) else None
    return merge([] if selected is None else [(indices, selected)], len(values), arrow)


@contextmanager
def indices_of(indices: Ints) -> Generator[None, None, None]:
    """Give faults of selected values their index among all values."""
    try:
        yield
    except BadValueError as fault:
        fault.index = int(indices[fault.index])
        raise


def per_distinct(values: ValueArray, output: Callable[[bytes], str], label: str) -> pa.Array:
    """Make a string array by a function of one value's bytes, called once for each distinct value.

    Raises:
        MalformedValue: The function raised ValueError.
    """
    encoded = values.gather().dictionary_encode()
    texts = []
    for code, raw in enumerate(encoded.dictionary.to_pylist()):
        try:
            texts.append(output(raw))
        except ValueError as error:
            index = int(np.argmax(encoded.indices.to_numpy() == code))
            raise MalformedValue(index, f"{label} \\x{raw[:_SHOWN_BYTES].hex()}: {error}") from None
    return pc.take(pa.array(texts, pa.string()), encoded.indices, boundscheck=False)
