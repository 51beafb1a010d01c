"""Publications as statements: what is written is read back to the same.

The parameters of WITH, with PostgreSQL's words for what it does not take.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.publication.publication import (
    ACTIONS,
    OptionError,
    Publication,
    PublicationTable,
    options_of,
    render,
)

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


@pytest.mark.parametrize(
    ("name", "value", "field", "read"),
    [
        ("publish", "insert", "actions", {"insert"}),
        ("publish", " INSERT ,\tupdate,insert", "actions", {"insert", "update"}),
        ("publish", '"delete", truncate', "actions", {"delete", "truncate"}),
        ("publish", ", ".join(ACTIONS), "actions", set(ACTIONS)),
        ("publish", " ", "actions", set()),
        ("publish_via_partition_root", None, "via_root", True),
        ("publish_via_partition_root", "ON", "via_root", True),
        ("publish_via_partition_root", "1", "via_root", True),
        ("publish_via_partition_root", "false", "via_root", False),
        ("publish_generated_columns", "Stored", "generated_columns", "stored"),
        ("publish_generated_columns", "none", "generated_columns", "none"),
    ],
)
def test_value(name, value, field, read):
    assert options_of({name: value}) == {field: read}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("publish", None, "publish requires a parameter"),
        ("publish", "insert, bla", 'unrecognized value for publication option "publish": "bla"'),
        ("publish", '"INSERT"', 'unrecognized value for publication option "publish": "INSERT"'),
        ("publish", "insert update", 'invalid list syntax in parameter "publish"'),
        ("publish", "insert,", 'invalid list syntax in parameter "publish"'),
        ("publish_via_partition_root", "yes", "publish_via_partition_root requires a Boolean value"),
        ("publish_via_partition_root", "2", "publish_via_partition_root requires a Boolean value"),
        (
            "publish_generated_columns",
            None,
            'invalid value for publication parameter "publish_generated_columns": ""',
        ),
        ("Publish", "insert", 'unrecognized publication parameter: "Publish"'),
    ],
)
def test_refused(name, value, message):
    with pytest.raises(OptionError) as error:
        options_of({name: value})
    assert str(error.value) == message
