"""Types with the names and the texts of pgvector's and PostGIS's.

The extensions are not on the machines that test this. So each is a base type of that name whose values are their text,
with pgvector's casts; what is tested is the text form that the extensions write, not the extensions.
"""

from __future__ import annotations

from typing import Final

from pgbridge.protocol.values.pg_type import TypeInfo

_TYPE: Final = """
    CREATE TYPE {0};
    CREATE FUNCTION {0}_in(cstring) RETURNS {0} LANGUAGE internal IMMUTABLE STRICT AS 'textin';
    CREATE FUNCTION {0}_out({0}) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
    CREATE TYPE {0} (INPUT = {0}_in, OUTPUT = {0}_out, INTERNALLENGTH = VARIABLE, STORAGE = extended);
"""
_CAST: Final = """
    CREATE FUNCTION {0}_to_float4({0}) RETURNS real[] IMMUTABLE STRICT
        RETURN string_to_array(trim(both '[]' from $1::text), ',')::real[];
    CREATE CAST ({0} AS real[]) WITH FUNCTION {0}_to_float4({0});
"""
VECTORS: Final = ("vector", "halfvec")
GEOMETRIES: Final = ("geometry", "geography")
TYPES: Final = "".join(
    [*(_TYPE.format(name) for name in (*VECTORS, *GEOMETRIES)), *(_CAST.format(name) for name in VECTORS)]
)
"""The statements that make them."""

CATALOG: Final = {
    20_001: TypeInfo(20_001, "vector", "public"),
    20_002: TypeInfo(20_002, "halfvec", "extensions"),
    20_003: TypeInfo(20_003, "geometry", "public"),
    20_004: TypeInfo(20_004, "geography", "public"),
    20_005: TypeInfo(20_005, "embedding", "public", "d", basetype=20_001),
}
"""Their rows in pg_type, and that of a domain."""

VECTOR, HALFVEC, GEOMETRY, GEOGRAPHY, EMBEDDING = CATALOG
