"""Both ways to commit to a tiny table are held against the native subscriber."""

from __future__ import annotations

import zlib

import pytest

from bridge.apply.delta import merge_effects


@pytest.fixture(autouse=True)
def merging(request, monkeypatch):
    """In half of the tests tiny tables are merged into as large ones are; in the others they are written anew."""
    if zlib.crc32(request.node.name.encode()) % 2:
        monkeypatch.setattr(merge_effects, "rewrite_tiny", lambda *_: False)
