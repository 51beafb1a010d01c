"""Names and types are read from tokens."""

from __future__ import annotations

import psycopg
import pytest

from pgbridge.bridge.sqltext.lexer import tokens
from pgbridge.bridge.sqltext.refusal import Refused
from pgbridge.bridge.sqltext.syntax import TypeName
from pgbridge.bridge.sqltext.token_reader import TokenReader


def type_of(text: str) -> TypeName:
    reader = TokenReader(tokens(text))
    found = reader.type()
    reader.expect_end()
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("character varying(3)", ("varchar", (3,), False)),
        ("pg_catalog.int4[]", ("int4", (), True)),
        ("timestamp(3) with time zone", ("timestamptz", (3,), False)),
        ("timestamp without time zone", ("timestamp", (), False)),
        ("time with time zone", ("timetz", (), False)),
        ("double precision[3]", ("float8", (), True)),
        ("char", ("bpchar", (1,), False)),
        ('"char"', ("char", (), False)),
        ("pg_catalog.char", ("char", (), False)),
        ("bit varying(3)", ("varbit", (3,), False)),
        ("numeric(5, 2)", ("numeric", (5, 2), False)),
    ],
)
def test_types(postgresql, text, expected):
    assert type_of(text) == TypeName(0, *expected)
    (found,) = postgresql.execute(f"SELECT pg_typeof(NULL::{text})::oid::regtype::oid".encode()).fetchone()
    name = ("_" if expected[2] else "") + expected[0]
    assert postgresql.execute("SELECT typname FROM pg_type WHERE oid = %s", (found,)).fetchone() == (name,)


@pytest.mark.parametrize(
    "text", ["public.mood", "int[][]", "select", "between", "left.x", "5", "timestamp with zone", "numeric(1_0)"]
)
def test_no_types(text):
    with pytest.raises(Refused):
        type_of(text)


def test_a_qualified_name_is_no_keyword(postgresql):
    """`pg_catalog.int` is a type named int, which does not exist."""
    assert type_of("pg_catalog.int").name == "int"
    with pytest.raises(psycopg.errors.UndefinedObject):
        postgresql.execute("SELECT NULL::pg_catalog.int")


def test_names():
    assert TokenReader(tokens('Public."T".a')).column_name() == ("public", "T", "a")
    assert TokenReader(tokens("left")).any_name() == ("left",)
    with pytest.raises(Refused, match="syntax error at end of input"):
        TokenReader(tokens("a.")).column_name()
    with pytest.raises(Refused, match="syntax error"):
        TokenReader(tokens("left")).column_name()
