"""The operators, functions, casts and types are those of a server.

Built-in types have the names that format_type returns.
"""

from __future__ import annotations

import pytest

from pgbridge.bridge.rowfilter.types.pg_catalog import (
    CASTS,
    CATEGORY,
    FUNCTIONS,
    OPERATORS,
    PREFERRED,
    Cast,
    Signature,
    check_builtin,
    shown,
)
from pgbridge.bridge.sqltext.refusal import Refused
from pgbridge.bridge.sqltext.syntax import TypeName
from tests.generated_catalogs import PG_CATALOG, VERSION, names_in, operators_and_casts


def test_the_file_is_a_servers(postgresql):
    if postgresql.info.server_version // 10000 != VERSION:
        pytest.skip(f"the file was made by PostgreSQL {VERSION}")
    text = PG_CATALOG.read_text(encoding="utf-8")
    made = operators_and_casts(postgresql, names_in(text))
    assert sorted(map(_entries, made.splitlines())) == sorted(map(_entries, text.splitlines()))


def _entries(line):
    kind, name, entries = line.split("\t")
    return kind, name, sorted(entries.split())


def test_what_is_read():
    assert Signature(("date", "interval"), "timestamp", immutable=True) in OPERATORS["+"]
    assert Signature(("timestamptz", "interval"), "timestamptz", immutable=False) in OPERATORS["+"]
    assert Signature(("int4",), "int4", immutable=True) in OPERATORS["prefix -"]
    assert Signature(("text",), "text", immutable=True) in FUNCTIONS["lower"]
    assert CASTS["int4", "int8"] == Cast("i", "f", immutable=True)
    assert not CASTS["date", "timestamptz"].immutable
    assert (CATEGORY["int4"], CATEGORY["text"]) == ("N", "S")
    assert {"bool", "float8", "text", "timestamptz"} <= PREFERRED
    assert "int4" not in PREFERRED


def test_foreign_names():
    check_builtin(TypeName(0, "int4"))
    with pytest.raises(Refused, match="User-defined types are not allowed"):
        check_builtin(TypeName(0, "mood"))


def test_shown_as_format_type_does(postgresql):
    for name in ("int4", "_int4", "timestamptz", "bpchar", "_varchar", "text", "time"):
        assert postgresql.execute("SELECT format_type(%s::regtype, NULL)", (name,)).fetchone() == (shown(name),)
