"""A text goes to a place of Delta's only if it is read there as it was."""

import re
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.bulk.columns import RowMessages
from protocol.codec.messages import Column, Insert, Relation, Value, ValueKind
from protocol.codec.pgoutput import encode
from protocol.errors import UnrepresentableValue
from protocol.values.places import AS_NULL, TOO_DEEP, TOO_LONG, TOO_MANY_DIGITS, held, json_fault
from protocol.values.types import Place, resolve
from protocol.values.value_array import UnheldValue

TEXTS = ["", " ", "a", "__HIVE_DEFAULT_PARTITION__", "__HIVE_DEFAULT_PARTITION__ "]


def decoded(texts, place, policy, key=()):
    type_ = replace(resolve(25, -1), place=place)
    relation = Relation(1, "public", "t", "d", (Column("region", 25, -1, is_key=False),))
    messages = [encode(Insert(1, (Value(ValueKind.TEXT, text.encode()),))) for text in texts]
    return RowMessages(messages).decode(relation, [type_], unrepresentable=policy, key=key)


def test_texts_that_a_partition_would_read_as_null():
    assert held(pa.array(TEXTS), Place.COLUMN, "error").to_pylist() == TEXTS
    assert held(pa.array(TEXTS), Place.PARTITION, "null").to_pylist() == [None, " ", "a", None, TEXTS[4]]
    assert held(pa.array([1, 2]), Place.PARTITION, "error").to_pylist() == [1, 2]
    assert decoded(TEXTS, Place.PARTITION, "null")["new_0"].to_pylist() == [None, " ", "a", None, TEXTS[4]]
    shown = decoded(TEXTS, Place.PARTITION, "show")
    assert shown["unheld_0"].to_pylist() == ["", None, None, TEXTS[3], None]


@pytest.mark.parametrize(("policy", "key"), [("error", ()), ("null", (0,))])
def test_such_a_text_is_refused_with_its_reason(policy, key):
    """In a key always: as NULL it would find no row."""
    with pytest.raises(UnrepresentableValue, match=f"column \"region\": value '' cannot be represented: {AS_NULL}"):
        decoded(TEXTS[1:3] + TEXTS[:1], Place.PARTITION, policy, key)


LONG = "1234567890123456789012345678901234567890"
DOCUMENTS = {
    "12345678901234567890123456789012345678": None,
    "123456789012345678901234567890123456789": TOO_MANY_DIGITS,
    '{"a": [-0.12345678901234567890123456789012345678]}': None,
    '{"a": [-0.123456789012345678901234567890123456789]}': TOO_MANY_DIGITS,
    "1234567890123456789012345678901234567.89": TOO_MANY_DIGITS,
    f"1{'0' * 400}": TOO_MANY_DIGITS,
    f"0.{'0' * 40}": None,
    f"5.{'0' * 40}": None,
    f"[5.{'0' * 999}]": None,
    f"[5.{'0' * 1000}]": TOO_MANY_DIGITS,  # Spark's reader takes 1000, and one more where the text ends with it
    f"0.{'0' * 40}1": TOO_MANY_DIGITS,
    f'["{LONG}", "\\\\", "\\"", {LONG}]': TOO_MANY_DIGITS,
    f'{{"{LONG}\\\\\\"": "[{LONG}, 0.{LONG}]"}}': None,
    "[" * 1000 + "]" * 1000: None,
    "[" * 1001 + "]" * 1001: TOO_DEEP,
    f"[{','.join(['[]'] * 2000)}]": None,
    f'{{"{"x" * 50_000}": 1}}': None,
    f'{{"{"x" * 50_001}": 1}}': TOO_LONG,
    f'{{"{chr(0x1F600) * 25_000}": 1}}': None,
    f'{{"{chr(0x1F600) * 25_001}": 1}}': TOO_LONG,
    '{"' + "\\u0001" * 9000 + '": 1}': None,
    f'["{"x" * 60_000}"]': None,
    f'["{"x" * 20_000_001}"]': TOO_LONG,
}  # fmt: skip


@pytest.mark.parametrize("text", DOCUMENTS, ids=lambda text: text[:40])
def test_documents_that_variant_does_not_hold(text):
    fault = DOCUMENTS[text]
    assert json_fault(text) == fault
    values = pa.array(["{}", None, text])
    expected = None if fault else text
    assert held(values, Place.VARIANT, "null").to_pylist() == ["{}", None, expected]
    if fault:
        with pytest.raises(UnheldValue, match=re.escape(fault)) as caught:
            held(values, Place.VARIANT, "error")
        assert (caught.value.index, caught.value.text) == (2, text)


@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=None), min_size=1, max_size=5))
def test_a_number_is_held_if_a_decimal_or_a_double_is_its_value(numbers):
    """Against the rule of Spark's `parse_json`, in the words of Python's decimals."""
    texts = [f"{number:f}" for number in numbers if abs(number.adjusted()) < 60]

    def is_exact(text):
        _, digits, exponent = Decimal(text).as_tuple()
        is_decimal = -int(exponent) <= 38 and len(digits) <= 38
        return is_decimal or Decimal(float(text)) == Decimal(text)

    documents = pa.array([f'{{"n": {text}}}' for text in texts], pa.string())
    found = held(documents, Place.VARIANT, "null")
    assert [value is not None for value in found.to_pylist()] == [is_exact(text) for text in texts]
