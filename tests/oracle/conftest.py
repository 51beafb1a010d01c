"""Each way to commit to a table is held against the native subscriber, which its size would choose."""

from __future__ import annotations

import zlib

import pytest

from bridge.lake.commit import merge_effects


@pytest.fixture(autouse=True)
def ways(request, monkeypatch):
    """In some tests small tables are written anew; in others rewritten by key; or merged."""
    way = zlib.crc32(request.node.name.encode()) % 3
    if way == 1:
        monkeypatch.setattr(merge_effects, "LARGE_BYTES", 1)
    if way == 2:
        monkeypatch.setattr(merge_effects, "rewrite_joined", lambda *_: None)
