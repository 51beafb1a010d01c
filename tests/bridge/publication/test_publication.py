"""Publications as statements: what is written is read back to the same."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bridge.publication.definitions import parse
from bridge.publication.publication import ACTIONS, Publication, PublicationTable, render

NAMES = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=15) | (
    st.sampled_from(["a", "user", "Tables", "tables", "only", "in", "where", "with", "current_schema", "x$1"])
)
FILTERS = st.sampled_from(
    ["a > 5", "(a > 5)", "a = ')' -- x\n", "a /* ) */ > $x$)$x$", "E'\\')' = b", 'U&")" > 1', "f(a, (b))"]
)
TABLES = st.builds(
    PublicationTable,
    NAMES,
    NAMES,
    st.booleans(),
    st.none() | st.lists(NAMES, min_size=1, max_size=4, unique=True).map(tuple),
    st.none() | FILTERS,
)


@st.composite
def publications(draw) -> Publication:
    """Publications that the parser can return: no table twice, no list beside schemas, nothing beside ALL TABLES."""
    options = {
        "name": draw(NAMES),
        "actions": frozenset(draw(st.sets(st.sampled_from(ACTIONS)))),
        "via_root": draw(st.booleans()),
        "generated_columns": draw(st.sampled_from(["none", "stored"])),
    }
    kind = draw(st.sampled_from(["all", "none", "tables", "schemas"]))
    distinct = st.lists(TABLES, max_size=4, unique_by=lambda table: (table.namespace, table.name))
    if kind == "all":
        tables, sequences = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
        excepted = [replace(table, columns=None, row_filter=None) for table in draw(distinct)] if tables else []
        return Publication(all_tables=tables, except_tables=tuple(excepted), all_sequences=sequences, **options)
    tables = draw(distinct) if kind == "tables" else []
    schemas = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)) if kind == "schemas" else []
    return Publication(tables=tuple(tables), schemas=tuple(schemas), **options)


@given(st.lists(publications(), min_size=1, max_size=3, unique_by=lambda publication: publication.name))
def test_rendered_publications_are_read_back(made):
    assert parse(render(made), "f.sql") == tuple(made)


def test_form():
    """For people, and for a diff."""
    tables = (PublicationTable("public", "t", True, ("a", "B"), "a > 5"), PublicationTable("public", "user"))
    made = [
        Publication("p", tables, ("s",), actions=frozenset({"update", "insert"}), via_root=True),
        Publication("q", all_tables=True, generated_columns="stored"),
        Publication("s", all_tables=True, all_sequences=True, except_tables=(PublicationTable("public", "t"),) * 2),
        Publication("r"),
    ]
    assert render(made) == (
        "CREATE PUBLICATION p FOR\n"
        '    TABLE ONLY public.t (a, "B") WHERE (a > 5),\n'
        '    TABLE public."user",\n'
        "    TABLES IN SCHEMA s\n"
        "    WITH (publish = 'insert, update', publish_via_partition_root = true);\n"
        "\n"
        "CREATE PUBLICATION q FOR ALL TABLES\n"
        "    WITH (publish_generated_columns = stored);\n"
        "\n"
        "CREATE PUBLICATION s FOR ALL TABLES EXCEPT (\n"
        "        TABLE public.t,\n"
        "        TABLE public.t), ALL SEQUENCES;\n"
        "\n"
        "CREATE PUBLICATION r;\n"
    )
