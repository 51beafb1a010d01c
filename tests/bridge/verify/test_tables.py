"""Both sides put a row into the same bucket.

The server's record of each value; `test_verification` holds it against Spark's record of what Delta has.
"""

from __future__ import annotations

import psycopg
import pyarrow as pa
import pytest

from pgbridge.bridge.publication.published_table import PublishedTable
from pgbridge.bridge.receive.publisher import Publisher as Server
from pgbridge.bridge.verify.tables import (
    BUCKET_BITS,
    CRC32,
    FINE_BITS,
    MD5,
    VerifiedTable,
    row_hash,
    source_record,
    source_value,
    target_record,
)
from pgbridge.bridge.verify.target import hashing_session
from pgbridge.protocol.values.types import resolve
from tests.oracle.extension_types import CATALOG, EMBEDDING, GEOMETRY, TYPES, VECTOR
from tests.protocol.sampled import OWN_TYPES, SAMPLES

HASHES = (CRC32, MD5)


def table(row_hash):
    return VerifiedTable(PublishedTable(1, "public", "t", "r", "d", (), ()), "/t", columns=(), key=(), hash=row_hash)


@pytest.mark.parametrize("row_hash", HASHES)
def test_bucket_is_the_beginning_of_the_hash(row_hash):
    number = int("00ff".ljust(row_hash.bits // 4, "0"), 16)
    assert table(row_hash).bucket_of(number, 16) == 255
    assert table(row_hash).bucket_of(number) == 3
    assert table(row_hash).bucket_of((1 << row_hash.bits) - 1) == 1023


@pytest.mark.parametrize("row_hash", HASHES)
def test_both_sides_compute_it(spark, publisher, row_hash):
    one = table(row_hash)
    for number in (0, 1, (1 << row_hash.bits) - 1, 0x12345678 << (row_hash.bits - 32)):
        for bits in (BUCKET_BITS, FINE_BITS):
            here = spark.sql(f"SELECT {one.target_bucket(f'{number}L', bits)}").first()[0]
            there = publisher.query(f"SELECT {one.source_bucket(f'{number}::bigint', bits)}")[0][0]
            assert (here, there) == (one.bucket_of(number, bits), one.bucket_of(number, bits))


@pytest.fixture
def typed(publisher):
    """Reads the bytes that a declaration's values have in a record; None for NULL."""
    with publisher.connect() as connection:
        connection.prepare_threshold = None  # the table is another one each time
        for statement in OWN_TYPES:
            connection.execute(statement)
        connection.commit()
        with Server(publisher.conninfo, application_name="test") as server:

            def values(declaration, literals):
                # a column, because a literal has no type modifier
                connection.execute("DROP TABLE IF EXISTS public.one")
                connection.execute(f"CREATE TABLE public.one (n int, v {declaration})")
                for number, literal in enumerate(literals):
                    connection.execute("INSERT INTO public.one VALUES (%s, %s)", (number, literal))
                connection.commit()
                ((oid, typmod),) = connection.execute(
                    "SELECT atttypid, atttypmod FROM pg_attribute "
                    "WHERE attrelid = 'public.one'::regclass AND attname = 'v'"
                ).fetchall()
                type_ = resolve(oid, typmod, server.types({oid}))
                record = source_record([source_value("v", type_, type_.arrow)])
                found = connection.execute(f"SELECT {record} FROM public.one ORDER BY n").fetchall()
                lengths = [int.from_bytes(record[8:12], signed=True) for (record,) in found]
                assert all(len(record) == 12 + max(0, length) for (record,), length in zip(found, lengths, strict=True))
                return [None if length < 0 else record[12:] for (record,), length in zip(found, lengths, strict=True)]

            yield values


def test_every_type_has_a_record(typed):
    """The server computes all of them."""
    for declaration, literals in SAMPLES.items():
        distinct = list(dict.fromkeys(literals))
        try:
            found = typed(declaration, [*distinct, None])
        except psycopg.Error as error:
            pytest.fail(f"{declaration}: {error}")
        assert found[-1] is None, declaration


def test_bytes_of_values(typed):
    assert typed("date", ["2000-01-02", "0001-01-01", "10000-01-01", "infinity"]) == [
        int4(1),
        int4(-730119),
        None,
        None,
    ]
    assert typed("timestamptz", ["2000-01-01 00:00:00.000001+00", "-infinity"]) == [int8(1), None]
    assert typed("timestamp", ["9999-12-31 23:59:59.999999", "10000-01-01"]) == [int8(252455615999999999), None]
    assert typed("smallint", ["-1"]) == [int8(-1)]
    assert typed("float8", ["-0", "NaN", "1"]) == [int8(-(2**63)), int8(0x7FF8 << 48), int8(0x3FF << 52)]
    assert typed("float4", ["NaN", "1"]) == [int4(0x7FC0 << 16), int4(0x7F << 23)]
    assert typed("numeric(9, 2)", ["1", "NaN"]) == [b"1.00", None]
    assert typed("text", ["", "ünï"]) == [b"", "ünï".encode()]
    assert typed("int[]", ["{}", "{1,NULL}", "{{1}}", "[0:0]={1}"]) == [
        b"",
        ((int4(1) + int4(20) + int4(8) + int8(1)).hex() + (int4(1) + int4(20) + int4(-1)).hex()).encode(),
        None,
        None,
    ]
    assert typed("bytea", [r"\x00ff"]) == [b"\x00\xff"]


def test_types_of_extensions_have_the_records_of_what_they_are_parsed_to(publisher):
    """Those of reals, also as doubles, and of bytea; as strings they have their text's."""
    publisher.execute(f"{TYPES} CREATE DOMAIN embedding AS vector")
    reals, doubles = pa.list_(pa.float32()), pa.list_(pa.float64())
    for oid, literal, target, same, same_oid in (
        (VECTOR, "'[0.1,-2]'::vector", reals, "'{0.1,-2}'::real[]", 1021),
        (EMBEDDING, "'[0.1,-2]'::embedding", reals, "'{0.1,-2}'::real[]", 1021),
        (EMBEDDING, "'[0.1,-2]'::embedding", doubles, "'{0.1,-2}'::float8[]", 1022),
        (VECTOR, "NULL::vector", reals, "NULL::real[]", 1021),
        (VECTOR, "'[0.1,-2]'::vector", pa.string(), "'[0.1,-2]'::text", 25),
        (GEOMETRY, "'01aB'::geometry", pa.binary(), r"'\x01ab'::bytea", 17),
        (GEOMETRY, "NULL::geometry", pa.binary(), "NULL::bytea", 17),
        (GEOMETRY, "'01aB'::geometry", pa.string(), "'01aB'::text", 25),
    ):
        values = (
            source_value(literal, resolve(oid, -1, CATALOG), target),
            source_value(same, resolve(same_oid, -1), target),
        )
        ((record, wanted),) = publisher.query(f"SELECT {', '.join(source_record([value]) for value in values)}")
        assert record == wanted, literal


def int4(number):
    return number.to_bytes(4, signed=True)


def int8(number):
    return number.to_bytes(8, signed=True)


def test_both_sides_have_the_same_hashes(spark, publisher):
    """Of a row with as many columns as a table may have, too."""
    hashing = hashing_session(spark)
    hashes = [MD5] if publisher.version < 18 else [MD5, CRC32]
    for count in (1, 3, 1600):
        there = source_record(f"'{number}'::text" for number in range(count))
        here = target_record((f"'{number}'", pa.string()) for number in range(count))
        expected = ", ".join(one.source(there) for one in hashes)
        found = hashing.sql(f"SELECT {', '.join(one.target(here) for one in hashes)}").collect()
        assert publisher.query(f"SELECT {expected}") == list(map(tuple, found)), count


def test_the_hash_is_the_cheapest_that_a_server_has():
    assert [row_hash(version).bits for version in (140_000, 170_009, 180_000, 190_000)] == [60, 60, 32, 32]
