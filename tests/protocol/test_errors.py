"""Errors about bytes are one family, and their texts name the place."""

from __future__ import annotations

import pytest

from pgbridge.protocol import errors
from pgbridge.protocol.errors import (
    MalformedMessage,
    ProtocolError,
    UnexpectedMessage,
    UnrepresentableValue,
    UnsupportedMessage,
)


def test_one_family():
    """And one of its own: an "except ValueError" somewhere must not swallow it."""
    classes = {item for item in vars(errors).values() if isinstance(item, type)}
    assert classes >= {MalformedMessage, UnexpectedMessage, UnsupportedMessage, UnrepresentableValue}
    assert all(issubclass(item, ProtocolError) for item in classes)
    assert ProtocolError.__bases__ == (Exception,)


def test_malformed_says_where_and_why():
    error = MalformedMessage("INSERT", 6, "expected 4 bytes, 3 remain")
    assert str(error) == "malformed INSERT message at offset 6: expected 4 bytes, 3 remain"
    assert (error.tag, error.offset, error.reason) == ("INSERT", 6, "expected 4 bytes, 3 remain")


@pytest.mark.parametrize(
    ("detail", "text"),
    [
        ("", "unexpected COMMIT message while idle"),
        ("no BEGIN came", "unexpected COMMIT message while idle: no BEGIN came"),
    ],
)
def test_unexpected_says_in_which_state(detail, text):
    error = UnexpectedMessage("COMMIT", "idle", detail)
    assert str(error) == text
    assert (error.tag, error.state) == ("COMMIT", "idle")


def test_unrepresentable_says_which_value():
    error = UnrepresentableValue("paid", "infinity", "a date has no infinity in Spark", row=3)
    text = "column \"paid\": value 'infinity' cannot be represented: a date has no infinity in Spark"
    assert str(error) == text
    assert (error.column, error.value, error.row) == ("paid", "infinity", 3)
