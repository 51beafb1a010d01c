"""The grammar's names of types become those of pg_type."""

from __future__ import annotations

import pytest

from pgbridge.bridge.sqltext.refusal import Refused
from pgbridge.bridge.sqltext.syntax import TypeName
from pgbridge.bridge.sqltext.token_reader import type_name


def named(words: str, *modifiers: int) -> TypeName:
    return type_name(0, words.split(), modifiers, is_array=False)


def test_names():
    assert named("character varying", 3) == TypeName(0, "varchar", (3,))
    assert named("double precision").name == "float8"
    assert [named("float", bits).name for bits in (1, 24, 25, 53)] == ["float4", "float4", "float8", "float8"]
    assert named("char") == TypeName(0, "bpchar", (1,))
    assert named("bpchar") == TypeName(0, "bpchar")
    assert named("mood") == TypeName(0, "mood")


def test_float_has_at_most_53_bits():
    with pytest.raises(Refused, match="between 1 and 53"):
        named("float", 54)
