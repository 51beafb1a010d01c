"""Built-in types have the names that format_type returns."""

from __future__ import annotations

import pytest

from bridge.rowfilter.types.type_names import check_builtin, shown
from bridge.sqltext.refusal import Refused
from bridge.sqltext.syntax import TypeName


def test_foreign_names():
    check_builtin(TypeName(0, "int4"))
    with pytest.raises(Refused, match="User-defined types are not allowed"):
        check_builtin(TypeName(0, "mood"))


def test_shown_as_format_type_does(postgresql):
    for name in ("int4", "_int4", "timestamptz", "bpchar", "_varchar", "text", "time"):
        assert postgresql.execute("SELECT format_type(%s::regtype, NULL)", (name,)).fetchone() == (shown(name),)
