"""Both sides put a key into the same bucket."""

from __future__ import annotations

from bridge.verify.tables import bucket_of


def test_bucket_is_the_beginning_of_the_hash():
    assert bucket_of("00ff" + "0" * 28) == 255
    assert bucket_of("f" * 32) == 65535
