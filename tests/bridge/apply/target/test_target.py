"""Targets: the Delta types for PostgreSQL's, paths, names, and the check of a relation's columns."""

import os
import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.apply.target import target
from bridge.apply.target.target import Target, TargetColumn
from bridge.errors import TargetError
from protocol.values.types import resolve
from tests.hostile import NAMES as HOSTILE

NAME = (
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=63)
    .filter(lambda name: len(name.encode()) <= 63)
    .map(str)
    | st.text("./%_delta_log2EF5", min_size=1, max_size=63)
    | st.sampled_from(HOSTILE)
)
"""What a server may name a table: at most 63 bytes of UTF-8, without NUL."""

CONTRACT = {
    # pg_type oid, typmod: Delta's type, as CONTRACT.md has it
    (16, -1): "boolean",
    (21, -1): "smallint",
    (23, -1): "int",
    (20, -1): "bigint",
    (26, -1): "bigint",
    (700, -1): "float",
    (701, -1): "double",
    (1700, (12 << 16) + 2 + 4): "decimal(12,2)",
    (1700, -1): "string",
    (1700, (40 << 16) + 2 + 4): "string",
    (25, -1): "string",
    (2950, -1): "string",
    (3802, -1): "string",
    (17, -1): "binary",
    (1082, -1): "date",
    (1114, -1): "timestamp_ntz",
    (1184, -1): "timestamp",
    (1007, -1): "array<int>",
    (1231, (5 << 16) + 1 + 4): "array<decimal(5,1)>",
}


@pytest.mark.parametrize(("declared", "delta"), CONTRACT.items())
def test_delta_types_are_the_contracts(declared, delta):
    assert target.sql_type(resolve(*declared).arrow) == delta


@pytest.mark.parametrize(
    ("namespace", "name", "path"),
    [
        ("public", "t1", "/lake/public/t1"),
        ("public", "My Table", "/lake/public/My Table"),
        ("a/b", "50%", "/lake/a%2Fb/50%25"),
        ("public", "..", "/lake/public/%2E%2E"),
        ("_delta_log", "_delta_log", "/lake/%5Fdelta_log/%5Fdelta_log"),
        ("public", "_t.é", "/lake/public/_t.é"),
    ],
)
def test_table_path(namespace, name, path):
    assert target.table_path("/lake/", namespace, name) == path


def test_different_tables_never_share_a_path():
    names = ["_delta_log", "%5Fdelta_log", "a/b", "a%2Fb", "a%b", "a%25b", ".", "%2E", ".."]
    assert len({target.table_path("w", "public", name) for name in names}) == len(names)


@given(st.tuples(NAME, NAME))
def test_a_path_is_two_folders_below_the_warehouse(names):
    """Whatever a server names; and a file system takes each of them."""
    path = target.table_path("/srv/lake", *names)
    assert os.path.normpath(path) == path
    assert path.startswith("/srv/lake/")
    assert len(Path(path).relative_to("/srv/lake").parts) == 2
    assert all(len(part.encode()) <= 255 for part in Path(path).parts)


@given(st.tuples(NAME, NAME), st.tuples(NAME, NAME))
def test_paths_differ_as_names_do(one, other):
    assert (target.table_path("w", *one) == target.table_path("w", *other)) == (one == other)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_backticks_is_one_name(name):
    """Spark's identifier ends at the first backtick that is not doubled."""
    text = target.quoted(name)
    assert re.fullmatch("`(?:[^`]|``)*`", text)
    assert text[1:-1].replace("``", "`") == name


def column(name, oid):
    """A replicated column."""
    return TargetColumn(name, resolve(oid, -1))


def test_check_finds_missing_columns_and_other_types_in_any_order():
    schema = target.target_schema([("b", pa.string()), ("a", pa.int64()), ("extra", pa.int64())])
    table = Target("public", "t", "/lake/public/t", schema)
    assert table.check([column("b", 25), column("a", 20)]) == (column("b", 25), column("a", 20))
    (wide,) = table.check([column("a", 23)])
    assert (wide.type.oid, wide.type.arrow) == (23, pa.int64())
    with pytest.raises(TargetError, match=r'relation "public.t" is missing replicated columns: "c", "d"'):
        table.check([column("a", 20), column("c", 25), column("d", 25)])
    with pytest.raises(
        TargetError, match='column "a" of target "public.t" is bigint, but the published values are string'
    ):
        table.check([column("a", 25)])


@pytest.mark.parametrize(
    ("there", "published", "held"),
    [
        (pa.int64(), 23, True),
        (pa.int32(), 20, False),
        (pa.float64(), 700, True),
        (pa.float64(), 20, False),
        (pa.decimal128(12, 2), 23, True),
        (pa.decimal128(11, 2), 23, False),
        (pa.timestamp("us"), 1082, True),
        (pa.timestamp("us", "UTC"), 1082, False),
        (pa.string(), 23, False),
    ],
)
def test_a_wider_type_is_accepted_if_it_holds_every_value(there, published, held):
    table = Target("public", "t", "/lake/public/t", target.target_schema([("a", there)]))
    if held:
        (found,) = table.check([column("a", published)])
        assert (found.type.arrow, found.type.oid) == (there, published)
        return
    with pytest.raises(TargetError, match='column "a" of target "public.t" is'):
        table.check([column("a", published)])
