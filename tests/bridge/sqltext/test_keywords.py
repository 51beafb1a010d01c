"""The keywords are the server's, and a quoted name is read back as the same name."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from psycopg import sql as psql

from bridge.sqltext.keywords import COL_NAMES, RESERVED, TYPE_FUNC_NAMES, quote_identifier
from bridge.sqltext.lexer import tokens


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=15))
def test_quoted_names_come_back(name):
    assert tokens(quote_identifier(name))[0].value == name


def test_keywords_are_the_servers(postgresql):
    rows = postgresql.execute("SELECT word, catcode FROM pg_get_keywords() WHERE catcode <> 'U'").fetchall()
    for category, ours in (("R", RESERVED), ("T", TYPE_FUNC_NAMES), ("C", COL_NAMES)):
        theirs = {word for word, one in rows if one == category}
        if postgresql.info.server_version >= 180000:
            assert theirs == ours
        else:  # keywords of later versions are missing
            assert theirs <= RESERVED | TYPE_FUNC_NAMES | COL_NAMES


@pytest.mark.parametrize("name", ["a", "A", "a b", "user", "between", "name", "9a", "ä", "a$", 'a"b', "value", "left"])
def test_names_are_quoted_as_the_server_does(postgresql, name):
    (quoted,) = postgresql.execute(psql.SQL("SELECT quote_ident({})").format(name)).fetchone()
    assert quote_identifier(name) == quoted
