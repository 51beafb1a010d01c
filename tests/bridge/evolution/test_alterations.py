"""Constants of columns that were added, through the alterations that follow.

Changes of type that keep the values: the server's own conversions decide.
"""

from __future__ import annotations

from itertools import permutations

import psycopg
import pyarrow as pa
import pytest

from pgbridge.bridge.evolution.alterations import (
    AddColumn,
    Alteration,
    RenameColumn,
    WidenColumn,
    common_type,
    declared,
    fills,
    keeps_values,
    renamings,
)
from pgbridge.bridge.evolution.tracker import value_from_text
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.protocol.values.pg_type import TypeInfo
from pgbridge.protocol.values.types import resolve


def test_fills_have_the_last_names_and_types():
    value = pa.scalar(1, pa.int32())
    steps: list[Alteration] = [
        AddColumn("c", pa.int32(), value),
        RenameColumn("c", "c_dropped"),
        AddColumn("c", pa.int32()),
        WidenColumn("c_dropped", pa.int64()),
    ]
    assert fills(steps) == {"c_dropped": pa.scalar(1, pa.int64())}


def test_names_that_columns_have_in_the_end():
    """Also where they go round; one that comes back to its own name is not renamed."""
    a_b: list[Alteration] = [RenameColumn("a", "tmp"), RenameColumn("b", "a"), RenameColumn("tmp", "b")]
    assert renamings(a_b) == {"a": "b", "b": "a"}
    assert renamings([*a_b, *a_b]) == {}
    assert renamings([AddColumn("c", pa.int32()), RenameColumn("d", "e")]) == {"d": "e"}


D = pa.decimal128

DOMAINS = """
CREATE DOMAIN whole AS integer; CREATE DOMAIN word AS varchar(5); CREATE DOMAIN label AS name;
CREATE DOMAIN code AS char(5); CREATE DOMAIN sum AS numeric(10,2); CREATE TYPE mood AS ENUM ('sad ', 'ok')
"""
SAMPLES = {
    "boolean": ["t"],
    "smallint": ["-1", "32767"],
    "integer": ["-1", "2147483647"],
    "bigint": ["-1", "9223372036854775807", "4294967295", "7"],
    "oid": ["4294967295", "7"],
    "real": ["0.1", "1e30", "NaN"],
    "double precision": ["0.1", "1e300"],
    "numeric": ["0.10", "1e60", "1.5"],
    "numeric(10,2)": ["0.10", "99999999.99", "1.55"],
    "numeric(12,2)": ["0.10", "9999999999.99"],
    "numeric(12,4)": ["0.1001", "9.99"],
    "numeric(50,2)": ["0.10", "1e47"],
    "numeric(60,2)": ["0.10", "1e57"],
    "date": ["2024-01-01", "0001-01-01"],
    "timestamp": ["2024-01-01 01:02:03.456789", "2024-01-01"],
    "timestamp(0)": ["2024-01-01 01:02:03"],
    "timestamp(3)": ["2024-01-01 01:02:03.456"],
    "timestamptz": ["2024-01-01 01:02:03.456789+02"],
    "timestamptz(3)": ["2024-01-01 01:02:03.456+02"],
    "time": ["01:02:03.456789"],
    "time(0)": ["01:02:03"],
    "interval": ["1 day 01:02:03.456789"],
    "interval(0)": ["1 day 01:02:03"],
    "text": ["", "ab   ", "x" * 70, "é" * 40],
    "varchar": ["", "ab   ", "x" * 70],
    "varchar(5)": ["", "ab   ", "abcde"],
    "varchar(3)": ["", "a  ", "abc"],
    "varchar(80)": ["ab" + " " * 70, "é" * 40],
    "char(5)": ["ab", "abcde"],
    "char(10)": ["ab", "abcdefghij"],
    "bpchar": ["ab   ", "ab"],
    "name": ["ab   ", "x" * 63],
    '"char"': ["a", ""],
    "json": ['{"a":  1 }', "1    "],
    "jsonb": ['{"a": 1}', '"' + "x" * 70 + '"'],
    "jsonpath": ["$.a"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "bytea": ["ab"],
    "inet": ["10.0.0.1/32", "10.0.0.0/8"],
    "cidr": ["10.0.0.1/32", "10.0.0.0/8"],
    "bit(8)": ["10101010"],
    "varbit": ["1010", "10101010101010"],
    "varbit(12)": ["1010"],
    "varbit(24)": ["1010", "1010101010101010"],
    "int4range": ["[1,5]"],
    "xid": ["7"],
    "money": ["1.50"],
    "integer[]": ["{-1,NULL}"],
    "bigint[]": ["{-1,7}", "{7}"],
    "oid[]": ["{4294967295}"],
    "varchar(5)[]": ['{"ab   "}'],
    "varchar(3)[]": ['{"a  "}'],
    "name[]": ['{"ab   "}'],
    "whole": ["-1"],
    "word": ["ab   "],
    "label": ["ab   "],
    "code": ["ab"],
    "sum": ["0.10"],
    "mood": ["sad "],
}
FOLLOWED = [
    ("smallint", "integer"), ("integer", "bigint"), ("bigint", "integer"), ("integer", "numeric(10,2)"),
    ("integer", "double precision"), ("real", "double precision"), ("numeric(10,2)", "numeric(12,4)"),
    ("date", "timestamp"), ("varchar(5)", "varchar(80)"), ("varchar(5)", "text"), ("text", "varchar"), ("uuid", "text"),
    ("jsonb", "text"), ("json", "text"), ("timestamp(0)", "timestamp(3)"), ("numeric(50,2)", "numeric(60,2)"),
    ("numeric(50,2)", "numeric"), ("varbit(12)", "varbit(24)"), ("integer[]", "bigint[]"), ("oid", "bigint"),
    ("interval(0)", "interval"), ("whole", "bigint"), ("word", "text"), ("mood", "text"), ("name", "text"),
]  # fmt: skip
"""Changes that must be followed."""
OTHER = [
    ("text", "name"), ("varchar(80)", "name"), ("varchar(5)", "varchar(3)"), ("text", "varchar(80)"),
    ("word", "varchar(3)"), ("integer", "oid"), ("oid", "integer"), ("oid", "whole"), ("text", "label"),
    ("code", "text"), ("char(5)", "char(10)"), ("varchar(5)", "char(10)"), ("text", "json"), ("text", "mood"),
    ("integer[]", "oid[]"), ("jsonpath", "jsonb"), ("bigint", "double precision"), ("bigint", "text"),
    ("timestamp", "timestamp(0)"), ("numeric(10,2)", "numeric"), ("numeric", "numeric(10,2)"), ("inet", "cidr"),
    ("inet", "text"), ("bytea", "text"), ("bit(8)", "varbit"), ("interval", "text"), ("real", "numeric(10,2)"),
]  # fmt: skip


@pytest.fixture
def server(publisher):
    """The database with the types, and how they are read, by their names."""
    publisher.execute(f"SET timezone TO 'UTC'; {DOMAINS}")
    query = "SELECT atttypid::int, atttypmod FROM pg_attribute WHERE attrelid = 'x'::regclass AND attname = 'v'"
    declared = {}
    for name in SAMPLES:
        publisher.execute(f"CREATE TABLE x (v {name})")
        (declared[name],) = publisher.query(query)
        publisher.execute("DROP TABLE x")
    with Publisher(publisher.conninfo, application_name="test") as catalog:
        catalog_types = catalog.types(oid for oid, _ in declared.values())
    return publisher, {name: resolve(oid, typmod, catalog_types) for name, (oid, typmod) in declared.items()}


def test_the_server_leaves_all_values_as_they_are(server):
    """For every such pair of types, without USING, both have the same value, or the server refuses the change."""
    publisher, types = server
    same = [pair for pair in permutations(SAMPLES, 2) if keeps_values(types[pair[0]], types[pair[1]])]
    assert set(FOLLOWED) - set(same) == set()
    assert set(OTHER) & set(same) == set()
    for number, (old, new) in enumerate(same):
        found = [values(publisher, f"x{number}_{n}", old, new, sample) for n, sample in enumerate(SAMPLES[old])]
        kept = [
            (value_from_text(types[old], before.encode()), value_from_text(types[new], after.encode()))
            for before, after in filter(None, found)
        ]
        assert kept, (old, new)
        assert all(alike(*pair) for pair in kept), (old, new, kept)


def values(publisher, table, old, new, sample):
    """Return the text of a value before and after a change of type; None if the server refuses it.

    The types' output functions write it: a cast to text would be another conversion.
    """
    output = f"SELECT format('%s', v) FROM {table}"
    publisher.execute(f"CREATE TABLE {table} (v {old})")
    publisher.execute(f"INSERT INTO {table} VALUES (%s)", (sample,))
    ((before,),) = publisher.query(output)
    try:
        publisher.execute(f"ALTER TABLE {table} ALTER v TYPE {new}")
    except psycopg.errors.DataError:
        return None
    ((after,),) = publisher.query(output)
    return before, after


def alike(one, other):
    """Whether two values are the same in their common type. Arrays, which Delta does not widen, must be equal."""
    if not pa.types.is_list(one.type):
        common = common_type(one.type, other.type)
        one, other = one.cast(common), other.cast(common)
    return repr(one.as_py()) == repr(other.as_py())


def test_domains_are_what_they_are_over():
    catalog = {90001: TypeInfo(90001, "positive", "public", "d", 23), 90002: TypeInfo(90002, "word", "public", "d", 25)}
    assert keeps_values(resolve(23, -1), resolve(90001, -1, catalog))
    assert keeps_values(resolve(90002, -1, catalog), resolve(25, -1))
    assert not keeps_values(resolve(90001, -1, catalog), resolve(90002, -1, catalog))


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (pa.int16(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.date32(), pa.timestamp("us"), pa.timestamp("us")),
        (pa.date32(), pa.timestamp("us", "UTC"), None),
        (D(10, 2), D(12, 4), D(12, 4)),
        (D(12, 2), D(12, 4), D(14, 4)),
        (D(12, 2), D(10, 2), D(12, 2)),
        (D(38, 0), D(38, 10), None),
        (pa.int32(), D(8, 2), D(12, 2)),
        (pa.int64(), D(30, 2), D(30, 2)),
        (pa.string(), pa.string(), pa.string()),
        (pa.string(), pa.int32(), None),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), None),
    ],
)
def test_the_type_that_holds_both(one, other, common):
    assert common_type(one, other) == common
    assert common_type(other, one) == common


@pytest.mark.parametrize(
    ("oid", "typmod", "name"),
    [
        (1700, -1, "numeric"),
        (1700, (10 << 16 | 2) + 4, "numeric(10,2)"),
        (1700, (3 << 16 | (-2 & 0x7FF)) + 4, "numeric(3,-2)"),
        (1231, (12 << 16 | 2) + 4, "numeric(12,2)[]"),
        (1043, 9, "varchar(5)"),
        (1114, 3, "timestamp(3)"),
        (1562, 8, "varbit(8)"),
        (1007, -1, "int4[]"),
    ],
)
def test_types_are_shown_with_their_modifiers(oid, typmod, name):
    assert declared(resolve(oid, typmod)) == name
