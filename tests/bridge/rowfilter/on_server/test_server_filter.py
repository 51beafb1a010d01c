"""Only one expression is put into a statement, and nothing that ends it; tests/bridge/receive asks a server."""

from __future__ import annotations

import pytest

from bridge.rowfilter.on_server.server_filter import ServerColumn, any_of, candidate
from bridge.sqltext.refusal import Refused

COLUMNS = {
    "a": ServerColumn("a", 23),
    "odd name": ServerColumn("odd name", 25, 'pg_catalog.C"x'),
    "left": ServerColumn("left", 16),
}


def made(expression):
    return candidate(expression, COLUMNS, ("s", "t"))


@pytest.mark.parametrize(
    ("expression", "at"),
    [
        ("", 0),
        (" -- nothing\n", 12),
        ("a = 1) OR (true", 5),
        ("(a = 1", 6),
        ("a = ANY ([1)]", 11),
        ("a = 1; SELECT 1", 5),
        ("a = $1", 4),
        ("a = 'x", 4),
        ("a = 1 /* to the end", 6),
    ],
)
def test_what_is_no_expression(expression, at):
    with pytest.raises(Refused) as caught:
        made(expression)
    assert caught.value.at == at


def test_columns_that_it_may_look_at():
    assert [column.name for column in made("A = 1 OR \"odd name\" > 'left' -- left").columns] == ["a", "odd name"]


def test_statements():
    """A comment at the end does not hide the rest; identifiers are quoted; the schema of a table is left out."""
    found = made("s.t.a = 1 AND t.\"odd name\" > 'x' -- so")
    assert found.text == "t.a = 1 AND t.\"odd name\" > 'x' -- so"
    assert found.statement == (
        'SELECT FROM (SELECT $1 AS a, $2 COLLATE pg_catalog."C""x" AS "odd name") AS t WHERE (\n'
        "t.a = 1 AND t.\"odd name\" > 'x' -- so\n)"
    )
    taken = found.taken(frozenset({2, 1}))
    assert taken.columns == ("a", "odd name")
    statement = taken.statement(2)
    assert "(VALUES (0, $1, $2), (1, $3, $4))" in statement
    assert "-- so\n)" in statement


def test_no_column():
    assert "(VALUES (0), (1))" in made("1 = 1").taken(frozenset()).statement(2)


def test_place_in_the_expression():
    found = made("a = 1 AND nosuch = 2")
    assert found.place(len(found.statement[: found.statement.index("nosuch")].encode())) == 10
    assert found.place(3) == 0


def test_any_of():
    both = any_of([made("a = 1 -- x").taken(frozenset({1})), made("left AND a = 2").taken(frozenset({1, 2}))])
    assert (both.expression, both.columns) == ("(a = 1 -- x) OR (left AND a = 2)", ("a", "left"))
    assert both.text == "(a = 1 -- x\n)\n OR (left AND a = 2\n)"


def test_times_of_the_clock():
    assert made("a > 'Yesterday 04:05'").reads_clock
    assert not made("now > 'x'").reads_clock
