"""The server is the oracle: values in text and in binary form are read as its text output says.

A text goes to a place of Delta's only if it is read there as it was.
"""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from pgbridge.protocol.bulk.columns import RowMessages
from pgbridge.protocol.codec.messages import Column, Insert, Relation, Value, ValueKind
from pgbridge.protocol.codec.pgoutput import encode
from pgbridge.protocol.errors import UnrepresentableValue
from pgbridge.protocol.values import readers
from pgbridge.protocol.values.readers import AS_NULL, TOO_DEEP, TOO_LONG, TOO_MANY_DIGITS, held, json_fault
from pgbridge.protocol.values.types import Kind, Place, resolve
from pgbridge.protocol.values.value_array import UnheldValue
from tests.protocol import independent
from tests.protocol.made_values import value_array_of
from tests.protocol.sampled import EXTENSION_SAMPLES, SAMPLES

if TYPE_CHECKING:
    from tests.protocol.conftest import Sent

FORMS = {"text": readers.read_text, "binary": readers.read_binary}


def expected_of(sent: Sent) -> list[Any]:
    return [independent.read(None if text is None else text.decode(), sent.type) for text in sent.texts]


def check(sent: Sent) -> None:
    """Both forms give the same array as the reference, value by value, and refuse what it cannot hold."""
    expected = [value for value in expected_of(sent) if value is not None]
    texts = [value for value in sent.texts if value is not None]
    for form, values in (("text", sent.texts), ("binary", sent.binaries)):
        present = [value for value in values if value is not None]
        if form == "binary" and not sent.type.binary:
            continue
        found = FORMS[form](value_array_of(present), sent.type, "null")
        assert found.type == sent.type.arrow
        found.validate(full=True)
        assert independent.comparable(found.to_pylist()) == independent.comparable(map(independent.nulled, expected))
        for index, (value, raw) in enumerate(zip(expected, present, strict=True)):
            if independent.has_unrepresentable(value):
                with pytest.raises(UnheldValue) as caught:
                    FORMS[form](value_array_of([raw]), sent.type, "error")
                assert caught.value.index == 0
                if sent.type.kind is not Kind.ARRAY:
                    assert caught.value.text == texts[index].decode()
        fine = [raw for value, raw in zip(expected, present, strict=True) if not independent.has_unrepresentable(value)]
        strict = FORMS[form](value_array_of(fine), sent.type, "error")
        assert strict.null_count == 0
        assert len(strict) == len(fine)


@pytest.mark.parametrize("declaration", SAMPLES)
def test_values_are_read_as_the_server_writes_them(samples, declaration):
    check(samples.send(declaration, SAMPLES[declaration]))


@pytest.mark.parametrize("declaration", EXTENSION_SAMPLES)
def test_values_of_extensions_are_read_as_the_server_writes_them(samples, declaration):
    extension, literals = EXTENSION_SAMPLES[declaration]
    known = samples.connection.execute("SELECT FROM pg_available_extensions WHERE name = %s", (extension,)).fetchone()
    if known is None:
        pytest.skip(f"the server has no extension {extension}")
    samples.connection.execute(f"CREATE EXTENSION IF NOT EXISTS {extension}")
    check(samples.send(declaration, literals))


def test_xml_is_read_as_the_server_writes_it(samples):
    """Its binary form has an XML declaration with the client's encoding, but not where that is UTF8."""
    try:
        with samples.connection.transaction():
            samples.connection.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("the server was built without libxml")
    literals = [
        "<a/>",
        "",
        "text",
        '<?xml version="1.0" encoding="UTF-8"?><a>ü</a>',
        '<?xml version="1.0" standalone="yes"?>\n<a/>',
        '<?xml version="1.1"?><a/>',
        '<?xml version="1.0"?>\n<a/>',
    ]
    check(samples.send("xml", literals))


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
