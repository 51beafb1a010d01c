"""PostgreSQL's parse trees are read completely, and what a row filter may not contain is found in them."""

from __future__ import annotations

import pytest

from bridge.rowfilter.on_server.parse_tree import where
from bridge.sqltext.refusal import (
    MUTABLE_FUNCTIONS,
    ONLY_SIMPLE,
    SYSTEM_COLUMNS,
    USER_DEFINED_COLLATIONS,
    USER_DEFINED_OPERATORS,
    USER_DEFINED_TYPES,
    Refused,
)

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
