"""Messages are plain values: they can be compared, kept in sets and shared between threads."""

from __future__ import annotations

import copy
import dataclasses
from typing import get_args

import pytest
from hypothesis import given

from pgbridge.protocol.codec import messages
from pgbridge.protocol.codec.messages import Message, ValueKind
from tests import strategies


def test_the_union_names_every_message():
    """A message class that is left out of `Message` would be invisible to type checks of matches."""
    defined = {item for item in vars(messages).values() if dataclasses.is_dataclass(item)}
    assert set(get_args(Message)) == defined - {messages.Value, messages.Column}


@given(strategies.messages())
def test_equal_by_value_and_hashable(message):
    twin = copy.deepcopy(message)
    assert twin == message
    assert {twin: 1}[message] == 1


@pytest.mark.parametrize("item", [*get_args(Message), messages.Value, messages.Column])
def test_frozen_and_slotted(item):
    assert item.__dataclass_params__.frozen
    assert "__slots__" in vars(item)


def test_value_kinds_are_the_bytes_of_the_wire():
    """`LOGICALREP_COLUMN_*` of logicalproto.h."""
    assert {kind.name: kind.value for kind in ValueKind} == {
        "NULL": b"n",
        "UNCHANGED_TOAST": b"u",
        "TEXT": b"t",
        "BINARY": b"b",
    }
