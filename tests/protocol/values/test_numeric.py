"""Numerics in binary form: decimals and text of any precision and scale, and forms that are none."""

from __future__ import annotations

import struct
from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from pgbridge.protocol.values import numeric, output, readers
from pgbridge.protocol.values.types import ColumnType, resolve
from pgbridge.protocol.values.value_array import MalformedValue, TooLargeError, UnheldValue
from tests.protocol.made_rows import decimals, numeric_send, typmod_of
from tests.protocol.made_values import value_array_of

NUMERIC = resolve(1700, -1)
SPECIAL = {name: struct.pack(">hhHH", 0, 0, sign, 0) for sign, name in output.NUMERIC_SPECIAL.items()}


def decimal(precision: int, scale: int) -> ColumnType:
    return resolve(1700, typmod_of(precision, scale))


def number(*digits: int, weight: int = 0, sign: int = 0, dscale: int = 0) -> bytes:
    return struct.pack(">hhHH", len(digits), weight, sign, dscale) + struct.pack(f">{len(digits)}h", *digits)


@st.composite
def scales(draw):
    precision = draw(st.integers(1, 38))
    return precision, draw(st.integers(0, precision))


@given(st.data(), scales())
def test_decimals(data, precision_and_scale):
    """Every precision and scale, with as many digits after the point as the column has or with fewer."""
    precision, scale = precision_and_scale
    own = decimals(precision, scale)
    shorter = st.integers(0, scale).flatmap(
        lambda s: decimals(precision - scale + s, s) if precision - scale + s else own
    )
    values = data.draw(st.lists(own | shorter, min_size=1, max_size=8))
    found = readers.read_binary(value_array_of([numeric_send(v) for v in values]), decimal(precision, scale), "error")
    found.validate(full=True)
    assert found.to_pylist() == values


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)).flatmap(lambda ps: decimals(*ps)), min_size=1))
def test_texts(values):
    """The bulk writer, the one for single values and Python agree, to the last zero of the display scale."""
    raws = [numeric_send(value) for value in values]
    found = readers.read_binary(value_array_of(raws), NUMERIC, "error")
    found.validate(full=True)
    assert found.to_pylist() == [f"{value:f}" for value in values] == [output.numeric_text(raw) for raw in raws]


def test_longest():
    """The greatest weight and display scale there are."""
    raws = [number(9999, weight=32767), number(1, weight=-4096, dscale=16383), number(weight=0, dscale=16383)]
    found = readers.read_binary(value_array_of(raws), NUMERIC, "error").to_pylist()
    assert found == ["9999" + "0000" * 32767, "0." + "0" * 16383, "0." + "0" * 16383]
    assert found == [output.numeric_text(raw) for raw in raws]


def test_what_is_no_number():
    raws = [number(1), *SPECIAL.values(), number(2)]
    assert readers.read_binary(value_array_of(raws), NUMERIC, "error").to_pylist() == ["1", *SPECIAL, "2"]
    for type_ in (decimal(5, 0), decimal(20, 0)):
        assert readers.read_binary(value_array_of(raws), type_, "null").to_pylist() == [1, None, None, None, 2]
        for name, raw in SPECIAL.items():
            with pytest.raises(UnheldValue) as caught:
                readers.read_binary(value_array_of([number(1), raw]), type_, "error")
            assert (caught.value.index, caught.value.text) == (1, name)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(7),
        bytes(9),
        number(1)[:-1],
        number(1) + b"\0\0",
        struct.pack(">hhHH", -1, 0, 0, 0),
        number(1, sign=0x2000),
        number(1, sign=0x4001),
        number(1, dscale=0x4000),
        number(1, dscale=0xFFFF),
        number(10000),
        number(-1),
    ],
)
@pytest.mark.parametrize("type_", [NUMERIC, decimal(12, 2), decimal(30, 2)], ids=["text", "short", "long"])
def test_malformed(raw, type_):
    with pytest.raises(MalformedValue) as caught:
        readers.read_binary(value_array_of([number(1), raw, number(1)]), type_, "null")
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("precision", "scale", "raw"),
    [
        (4, 0, number(1, weight=1)),
        (3, 0, number(1000)),
        (3, 1, number(100, dscale=1)),
        (18, 0, number(100, weight=4)),
        (18, 0, number(9999, weight=4)),
        (18, 0, number(1, weight=5)),
        (18, 0, number(1, weight=32767)),
        (18, 0, number(*[1] * 7, weight=6)),
        (18, 18, number(1)),
        (2, 0, number(1, weight=-1, dscale=4)),
        (2, 2, number(1, weight=-2, dscale=8)),
        (2, 2, number(1, weight=-32768, dscale=8)),
        (4, 1, number(1, 1, dscale=4)),
        (4, 1, number(1, 100, dscale=2)),
        (38, 0, number(1000, weight=9)),
        (38, 0, number(100, weight=9)),
        (38, 10, number(*[9999] * 17, weight=16)),
        (20, 2, number(1, 1, dscale=4)),
        (20, 20, number(1)),
    ],
)
def test_numbers_that_the_precision_or_the_scale_excludes(precision, scale, raw):
    """The server would have rounded or refused them, so they are malformed, never cut off or wrapped around."""
    with pytest.raises(MalformedValue) as caught:
        readers.read_binary(value_array_of([number(0), raw]), decimal(precision, scale), "null")
    assert caught.value.index == 1


@pytest.mark.parametrize("precision", [18, 19])
def test_zeros_are_zero_whatever_their_weight(precision):
    found = readers.read_binary(
        value_array_of([number(weight=w) for w in (0, -1, 3)] + [number(0, 0, weight=1)]),
        decimal(precision, 2),
        "error",
    )
    assert found.to_pylist() == [Decimal("0.00")] * 4


def test_text_in_portions(monkeypatch):
    """Long texts are written a portion at a time; a fault in a later one keeps its index."""
    monkeypatch.setattr(numeric, "_TEXT_BYTES_AT_ONCE", 100)
    raws = [number(n, weight=n) for n in range(1, 20)]
    expected = [str(n * 10000**n) for n in range(1, 20)]
    assert readers.read_binary(value_array_of(raws), NUMERIC, "error").to_pylist() == expected
    with pytest.raises(MalformedValue) as caught:
        readers.read_binary(value_array_of([*raws, number(-1, weight=9), number(1)]), NUMERIC, "error")
    assert caught.value.index == 19


def test_too_much_text(monkeypatch):
    monkeypatch.setattr(numeric, "_MAX_TEXT_BYTES", 100)
    assert readers.read_binary(value_array_of([number(1, weight=20)]), NUMERIC, "error").to_pylist() == ["1" + "0" * 80]
    with pytest.raises(TooLargeError):
        readers.read_binary(value_array_of([number(1, weight=20)] * 2), NUMERIC, "error")
