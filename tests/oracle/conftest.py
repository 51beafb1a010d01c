"""Each way to commit to a table is held against the native subscriber, which its size would choose."""

from __future__ import annotations

import zlib

import pytest

from pgbridge.bridge.lake.commit import plan

WAYS = ("written anew", "read and written anew", "rewritten by place", "rewritten by key", "merged")
"""What becomes of a small table. With `--every-way` each test goes each way; else its name draws one."""


def pytest_generate_tests(metafunc):
    """Repeat what has Delta tables for each way, the fixtures of its module included."""
    if metafunc.config.getoption("every_way") and "spark" in metafunc.fixturenames:
        metafunc.parametrize("way_to_commit", WAYS, indirect=True, scope="module")


def go(way, patch):
    """Have all commits go a way."""
    if way == "read and written anew":
        patch.setattr(plan, "is_tiny", lambda *_: False)
    if way in {"rewritten by place", "rewritten by key"}:
        patch.setattr(plan, "LARGE_BYTES", 1)
        patch.setattr(plan, "_PLACES_BYTES", 1)
    if way == "rewritten by key":
        patch.setattr(plan, "go_by_places", lambda *_: False)
    if way == "merged":
        patch.setattr(plan, "replaceable", lambda _: False)


@pytest.fixture(autouse=True, scope="module")
def way_to_commit(request):
    """The way that was asked for, if one was; fixtures of a module that commit name it."""
    asked = getattr(request, "param", None)
    with pytest.MonkeyPatch.context() as patch:
        go(asked, patch)
        yield asked


@pytest.fixture(autouse=True)
def drawn_way(request, way_to_commit, monkeypatch):
    go(way_to_commit or WAYS[zlib.crc32(request.node.name.encode()) % len(WAYS)], monkeypatch)
