"""Values laid into a buffer as a message would have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pgbridge.protocol.values.value_array import PADDING, ValueArray

if TYPE_CHECKING:
    from collections.abc import Sequence


def value_array_of(values: Sequence[bytes], gap: bytes = b"\xffgap") -> ValueArray:
    """The values, with other bytes before, between and after them."""
    lengths = np.array([len(value) for value in values], np.int64)
    starts = len(gap) * (np.arange(len(values)) + 1) + np.cumsum(lengths) - lengths
    content = b"".join(gap + value for value in values) + gap + b"\xee" * PADDING
    return ValueArray(np.frombuffer(content, np.uint8), starts, lengths)
