"""Which Arrow type a PostgreSQL type becomes, and whether its binary form is read."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from pgbridge import sql
from pgbridge.protocol.values import binary_values, output, types
from pgbridge.protocol.values.pg_type import BUILTIN, TypeInfo
from pgbridge.protocol.values.types import RANGE_SUBTYPES, Kind, resolve
from tests.oracle.extension_types import CATALOG, EMBEDDING, GEOGRAPHY, GEOMETRY, HALFVEC, VECTOR
from tests.protocol.made_rows import typmod_of
from tests.protocol.sampled import SAMPLES, TEXT_ONLY

STRING, BINARY = pa.string(), pa.binary()
UTC = pa.timestamp("us", tz="UTC")

# The declarations of tests.protocol.sampled whose Arrow type is not a string; in brackets those of arrays
ARROW = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "oid": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "numeric(12,2)": pa.decimal128(12, 2),
    "numeric(5,5)": pa.decimal128(5, 5),
    "numeric(4,0)": pa.decimal128(4, 0),
    "numeric(1,0)": pa.decimal128(1, 0),
    "numeric(1,1)": pa.decimal128(1, 1),
    "numeric(18,0)": pa.decimal128(18, 0),
    "numeric(18,1)": pa.decimal128(18, 1),
    "numeric(18,3)": pa.decimal128(18, 3),
    "numeric(18,9)": pa.decimal128(18, 9),
    "numeric(18,18)": pa.decimal128(18, 18),
    "numeric(19,0)": pa.decimal128(19, 0),
    "numeric(38,0)": pa.decimal128(38, 0),
    "numeric(38,10)": pa.decimal128(38, 10),
    "numeric(38,38)": pa.decimal128(38, 38),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp(0)": pa.timestamp("us"),
    "timestamptz": UTC,
    "price": pa.decimal128(10, 2),
    "dear_price": pa.decimal128(10, 2),
    "positive": pa.int32(),
    "tags": pa.list_(STRING),
    "prices": pa.list_(pa.decimal128(10, 2)),
    "places": pa.list_(STRING),
    "boolean[]": pa.list_(pa.bool_()),
    "smallint[]": pa.list_(pa.int16()),
    "integer[]": pa.list_(pa.int32()),
    "bigint[]": pa.list_(pa.int64()),
    "real[]": pa.list_(pa.float32()),
    "double precision[]": pa.list_(pa.float64()),
    "oid[]": pa.list_(pa.int64()),
    "numeric(12,2)[]": pa.list_(pa.decimal128(12, 2)),
    "numeric(30,5)[]": pa.list_(pa.decimal128(30, 5)),
    "bytea[]": pa.list_(pa.binary()),
    "date[]": pa.list_(pa.date32()),
    "timestamp[]": pa.list_(pa.timestamp("us")),
    "timestamptz[]": pa.list_(UTC),
    "price[]": pa.list_(pa.decimal128(10, 2)),
    "tags[]": pa.list_(pa.list_(STRING)),
    "places[]": pa.list_(pa.list_(STRING)),
    "moods[]": pa.list_(pa.list_(STRING)),
}


@pytest.mark.parametrize("declaration", SAMPLES)
def test_declared_types(samples, declaration):
    """A column of each declaration on a server, by the facts of its catalog."""
    type_ = samples.fill(declaration, [])
    array = declaration.endswith("[]") or declaration in {"tags", "prices", "places", "moods"}
    assert type_.arrow == ARROW.get(declaration, pa.list_(STRING) if array else STRING)
    assert type_.binary is (declaration not in TEXT_ONLY)
    assert pickle.loads(pickle.dumps(type_)) == type_


def test_every_built_in_type_resolves():
    """By their oids alone all built-in types have a column, arrays the one of their elements."""
    for oid, info in BUILTIN.items():
        type_ = resolve(oid, -1)
        assert type_.oid == oid
        if info.element:
            assert type_.arrow == pa.list_(resolve(info.element, -1).arrow)
            assert type_.delimiter == BUILTIN[info.element].delimiter


def test_unknown_type_is_text_only():
    type_ = resolve(4711, 5)
    assert (type_.oid, type_.typmod, type_.arrow, type_.binary) == (4711, 5, STRING, False)


def test_own_types_do_not_hide_behind_built_in_names():
    """Only some are known by their names, since an extension has no fixed oid."""
    names = {"int4": False, "uuid": False, "citext": True, "hstore": False, "vector": False, "sparsevec": False}
    for name, binary in names.items():
        type_ = resolve(20000, -1, {20000: TypeInfo(20000, name, "public")})
        assert (type_.arrow, type_.binary) == (STRING, binary)
    for name in ("citext", "vector"):
        composite = resolve(20000, -1, {20000: TypeInfo(20000, name, "public", "c")})
        assert (composite.kind, composite.binary) == (Kind.OPAQUE, False)


def test_types_of_extensions_are_parsed_for_a_column_that_is_no_string():
    """Domains over them, too, but not arrays of them; other types stay as they are."""
    reals = pa.list_(pa.float32())
    for oid, parsed in {VECTOR: reals, HALFVEC: reals, EMBEDDING: reals, GEOMETRY: BINARY, GEOGRAPHY: BINARY}.items():
        type_ = resolve(oid, 3, CATALOG)
        assert (type_.arrow, type_.parsed_for(STRING), type_.parsed_for(parsed).arrow) == (STRING, type_, parsed)
    assert resolve(VECTOR, 3, CATALOG).parsed_for(pa.list_(pa.float64())).arrow == reals
    of_vectors = resolve(1, -1, {**CATALOG, 1: TypeInfo(1, "_vector", "public", element=VECTOR)})
    for type_ in (of_vectors, resolve(700, -1), resolve(17, -1), resolve(25, -1)):
        assert type_.parsed_for(reals) == type_


@pytest.mark.parametrize(
    ("precision", "scale", "arrow"),
    [
        (1, 0, pa.decimal128(1, 0)),
        (38, 0, pa.decimal128(38, 0)),
        (38, 38, pa.decimal128(38, 38)),
        (39, 0, STRING),
        (1000, 2, STRING),
        (3, 4, STRING),
        (3, -1, STRING),
        (1000, 1000, STRING),
        (2, -1000, STRING),
    ],
)
def test_numeric_modifiers(precision, scale, arrow):
    """Decimals up to 38 digits with a scale of 0 to the precision; a scale has 11 bits and a sign."""
    assert resolve(1700, typmod_of(precision, scale)).arrow == arrow


def test_a_domains_modifier_counts_and_an_arrays_goes_to_its_elements():
    catalog = {
        20000: TypeInfo(20000, "price", "public", "d", basetype=1700, typmod=typmod_of(10, 2)),
        20001: TypeInfo(20001, "dear", "public", "d", basetype=20000),
        20002: TypeInfo(20002, "_dear", "public", element=20001),
        20003: TypeInfo(20003, "prices", "public", "d", basetype=1231, typmod=typmod_of(5, 1)),
    }
    money = pa.decimal128(10, 2)
    dear = resolve(20001, -1, catalog)
    assert (dear.oid, dear.arrow) == (20001, money)
    array = resolve(20002, -1, catalog)
    assert array.arrow == pa.list_(money)
    assert array.element is not None
    assert array.element.oid == 20001
    assert resolve(20003, -1, catalog).arrow == pa.list_(pa.decimal128(5, 1))
    assert resolve(1231, typmod_of(7, 3)).arrow == pa.list_(pa.decimal128(7, 3))


def test_ranges_are_binary_by_their_subtype():
    catalog = {
        20000: TypeInfo(20000, "r", "public", "r", subtype=1700),
        20001: TypeInfo(20001, "m", "public", "m", subtype=1700),
        20002: TypeInfo(20002, "r", "public", "r", subtype=701),
    }
    kinds = [(resolve(oid, -1, catalog).kind, resolve(oid, -1, catalog).binary) for oid in catalog]
    assert kinds == [(Kind.RANGE, True), (Kind.MULTIRANGE, True), (Kind.OPAQUE, False)]


def test_kinds_and_readers_agree():
    """Whatever resolves as binary has a reader, and a range's subtype an output function."""
    assert set(binary_values.READERS) == set(Kind) - {Kind.ARRAY} - types.TEXT_ONLY
    assert set(output.SUBTYPE_OUTPUT) == RANGE_SUBTYPES


def test_statement_returns_all_that_a_type_is_made_of(samples):
    """sql/types.sql returns the requested types with all their bases, elements and subtypes, and no others."""
    asked = ["tags[]", "price_range", "int4multirange", "places", "point", "int2vector"]
    oids = [samples.connection.execute("SELECT %s::regtype::oid", (name,)).fetchone()[0] for name in asked]
    rows = samples.connection.execute(sql.load("types"), {"oids": [*oids, 4294967295]}).fetchall()
    found = {row[1]: TypeInfo(*row) for row in rows}
    assert found.keys() == {
        "_tags", "tags", "_text", "text", "price_range", "price", "numeric", "int4multirange", "int4", "places",
        "_point", "point", "int2vector",
    }  # fmt: skip
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert found["price"] == TypeInfo(
        found["price"].oid, "price", "pgbridge_samples", "d", basetype=1700, typmod=typmod_of(10, 2)
    )
    assert found["_tags"].element == found["tags"].oid
    assert found["tags"].basetype == 1009
    assert found["price_range"].subtype == found["price"].oid
    assert (found["int4multirange"].typtype, found["int4multirange"].subtype) == ("m", 23)
    assert found["point"].element == found["int2vector"].element == 0


def test_statement_for_no_types(samples):
    assert samples.connection.execute(sql.load("types"), {"oids": []}).fetchall() == []
