"""Both sides put a row into the same bucket."""

from __future__ import annotations

from bridge.verify.canonical_text import HASH_DIGITS
from bridge.verify.tables import bucket_of, source_bucket, target_bucket


def test_bucket_is_the_beginning_of_the_hash():
    assert bucket_of(int("00ff".ljust(HASH_DIGITS, "0"), 16)) == 255
    assert bucket_of(int("f" * HASH_DIGITS, 16)) == 65535


def test_both_sides_compute_it(spark, publisher):
    for text in ("0", "00ff".ljust(HASH_DIGITS, "0"), "f" * HASH_DIGITS, "123456789abcdef"):
        number = int(text, 16)
        here = spark.sql(f"SELECT {target_bucket(f'{number}L')}").first()[0]
        there = publisher.query(f"SELECT {source_bucket(f'{number}::bigint')}")[0][0]
        assert (here, there) == (bucket_of(number), bucket_of(number))
