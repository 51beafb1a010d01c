"""Bytes that no server sends are malformed; test_readers has the bytes that servers send."""

from __future__ import annotations

import random
import struct

import pytest

from pgbridge.protocol.values import readers
from pgbridge.protocol.values.types import resolve
from pgbridge.protocol.values.value_array import BadValueError, MalformedValue
from tests.protocol.made_values import value_array_of
from tests.protocol.sampled import SAMPLES

WIDTHS = {
    16: 1, 18: 1, 20: 8, 21: 2, 23: 4, 26: 4, 27: 6, 28: 4, 700: 4, 701: 8, 774: 8, 829: 6, 1082: 4, 1083: 8, 1114: 8,
    1184: 8, 1186: 16, 1266: 12, 2950: 16, 3220: 8, 5069: 8,
}  # fmt: skip


@pytest.mark.parametrize("oid", WIDTHS)
def test_other_widths(oid):
    """A value of a fixed width that is shorter or longer is named by its index."""
    type_, width = resolve(oid, -1), WIDTHS[oid]
    good = bytes(width)
    assert len(readers.read_binary(value_array_of([good, good]), type_, "error")) == 2
    for wrong in (width - 1, width + 1, 0):
        with pytest.raises(MalformedValue) as caught:
            readers.read_binary(value_array_of([good, bytes(wrong), good]), type_, "error")
        assert caught.value.index == 1


@pytest.mark.parametrize(
    ("oid", "good", "bad"),
    [
        (16, b"\1", b"\2"),
        (3802, b"\1{}", b"\2{}"),
        (3802, b"\1{}", b""),
        (1083, bytes(8), struct.pack(">q", -1)),
        (1083, bytes(8), struct.pack(">q", 86_400_000_001)),
        (1266, bytes(12), struct.pack(">qi", 86_400_000_001, 0)),
        (1560, bytes(4), bytes(3)),
        (1560, bytes(4), bytes(5)),
        (1560, bytes(4), struct.pack(">i", -8)),
        (1562, bytes(4), struct.pack(">i", 9) + b"\xff"),
        (1562, bytes(4), struct.pack(">i", 8) + b"\xff\xff"),
        (869, bytes([2, 32, 0, 4, 1, 2, 3, 4]), bytes([2, 32, 0, 4, 1, 2, 3])),
        (3904, b"\1", b"\2"),
        (4451, bytes(4), b""),
    ],
)  # fmt: skip
def test_malformed(oid, good, bad):
    with pytest.raises(MalformedValue) as caught:
        readers.read_binary(value_array_of([good, good, bad]), resolve(oid, -1), "null")
    assert caught.value.index == 2


@pytest.mark.parametrize(("oid", "layout"), [(700, ">I"), (701, ">Q")])
def test_every_nan_becomes_the_same(oid, layout):
    """x86 makes negative NaNs, which PostgreSQL keeps; the text form has one NaN only."""
    bits = 8 * struct.calcsize(layout)
    ones = (1 << bits) - 1
    found = readers.read_binary(
        value_array_of([struct.pack(layout, n) for n in (ones, ones >> 1)]), resolve(oid, -1), "error"
    )
    text = readers.read_text(value_array_of([b"NaN"]), resolve(oid, -1), "error")
    width = bits // 8
    stored, canonical = found.buffers()[1].to_pybytes(), text.buffers()[1].to_pybytes()[:width]
    assert stored[:width] == stored[width : 2 * width] == canonical


@pytest.mark.parametrize("declaration", SAMPLES)
def test_damaged_values_raise_only_what_is_documented(samples, declaration):
    """Real values with bytes changed, cut off or added: an array of their type, or a fault with an index."""
    sent = samples.send(declaration, SAMPLES[declaration][:20])
    rng = random.Random(declaration)
    for read, values in ((readers.read_text, sent.texts), (readers.read_binary, sent.binaries)):
        for value in filter(None, values):
            for _ in range(8):
                damaged = bytearray(value[:300])
                for _ in range(rng.randint(1, 3)):
                    damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 2, 34, 44, 92, 123, 125, 127, 128, 255])
                damaged = damaged[: rng.choice([len(damaged), len(damaged), rng.randint(0, len(damaged))])]
                damaged += rng.randbytes(rng.choice([0, 0, 3]))
                index = 1
                try:
                    found = read(value_array_of([value, bytes(damaged), value]), sent.type, "null")
                except BadValueError as fault:
                    index = fault.index
                else:
                    found.validate(full=True)
                    assert found.type == sent.type.arrow
                    assert len(found) == 3
                assert index == 1
