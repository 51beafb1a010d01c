"""The steps that all readers share: gathering, faults with their index, and putting parts together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from pgbridge.protocol.values import value_array
from pgbridge.protocol.values.value_array import MalformedValue, UnheldValue, ValueArray
from tests.protocol.made_values import value_array_of

VALUES = [b"", b"a", b"", b"bcd", b"\xff\0", b"x" * 100, b""]


@given(st.lists(st.binary(max_size=9), min_size=1), st.sampled_from([b"", b"-", b"gap"]))
def test_gathered_values_are_the_values(values, gap):
    gathered = value_array_of(values, gap).gather()
    gathered.validate(full=True)
    assert gathered.to_pylist() == values


def test_more_values_than_the_prepared_indices():
    """Beyond 65 536 values indices are made for the purpose."""
    count = (1 << 16) + 3
    values = ValueArray(np.arange(count + 64).astype(np.uint8), np.arange(count), np.ones(count, np.int64))
    assert values.gather().to_pylist() == [bytes([i % 256]) for i in range(count)]


def test_selected_values():
    values = value_array_of(VALUES)
    mask = np.array([True, False, False, True, False, False, True])
    assert values.select(mask).gather().to_pylist() == [b"", b"bcd", b""]
    assert values.select(np.array([1, 4])).gather().to_pylist() == [b"a", b"\xff\0"]
    assert values.select(np.array([3, 4])).without_prefix(1).gather().to_pylist() == [b"cd", b"\0"]


def test_numbers_are_big_endian_and_need_no_alignment():
    values = value_array_of([bytes(range(16)), bytes(range(16, 32))], gap=b"1")
    assert values.numbers("i2").tolist() == [0x0001, 0x1011]
    assert values.numbers("u4", 3).tolist() == [0x03040506, 0x13141516]
    assert values.numbers("i8", 8).tolist() == [0x08090A0B0C0D0E0F, 0x18191A1B1C1D1E1F]
    assert values.numbers("u1", 1).tolist() == [1, 17]
    assert values.blocks(3).tolist() == [[0, 1, 2], [16, 17, 18]]


def test_text_that_is_not_utf8_is_named():
    """Or NULL."""
    good = [b"a", "ünï".encode(), b""]
    assert value_array_of(good).text("error").to_pylist() == ["a", "ünï", ""]
    for index in range(4):
        bad = [*good[:index], b"a\xff", *good[index:], b"\xfe"]
        with pytest.raises(UnheldValue, match="holds UTF-8 only") as caught:
            value_array_of(bad).text("error")
        assert (caught.value.index, caught.value.text) == (index, r"\x61ff")
        nulled: list[str | None] = ["a", "ünï", ""]
        assert value_array_of(bad).text("null").to_pylist() == [*nulled[:index], None, *nulled[index:], None]
    assert value_array.strings(pa.array([None, b"a", b"\xff"], pa.binary()), "null").to_pylist() == [None, "a", None]


def test_lengths():
    value_array_of([b"ab", b"cd"]).expect_length(2, "it")
    with pytest.raises(MalformedValue, match="it of 1 bytes, expected 2") as caught:
        value_array_of([b"ab", b"c", b""]).expect_length(2, "it")
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"abc", "abc"),
        (b"", ""),
        ("ünï".encode(), "ünï"),
        (b"a\nb", r"\x610a62"),
        (b"\xff", r"\xff"),
        (b"x" * 61, "x" * 60 + "..."),
        (b"\xff" * 61, r"\x" + "ff" * 29 + "..."),
    ],
)
def test_shown_values_are_short_and_printable(raw, shown):
    assert value_array.show(raw) == shown


@given(st.integers(0, 40), st.integers(0, 40))
def test_attempt_names_the_first_failing_value(first, more):
    values = pa.array(["1"] * first + ["x"] + ["1"] * more + ["y"])
    with pytest.raises(MalformedValue, match=f"at {first}$") as caught:
        value_array.attempt(lambda some: some.cast(pa.int32()), values, lambda index: f"at {index}")
    assert caught.value.index == first


def test_refusing():
    none, some = np.array([False, False]), np.array([False, True])
    for policy in ("error", "null"):
        assert value_array.refuse(none, policy, str, "why") is None
    assert value_array.refuse(some, "null", str, "why") is some
    with pytest.raises(UnheldValue, match="why") as caught:
        value_array.refuse(some, "error", lambda index: f"value {index}", "why")
    assert (caught.value.index, caught.value.text) == (1, "value 1")


def test_merging():
    one, two = pa.array([10, 11], pa.int32()), pa.array([20], pa.int32())
    at = np.array
    assert value_array.merge([], 2, pa.int32()).to_pylist() == [None, None]
    assert value_array.merge([(at([0, 1]), one)], 2, pa.int32()) is one
    assert value_array.merge([(at([1, 3]), one)], 4, pa.int32()).to_pylist() == [None, 10, None, 11]
    assert value_array.merge([(at([0, 2]), one), (at([1]), two)], 3, pa.int32()).to_pylist() == [10, 20, 11]
    assert value_array.merge([(at([0, 2]), one), (at([3]), two)], 5, pa.int32()).to_pylist() == [10, None, 11, 20, None]


def test_faults_among_selected_values_get_their_own_index():
    values = value_array_of([b"1", b"2", b"3", b"4"])

    def read(some):
        assert len(some) == 2
        raise MalformedValue(1, "bad")

    with pytest.raises(MalformedValue) as caught:
        value_array.read_selected(values, np.array([False, True, False, True]), pa.int32(), read)
    assert caught.value.index == 3


def test_reading_of_none():
    values = value_array_of([b"1", b"2"])
    found = value_array.read_selected(values, np.array([False, False]), pa.int32(), lambda some: pytest.fail(str(some)))
    assert found.to_pylist() == [None, None]


def test_distinct_values_are_written_once():
    calls = []

    def output(raw):
        calls.append(raw)
        return raw.decode().upper()

    assert value_array.per_distinct(value_array_of([b"a", b"b", b"a", b"a"]), output, "it").to_pylist() == [
        "A",
        "B",
        "A",
        "A",
    ]
    assert calls == [b"a", b"b"]


def test_a_distinct_value_that_cannot_be_written_is_named():
    def output(raw):
        return str(int(raw))

    with pytest.raises(MalformedValue, match=r"it \\x78: invalid literal") as caught:
        value_array.per_distinct(value_array_of([b"1", b"2", b"1", b"x", b"x"]), output, "it")
    assert caught.value.index == 3
    with pytest.raises(MalformedValue, match="no text"):
        value_array.per_distinct(value_array_of([b"1"]), lambda _: (_ for _ in ()).throw(ValueError("no text")), "it")


def test_flat_arrays():
    strings = pa.array(["ab", "", "c", "def"])
    offsets, content = value_array.flat(strings.slice(1))
    assert (offsets.tolist(), content.tobytes()) == ([0, 0, 1, 4], b"cdef")
    offsets, content = value_array.flat(pa.array([], pa.string()))
    assert (offsets.tolist(), content.tobytes()) == ([0], b"")
    again = value_array.strings_of(*value_array.flat(strings), pa.string())
    assert again == strings
