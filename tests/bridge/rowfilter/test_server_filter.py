"""Only one expression is put into a statement, and nothing that ends it; tests/bridge/receive asks a server.

PostgreSQL's parse trees are read completely, and what a row filter may not contain is found in them.
"""

from __future__ import annotations

import pytest

from pgbridge.bridge.rowfilter.server_filter import ServerColumn, any_of, candidate, where
from pgbridge.bridge.sqltext.refusal import (
    MUTABLE_FUNCTIONS,
    ONLY_SIMPLE,
    SYSTEM_COLUMNS,
    USER_DEFINED_COLLATIONS,
    USER_DEFINED_OPERATORS,
    USER_DEFINED_TYPES,
    Refused,
)

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


VAR = "{VAR :varno 1 :varattno 2 :vartype 25\n:vartypmod -1 :varcollid 950 :varnullingrels (b) :location 7}"
ONE = "{CONST :consttype 23 :constcollid 0 :constisnull false :location 9 :constvalue 4 [ -119 28 0 0 ]}"


def tree(quals: str) -> str:
    """The tree of a query with a subquery; names may have any characters, escaped by backslashes."""
    inner = (
        "{QUERY :rtable <> :jointree {FROMEXPR :fromlist <> :quals <>} :targetList ({TARGETENTRY :resname \\{a\\ \\}})}"
    )
    table = f'{{RANGETBLENTRY :eref {{ALIAS :aliasname t :colnames ("a\\ b" "\\)")}} :subquery {inner}}}'
    return f"{{QUERY :commandType 1 :rtable ({table}) :jointree {{FROMEXPR :fromlist () :quals {quals}}} :x <>}}\n"


def operator(*fields: str, arguments: str = f"({VAR} {ONE})") -> str:
    return f"{{OPEXPR {' '.join(fields or (':opno 521', ':opfuncid 147'))} :args {arguments} :location 42}}"


def refused(quals: str, mutable: frozenset[int] = frozenset(), operators: frozenset[int] = frozenset()) -> str:
    with pytest.raises(Refused) as caught:
        where(tree(quals)).check(mutable, operators)
    return caught.value.reason


def test_what_it_names():
    row = "{ROWCOMPAREEXPR :opnos (o 521 666) :inputcollids (o 0 950) :largs () :rargs ()}"
    found = where(tree(f"{{BOOLEXPR :boolop and :args ({operator()} {row})}}"))
    assert found.functions == {147}
    assert found.operators == {521, 666}
    assert found.columns == {2}
    assert found.constant_types == {23}
    found.check((), ())


@pytest.mark.parametrize(
    ("quals", "reason"),
    [
        ("{SUBLINK :subLinkType 0}", ONLY_SIMPLE),
        (operator(arguments="({COERCEVIAIO :resulttype 25})"), ONLY_SIMPLE),
        ("{VAR :varno 1 :varattno -1 :vartype 27}", SYSTEM_COLUMNS),
        ("{VAR :varno 1 :varattno 0 :vartype 2249}", USER_DEFINED_TYPES),
        ("{VAR :varno 1 :varattno 1 :vartype 16384}", USER_DEFINED_TYPES),
        (operator(":opno 16400", ":opfuncid 147"), USER_DEFINED_OPERATORS),
        (operator(":opno 521", ":opfuncid 16401"), MUTABLE_FUNCTIONS),
        ("{FUNCEXPR :funcid 20000 :funcresulttype 16}", MUTABLE_FUNCTIONS),
        (operator(":opno 521", ":opfuncid 147", ":inputcollid 16500"), USER_DEFINED_COLLATIONS),
    ],
)
def test_what_does_not_come_with_the_server(quals, reason):
    assert refused(quals) == reason


def test_mutable_functions():
    assert refused(operator(), frozenset({147})) == MUTABLE_FUNCTIONS
    row = "{ROWCOMPAREEXPR :opnos (o 521 666) :largs () :rargs ()}"
    assert refused(row, frozenset(), frozenset({666})) == MUTABLE_FUNCTIONS


@pytest.mark.parametrize("text", ["", "{QUERY", "{QUERY :jointree {FROMEXPR :quals <>}}", "{VAR :varno 1}", "}"])
def test_no_tree_with_a_condition(text):
    with pytest.raises(ValueError, match=r"not a (tree|query)"):
        where(text)
