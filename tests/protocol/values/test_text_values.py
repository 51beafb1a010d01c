"""Text that no server sends is malformed; test_readers has the text that servers send."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgbridge.protocol.values import readers
from pgbridge.protocol.values.text_values import NOT_A_VECTOR, NOT_EWKB
from pgbridge.protocol.values.types import resolve
from pgbridge.protocol.values.value_array import MalformedValue, UnheldValue
from tests.oracle.extension_types import CATALOG, GEOMETRY, HALFVEC, VECTOR
from tests.protocol.made_rows import typmod_of
from tests.protocol.made_values import value_array_of

DECIMAL = (1700, typmod_of(5, 2))
GOOD = {
    (16, -1): b"t",
    (21, -1): b"1",
    (23, -1): b"1",
    (20, -1): b"1",
    (26, -1): b"1",
    (700, -1): b"1.5",
    (701, -1): b"1.5",
    DECIMAL: b"1.50",
    (1700, typmod_of(38, 0)): b"-" + b"9" * 38,
    (1700, typmod_of(38, 38)): b"-0." + b"9" * 38,
    (17, -1): b"\\x00",
    (1082, -1): b"2024-01-01",
    (1114, -1): b"2024-01-01 00:00:00",
    (1184, -1): b"2024-01-01 00:00:00+00",
}
BAD = [
    *((16, -1, bad) for bad in (b"", b"true", b"T", b"0", b"tt")),
    *((21, -1, bad) for bad in (b"", b"32768", b"-32769", b"1.0", b"1e1", b"0x1", b"+1", b" 1", b"1 ", b"-", b"a")),
    *((23, -1, bad) for bad in (b"", b"2147483648", b"-2147483649", b"\xff", b"1/2", b"99999999999999999999")),
    *((20, -1, bad) for bad in (b"", b"9223372036854775808", b"-9223372036854775809", b"1_0", b"--1")),
    *((26, -1, bad) for bad in (b"", b"-1", b"4294967296")),
    *((700, -1, bad) for bad in (b"", b"x", b"1,5", b"1.5x", b"\xff", b" 1")),
    *((701, -1, bad) for bad in (b"", b"x", b"1,5", b"1.5x", b"0x1p3", b"1 ")),
    *((*DECIMAL, bad) for bad in (b"", b"-", b".", b"1e1", b"1.234", b"1000.00", b"+1", b"nan", b"-NaN", b"NaN ")),
    *((*DECIMAL, b"9" * digits) for digits in (6, 38, 39, 40, 41, 60)),
    *((1700, typmod_of(38, 0), bad) for bad in (b"9" * 39, b"-" + b"9" * 39, b"9" * 77, b"9" * 38 + b".1")),
    *((1700, typmod_of(38, 38), bad) for bad in (b"1." + b"0" * 38, b"0." + b"9" * 39)),
    *((*DECIMAL, bad) for bad in (b"Infinite", b"-Infinito", b"1.2.3", b"\xff", b"IIIIIIII")),
    *((17, -1, bad) for bad in (b"", b"abc", b"\\", b"\\x0", b"\\x0G", b"\\xAB", b"\\x g", b"\\X00", b"\\\\00")),
    *((1082, -1, bad) for bad in (b"", b"2024-13-01", b"2024-02-30", b"01/02/2024", b"2024-1-1", b"infinity ")),
    *((1082, -1, bad) for bad in (b"Infinity", b"2024-01-01 AD", b"12024-1-1", b"2024/01/01", b"+infinity")),
    *((1114, -1, bad) for bad in (b"", b"2024-01-01", b"2024-01-01 00:00", b"2024-01-01 24:01:00", b"today")),
    *((1114, -1, bad) for bad in (b"2024-01-01 00:00:00+00", b"2024-01-01 00:00:00.1234567", b"2024-02-30 00:00:00")),
    *((1114, -1, bad) for bad in (b"2024-01-01 00:00:00C", b"10000-01-01 00:00", b"Mon Jan 01 00:00:00 2024")),
    *((1184, -1, bad) for bad in (b"", b"2024-01-01 00:00:00", b"2024-01-01 00:00:00 UTC", b"0044-01-01 00:00:00 BC")),
]  # fmt: skip


@pytest.mark.parametrize(("oid", "typmod", "bad"), BAD)
def test_malformed_text_is_named(oid, typmod, bad):
    """By its index, between sound values, under both policies."""
    type_ = resolve(oid, typmod)
    good = GOOD.get((oid, typmod), b'"a"')
    assert readers.read_text(value_array_of([good]), type_, "error").null_count == 0
    for policy in ("error", "null"):
        for values in ([bad], [good, bad, good], [good, good, bad]):
            with pytest.raises(MalformedValue) as caught:
                readers.read_text(value_array_of(values), type_, policy)
            assert caught.value.index == values.index(bad)


def read(oid: int, *values: bytes) -> list[Any]:
    found: list[Any] = readers.read_text(value_array_of(list(values)), resolve(oid, -1), "error").to_pylist()
    return found


def test_zones_other_than_utc():
    """A session in another zone is read right as well: the text says which."""
    noon = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    assert read(1184, b"2024-01-01 12:00:00+00", b"2024-01-01 14:00:00+02", b"2024-01-01 06:30:00-05:30") == [noon] * 3


@pytest.mark.parametrize("text", [b"0001-01-01 00:00:00+01", b"9999-12-31 23:59:59-01"])
def test_a_zone_can_move_a_timestamp_out_of_the_years(text):
    type_ = resolve(1184, -1)
    with pytest.raises(UnheldValue) as caught:
        readers.read_text(value_array_of([b"2024-01-01 00:00:00+00", text]), type_, "error")
    assert (caught.value.index, caught.value.text) == (1, text.decode())
    assert readers.read_text(value_array_of([text]), type_, "null").to_pylist() == [None]


REALS = {
    b"[1,2.5,-3e-05]": [1.0, 2.5, np.float32(-3e-05)],
    b"[0]": [0.0],
    b"[-0,1e+10,3.4028235e+38,1e-45]": [-0.0, 1e10, np.float32(3.4028235e38), np.float32(1e-45)],
}
SHAPES = {b"0101000020E6100000": bytes.fromhex("0101000020e6100000"), b"ff": b"\xff", b"00": b"\x00", b"aB": b"\xab"}
NO_VECTORS = (
    b"", b"[]", b"[", b"]", b"1,2", b"{1,2}", b"[1,]", b"[,1]", b"[1 ,2]", b"[1, 2]", b"[[1]]", b"[1]]", b"[1][2]",
    b"[NaN]", b"[Infinity]", b"[NULL]", b"[1.]", b"[.5]", b"[+1]", b"[1e5]", b"[0x1]", b"[1\n]", b"[1]\n", b"\n[1]",
    b"\xff",
)  # fmt: skip
NO_SHAPES = (b"", b"0", b"\\x00", b"0g", b"00\n", b"POINT(1 2)", b"SRID=4326;0101", "é0".encode(), b"\xff\xff")


@pytest.mark.parametrize(
    ("oid", "arrow", "good", "bad", "reason"),
    [
        (VECTOR, pa.list_(pa.float32()), REALS, NO_VECTORS, NOT_A_VECTOR),
        (HALFVEC, pa.list_(pa.float32()), REALS, NO_VECTORS, NOT_A_VECTOR),
        (GEOMETRY, pa.binary(), SHAPES, NO_SHAPES, NOT_EWKB),
    ],
)
def test_texts_of_extensions(oid, arrow, good, bad, reason):
    """They stay texts in a string; parsed, what is not in the extension's form cannot be held, and nothing is lost."""
    type_ = resolve(oid, -1, CATALOG)
    texts = [*good, *(text for text in bad if text.isascii())]
    assert readers.read_text(value_array_of(texts), type_, "error").to_pylist() == [text.decode() for text in texts]
    parsed = type_.parsed_for(arrow)
    held = readers.read_binary(value_array_of(list(good)), parsed, "error")
    held.validate(full=True)
    assert (held.type, held.to_pylist()) == (arrow, list(good.values()))
    for text in bad:
        values = value_array_of([*good, text, next(iter(good))])
        with pytest.raises(UnheldValue) as caught:
            readers.read_text(values, parsed, "error")
        assert (caught.value.index, caught.value.reason in {reason, "the column holds UTF-8 only"}) == (len(good), True)
        array = readers.read_text(values, parsed, "null")
        array.validate(full=True)
        assert array.to_pylist() == [*good.values(), None, next(iter(good.values()))]
    assert readers.read_text(value_array_of([]), parsed, "error").type == arrow


def test_not_a_number_keeps_its_place():
    one, nan, two = read(701, b"1", b"NaN", b"2")
    assert (one, two) == (1.0, 2.0)
    assert math.isnan(nan)
