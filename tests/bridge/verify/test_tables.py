"""Both sides put a row into the same bucket."""

from __future__ import annotations

import pytest

from bridge.publication.published_table import PublishedTable
from bridge.verify.canonical_record import CRC32, MD5
from bridge.verify.tables import BUCKET_BITS, FINE_BITS, VerifiedTable

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
