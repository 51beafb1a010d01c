"""Numbers for keys."""

import math
from decimal import Decimal

import pyarrow as pa
import pytest

from bridge.effects.key_codes import key_codes


@pytest.mark.parametrize(
    ("type_", "values", "codes"),
    [
        (pa.float64(), [0.0, -0.0, 1.5, math.nan, float("-nan"), None], [0, 0, 1, 2, 2, 3]),
        (pa.float32(), [-0.0, 0.0, math.nan, math.nan], [0, 0, 1, 1]),
        (pa.string(), ["", "a", "A", "a", "ä", None], [0, 1, 2, 1, 3, 4]),
        (pa.binary(), [b"", b"\0", b"\0\0", b"\0"], [0, 1, 2, 1]),
        (pa.decimal128(20, 2), [Decimal("1.10"), Decimal("1.1"), Decimal(0)], [0, 0, 1]),
        (pa.bool_(), [True, False, True], [0, 1, 0]),
        (pa.timestamp("us", "UTC"), [0, 1, 0], [0, 1, 0]),
        (pa.date32(), [0, 1, 0], [0, 1, 0]),
        (pa.list_(pa.float64()), [[0.0], [-0.0], [math.nan], [math.nan], [], None], [0, 0, 1, 1, 2, 3]),
    ],
)
def test_equal_keys_have_equal_codes(type_, values, codes):
    halves = pa.chunked_array([pa.array(values[:2], type_), pa.array(values[2:], type_)])
    for columns in ([halves], [halves, halves], [pa.chunked_array([pa.array([7] * len(values))]), halves]):
        found = key_codes(columns).tolist()
        first = {code: at for at, code in reversed(list(enumerate(found)))}
        assert [codes.index(code) for code in codes] == [first[code] for code in found]


def test_many_long_columns_do_not_overflow():
    numbers = pa.chunked_array([pa.array(range(70_000))])
    assert len(set(key_codes([numbers] * 9).tolist())) == 70_000
