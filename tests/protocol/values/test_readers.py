"""The server is the oracle: values in text and in binary form are read as its text output says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from protocol.values import readers
from protocol.values.types import Kind
from protocol.values.value_array import UnheldValue
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
