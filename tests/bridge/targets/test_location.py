"""Locations: paths, tables of catalogs, and their names in SQL."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.runtime.warehouse import unsupported_name
from pgbridge.bridge.targets.location import catalog_parts, quoted, sql_name, table_location, table_path
from tests.hostile import NAMES as HOSTILE

NAME = (
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=63)
    .filter(lambda name: len(name.encode()) <= 63)
    .map(str)
    | st.text("./%_delta_log2EF5", min_size=1, max_size=63)
    | st.sampled_from(HOSTILE)
)
"""What a server may name a table: at most 63 bytes of UTF-8, without NUL."""


@pytest.mark.parametrize(
    ("namespace", "name", "path"),
    [
        ("public", "t1", "/lake/public/t1"),
        ("public", "My Table", "/lake/public/My Table"),
        ("a/b", "50%", "/lake/a%2Fb/50%25"),
        ("public", "..", "/lake/public/%2E%2E"),
        ("_delta_log", "_delta_log", "/lake/%5Fdelta_log/%5Fdelta_log"),
        ("public", "_t.é", "/lake/public/_t.é"),
        ("_samples", "_samples", "/lake/%5Fsamples/%5Fsamples"),
        ("a@V0", "t@v12", "/lake/a%40V0/t%40v12"),
        ("public", "t@20240101000000000", "/lake/public/t%4020240101000000000"),
        ("public", "a@v1b", "/lake/public/a@v1b"),
    ],
)
def test_table_path(namespace, name, path):
    assert table_path("/lake/", namespace, name) == path


def test_different_tables_never_share_a_path():
    names = [
        "t@v1",
        "t%40v1",
        "t%2540v1",
        "_delta_log",
        "%5Fdelta_log",
        "a/b",
        "a%2Fb",
        "a%b",
        "a%25b",
        ".",
        "%2E",
        "..",
    ]
    assert len({table_path("w", "public", name) for name in names}) == len(names)


@given(st.tuples(NAME, NAME))
def test_a_path_is_two_folders_below_the_warehouse(names):
    """Whatever a server names; and a file system takes each of them."""
    path = table_path("/srv/lake", *names)
    assert os.path.normpath(path) == path
    assert path.startswith("/srv/lake/")
    assert len(Path(path).relative_to("/srv/lake").parts) == 2
    assert all(len(part.encode()) <= 255 for part in Path(path).parts)


@given(st.tuples(NAME, NAME), st.tuples(NAME, NAME))
def test_paths_differ_as_names_do(one, other):
    assert (table_path("w", *one) == table_path("w", *other)) == (one == other)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_backticks_is_one_name(name):
    """Spark's identifier ends at the first backtick that is not doubled."""
    text = quoted(name)
    assert re.fullmatch("`(?:[^`]|``)*`", text)
    assert text[1:-1].replace("``", "`") == name


@pytest.mark.parametrize(
    ("warehouse", "location", "sql"),
    [
        ("/lake", "/lake/Shop/Orders", "delta.`/lake/Shop/Orders`"),
        ("s3a://b/lake/", "s3a://b/lake/Shop/Orders", "delta.`s3a://b/lake/Shop/Orders`"),
        ("catalog:Main", "catalog:Main.shop.orders", "`Main`.`shop`.`orders`"),
        ("catalog:main.Sales", "catalog:main.sales.orders", "`main`.`sales`.`orders`"),
    ],
)
def test_the_location_of_a_table(warehouse, location, sql):
    found = table_location(warehouse, "Shop", "Orders")
    assert found == location
    assert sql_name(found) == sql


@given(st.tuples(NAME, NAME), st.tuples(NAME, NAME), st.sampled_from(["spark_catalog", "main"]))
def test_tables_of_a_catalog_differ_as_their_names_do_without_case(one, other, catalog):
    warehouse = f"catalog:{catalog}"
    if unsupported_name(warehouse, *one) or unsupported_name(warehouse, *other):
        with pytest.raises(TargetError, match="its names have"):
            raise_for(warehouse, one, other)
        return
    ours, theirs = (table_location(warehouse, *names) for names in (one, other))
    assert (ours == theirs) == ([name.lower() for name in one] == [name.lower() for name in other])
    assert catalog_parts(ours) == (catalog, one[0].lower(), one[1].lower())


def raise_for(warehouse, *tables):
    for names in tables:
        table_location(warehouse, *names)
