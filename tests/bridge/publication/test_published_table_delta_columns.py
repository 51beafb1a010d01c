"""Which published tables a Delta table cannot hold."""

from __future__ import annotations

import pytest

from pgbridge.bridge.publication.published_table import PublishedColumn, PublishedTable, unsupported, unsupported_tables


def reason(*names):
    found = unsupported("public", "t", names)
    return found and found.reason


def test_a_table_without_columns():
    assert reason() == 'table "public.t" has no published column, and a Delta table needs one'


def test_names_that_differ_only_in_case():
    assert reason("Id", "a", "ID") == (
        'columns "Id" and "ID" of table "public.t" differ only in case, which a Delta table cannot hold'
    )


@pytest.mark.parametrize("name", ["_row_id_", "_FILE_NAME_", "_row_dropped_", "_target_row_present_"])
def test_a_name_that_delta_uses_itself(name):
    assert reason("id", name) == f'column "{name}" of table "public.t" has a name that Delta\'s MERGE uses itself'


def test_a_name_that_cannot_be_read_back():
    assert 'column "_TMP_metadata_row_index" of table "public.t"' in str(reason("id", "_TMP_metadata_row_index"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("\N{LATIN SMALL LETTER DOTLESS I}", "i"),
        ("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "i"),
        ("\N{LATIN SMALL LETTER LONG S}", "S"),
        ("\N{KELVIN SIGN}m", "km"),
        ("Σ", "ς"),
    ],
)
def test_names_that_java_compares_as_equal(one, other):
    """Letters that share a capital, which `lower()` tells apart."""
    assert f'columns "{one}" and "{other}"' in str(reason(one, other))


def test_names_that_only_look_alike_are_different():
    assert reason("straße", "strasse", "ﬁ", "fi", "a", "á", "a\N{COMBINING ACUTE ACCENT}") is None


def test_what_is_subscribed_already_is_not_left_out():
    def table(name, *columns):
        made = (PublishedColumn(column, 23, -1, False, False) for column in columns)
        return PublishedTable(1, "public", name, "r", "d", tuple(made), ())

    tables = {("public", t.name): t for t in (table("bare"), table("emptied"), table("t", "id"))}
    assert list(unsupported_tables(tables, [("public", "emptied")])) == [("public", "bare")]
