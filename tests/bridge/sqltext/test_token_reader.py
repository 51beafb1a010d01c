"""Names and types are put together from tokens."""

from __future__ import annotations

import pytest

from bridge.sqltext.lexer import tokens
from bridge.sqltext.refusal import Refused
from bridge.sqltext.syntax import TypeName
from bridge.sqltext.token_reader import TokenReader


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("character varying(3)", ("varchar", (3,), False)),
        ("pg_catalog.int4[]", ("int4", (), True)),
        ("timestamp(3) with time zone", ("timestamptz", (3,), False)),
        ("timestamp without time zone", ("timestamp", (), False)),
        ("double precision[3]", ("float8", (), True)),
        ('"char"', ("char", (), False)),
        ("numeric(5, 2)", ("numeric", (5, 2), False)),
    ],
)
def test_types(text, expected):
    assert TokenReader(tokens(text)).type() == TypeName(0, *expected)


@pytest.mark.parametrize("text", ["public.mood", "mood", "int[][]", "select", "5", "timestamp with zone"])
def test_no_types(text):
    with pytest.raises(Refused):
        TokenReader(tokens(text)).type()


def test_dotted_names():
    assert TokenReader(tokens('Public."T".a')).dotted() == ("public", "T", "a")
    with pytest.raises(Refused, match="syntax error at end of input"):
        TokenReader(tokens("a.")).dotted()
