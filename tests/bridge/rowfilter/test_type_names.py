"""Types by all their names."""

from __future__ import annotations

import pytest

from bridge.rowfilter.type_names import shown, type_name
from bridge.sqltext.refusal import Refused
from bridge.sqltext.syntax import TypeName


def named(words: str, *modifiers: int, quoted: bool = False) -> TypeName:
    return type_name(0, words.split(), modifiers, is_array=False, quoted=quoted)


def test_names():
    assert named("character varying", 3) == TypeName(0, "varchar", (3,))
    assert named("double precision").name == "float8"
    assert [named("float", bits).name for bits in (1, 24, 25, 53)] == ["float4", "float4", "float8", "float8"]
    assert named("char") == TypeName(0, "bpchar", (1,))
    assert named("bpchar") == TypeName(0, "bpchar")
    assert named("char", quoted=True).name == "char"  # another type altogether


def test_foreign_names():
    with pytest.raises(Refused, match="User-defined types are not allowed"):
        named("mood")
    with pytest.raises(Refused, match="between 1 and 53"):
        named("float", 54)


def test_shown_as_format_type_does(postgresql):
    for name in ("int4", "_int4", "timestamptz", "bpchar", "_varchar", "text", "time"):
        assert postgresql.execute("SELECT format_type(%s::regtype, NULL)", (name,)).fetchone() == (shown(name),)
