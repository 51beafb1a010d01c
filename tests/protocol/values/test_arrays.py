"""Arrays in both forms: elements of any text, the ways through the bulk readers, and forms that are none."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pgbridge.protocol.values import arrays, readers
from pgbridge.protocol.values.types import ColumnType, resolve
from pgbridge.protocol.values.value_array import MalformedValue, UnheldValue
from tests.protocol import independent
from tests.protocol.made_rows import array_send
from tests.protocol.made_values import value_array_of
from tests.protocol.sampled import array_of

INT4S, TEXTS, DATES, BOXES = (resolve(oid, -1) for oid in (1007, 1009, 1182, 1020))

ELEMENTS = st.none() | st.text(st.sampled_from('ab ,{}"\\NULü'), max_size=5) | st.just("NULL")


def read_text(type_: ColumnType, *values: str, policy: Any = "error") -> list[Any]:
    found: list[Any] = readers.read_text(value_array_of([v.encode() for v in values]), type_, policy).to_pylist()
    return found


def read_binary(type_: ColumnType, *values: bytes, policy: Any = "error") -> list[Any]:
    found: list[Any] = readers.read_binary(value_array_of(list(values)), type_, policy).to_pylist()
    return found


@given(st.lists(st.lists(ELEMENTS, max_size=6), min_size=1, max_size=5))
def test_any_text_in_elements(lists):
    """Both forms, and the slow state machine, read the arrays that were written."""
    texts = [array_of(elements) for elements in lists]
    assert read_text(TEXTS, *texts) == lists
    assert [independent.split(text, ",") for text in texts] == lists
    assert read_binary(TEXTS, *(array_send([e if e is None else e.encode() for e in x], 25) for x in lists)) == lists


@given(st.lists(st.lists(st.none() | st.binary(max_size=3), max_size=40), min_size=1, max_size=40))
def test_elements_of_any_widths(lists):
    """Enough arrays to be stepped through together, and the rest of the longest one by one."""
    type_ = resolve(1001, -1)
    assert read_binary(type_, *(array_send(elements, 17) for elements in lists)) == lists


def test_widths_that_only_add_up_as_if_they_were_equal():
    """The total length of 2 + 1 + 3 bytes is that of 2 + 2 + 2."""
    type_ = resolve(1001, -1)
    uneven = [b"ab", b"c", b"def"]
    assert read_binary(type_, array_send(uneven, 17), array_send([b"ab", b"cd", b"ef"], 17))[0] == uneven
    assert read_binary(type_, array_send([None, b"abcd"], 17)) == [[None, b"abcd"]]


def test_long_arrays_among_short_ones():
    numbers = np.arange(3000)
    raws = [
        array_send([struct.pack(">i", n) if n % 7 else None for n in numbers[:count].tolist()], 23)
        for count in (3, 0, 3000, 1)
    ]
    expected = [[n if n % 7 else None for n in numbers[:count].tolist()] for count in (3, 0, 3000, 1)]
    assert read_binary(INT4S, *raws) == expected


FOUR, SEVEN = struct.pack(">i", 4), struct.pack(">i", 7)


@pytest.mark.parametrize(
    ("lower", "elements", "text"),
    [
        (0, [FOUR, SEVEN], "[0:1]={4,7}"),
        (-5, [SEVEN], "[-5:-5]={7}"),
        (2, [None], "[2:2]={NULL}"),
        (2147483640, [FOUR], "[2147483640:2147483640]={4}"),
    ],
)
def test_other_lower_bounds(lower, elements, text):
    """In both forms, at any position, and beside arrays of several dimensions: the error names the first bad one."""
    ways: list[tuple[Any, Any, Any, Any]] = [
        (read_text, "{4}", text, "{{1}}"),
        (read_binary, array_send([FOUR], 23), array_send(elements, 23, lower), NESTED_BINARY[0]),
    ]
    for read, one, shifted, nested in ways:
        for others in (0, arrays._FEW_ARRAYS):
            values = [one] * others + [shifted, one, nested]
            assert read(INT4S, *values, policy="null") == [[4]] * others + [None, [4], None]
            with pytest.raises(UnheldValue, match="lower bound is 1") as caught:
                read(INT4S, *values)
            assert (caught.value.index, caught.value.text) == (others, text)
            with pytest.raises(UnheldValue, match="one dimension") as caught:
                read(INT4S, nested, *values)
            assert caught.value.index == 0


def test_lower_bounds_that_are_held():
    """That of 1 may be written out, and an empty array has none, whatever is written there."""
    assert read_text(INT4S, "[1:2]={1,2}", "[5:4]={}") == [[1, 2], []]
    assert read_binary(INT4S, struct.pack(">iiIii", 1, 0, 23, 0, 5)) == [[]]


NESTED_TEXT = ["{{1,2},{3,4}}", "[1:1][2:2]={{1}}", "{{{1}}}"]
NESTED_BINARY = [struct.pack(">iiIiiii", n, 0, 23, 1, 1, 1, 1) + struct.pack(">ii", 4, 7) for n in (2, 6)]
NESTED_BINARY_SHOWN = [(NESTED_BINARY[0], "{{7}}"), (NESTED_BINARY[1], f"\\x{NESTED_BINARY[1].hex()}")]


@pytest.mark.parametrize("nested", NESTED_TEXT)
def test_more_dimensions_in_text(nested):
    assert read_text(INT4S, "{1}", nested, "{}", policy="null") == [[1], None, []]
    with pytest.raises(UnheldValue, match="one dimension") as caught:
        read_text(INT4S, "{1}", nested)
    assert caught.value.index == 1
    assert caught.value.text == nested


@pytest.mark.parametrize(("nested", "text"), NESTED_BINARY_SHOWN)
def test_more_dimensions_in_binary(nested, text):
    """The second has six dimensions and a body of fewer, which nobody has to read."""
    one = array_send([struct.pack(">i", 1)], 23)
    assert read_binary(INT4S, one, nested, array_send([], 23), policy="null") == [[1], None, []]
    with pytest.raises(UnheldValue, match="one dimension") as caught:
        read_binary(INT4S, one, nested)
    assert caught.value.index == 1
    assert caught.value.text == text


def nested_send(sizes: list[int], elements: list[bytes | None], element_oid: int, lower: int = 1) -> bytes:
    head = struct.pack(">iiI", len(sizes), None in elements, element_oid)
    bounds = b"".join(struct.pack(">ii", size, lower) for size in sizes)
    return head + bounds + array_send([*elements, None], element_oid)[20:-4]


@pytest.mark.parametrize(
    ("sizes", "elements", "text"),
    [
        ([2, 2], [b"a", b"b c", None, b""], "{{a,b c},{NULL,}}"),
        ([1, 2, 1], [b"a", b"b"], "{{{a},{b}}}"),
        ([3, 1], [b"a", b"b", b"c"], "{{a},{b},{c}}"),
        ([1, 1, 1, 1, 1, 1], [b"a"], "{{{{{{a}}}}}}"),
        ([2, 7], [b"a"] * 14, "{{a,a,a,a,a,a,a},{a,a,a,..."),
    ],
)
def test_more_dimensions_are_shown_as_text(sizes, elements, text):
    with pytest.raises(UnheldValue) as caught:
        read_binary(TEXTS, array_send([b"x"], 25), nested_send(sizes, elements, 25))
    assert (caught.value.index, caught.value.text) == (1, text)


def test_lower_bounds_of_more_dimensions_are_shown():
    with pytest.raises(UnheldValue, match="one dimension") as caught:
        read_binary(TEXTS, nested_send([2, 1], [b"a", b"b"], 25, -1))
    assert caught.value.text == "[-1:0][-1:-1]={{a},{b}}"


def test_elements_that_the_column_cannot_hold():
    """The element is named by its place in its array, and is what becomes NULL."""
    texts = ["{2024-01-01}", "{}", "{2024-01-01,NULL,infinity}"]
    day, end = struct.pack(">i", 8766), struct.pack(">i", 2**31 - 1)
    raws = [array_send(elements, 1082) for elements in ([day], [], [day, None, end])]
    for read, values in ((read_text, texts), (read_binary, raws)):
        with pytest.raises(UnheldValue, match=r"^element 3: ") as caught:
            read(DATES, *values)
        assert (caught.value.index, caught.value.text) == (2, "infinity")
        assert read(DATES, *values, policy="null")[2][1:] == [None, None]


def test_delimiter_of_the_element_type():
    assert read_text(BOXES, "{(1,1),(0,0);(2,2),(1,1)}") == [["(1,1),(0,0)", "(2,2),(1,1)"]]


def test_arrays_without_a_binary_reader_come_as_text():
    """A binary copy selects their text."""
    assert read_binary(BOXES, b"{(1,1),(0,0);NULL}") == [["(1,1),(0,0)", None]]
    with pytest.raises(MalformedValue, match="is not an array"):
        read_binary(BOXES, array_send([b"(1,1),(0,0)"], 603))


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "}", "1", "{1", "1}", "{1,}", "{,1}", "{,}", "{1,,2}", "{1}2}", "{{1}", "{1{}", "[1:1]{1}",
        "[1:1]=1", "[a:b]={1}", "[", "[1:1]=", "{x}", '{"1}', '{1"}', '{"1"2}', '{2"1"}', '{"1""2"}', '{"1"\\"}',
        "{\\1}", '{"1\\}', "{NULL1}", '{""}', "{1 }", "{null}", "{[1:1]={1}}", "[1:1]=[1:1]={1}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", [[], ["{}"], ["{1,2}", "{}"], ["{}", "{}", '{"3"}', "{}"]])
def test_malformed_text(text, before):
    with pytest.raises(MalformedValue) as caught:
        read_text(INT4S, *before, text, "{4}", policy="null")
    assert caught.value.index == len(before)


@pytest.mark.parametrize(
    "text", ["{a}b}", "{a{b}", "{}b}", '{"a}', '{a"}', '{"a"b}', "{a\\b}", '{"a","b}', "{a,}", '{"a\\"}']
)
@pytest.mark.parametrize("before", [[], ["{a,b}", "{}", '{"{"}']])
def test_malformed_text_of_text(text, before):
    """If the element type accepts any bytes, the array is refused, and no later one is named."""
    with pytest.raises(MalformedValue) as caught:
        read_text(TEXTS, *before, text, '{c,"{d}"}', "{e}")
    assert caught.value.index == len(before)


ONE, TWO = (array_send([struct.pack(">i", 1)] * count, 23) for count in (1, 2))


@pytest.mark.parametrize(
    "raw",
    [
        b"", ONE[:11], ONE[:12], ONE[:19], ONE[:-1], ONE + b"\0",
        struct.pack(">iiI", 0, 0, 23) + b"\0",
        struct.pack(">iiI", -1, 0, 23), struct.pack(">iiI", 7, 0, 23),
        ONE[:8] + struct.pack(">I", 25) + ONE[12:],
        ONE[:12] + struct.pack(">i", -1) + ONE[16:],
        ONE[:12] + struct.pack(">i", 0) + ONE[16:],
        ONE[:12] + struct.pack(">i", 2) + ONE[16:],
        ONE[:12] + struct.pack(">i", 2**31 - 1) + ONE[16:],
        ONE[:20] + struct.pack(">i", -2) + ONE[24:],
        ONE[:20] + struct.pack(">i", -2),
        TWO[:20] + struct.pack(">i", 2**31 - 1) + TWO[24:],
        ONE[:20] + struct.pack(">i", 3) + ONE[24:],
        ONE[:20] + struct.pack(">i", 5) + ONE[24:],
        ONE[:20] + struct.pack(">i", 2**31 - 1) + ONE[24:],
        ONE[:20] + struct.pack(">i", -1) + b"\0",
    ],
)  # fmt: skip
@pytest.mark.parametrize("others", [0, arrays._FEW_ARRAYS])
def test_malformed_binary(raw, others):
    """In the steps that arrays take together, and alone."""
    before = [array_send([], 23), *[ONE] * others]
    with pytest.raises(MalformedValue) as caught:
        read_binary(INT4S, *before, raw, array_send([None, *[struct.pack(">i", 2)] * 3], 23), policy="null")
    assert caught.value.index == len(before)
