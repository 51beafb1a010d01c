"""States that are made anew while tables are with the tablesync worker, restored by hand, or lack what is prepared."""

from __future__ import annotations

import re

import pytest

from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.sync.added_tables import AddedTables
from tests.simulation.bridged import Killed, MemoryBridge
from tests.simulation.server import MemoryServer


@pytest.fixture
def bridge(tmp_path, monkeypatch):
    """Two tables, copied."""
    server = MemoryServer(("a", "b"))
    server.insert(a=(1,), b=(1,))
    made = MemoryBridge(server, tmp_path / "state", monkeypatch)
    assert made.live() is None
    return made


@pytest.fixture
def with_the_worker(bridge):
    """The tablesync worker has copied a, and has not handed it over."""
    bridge.resync("a")
    assert isinstance(bridge.live("sync_caught_up"), Killed)
    return bridge


def waits(patch):
    """Have the worker get no turn, and its tables not handed over."""
    patch.setattr(AddedTables, "take_over", lambda *_: None)


def ends_equal(bridge):
    """What is prepared ends, and more comes."""
    for prepared in bridge.server.prepared:
        bridge.server.end_prepared(prepared, commits=True)
    bridge.server.insert(a=(60,), b=(60,))
    return bridge.live() is None and bridge.differences() == {}


def test_what_was_restored_by_hand_is_behind(bridge):
    """The table's log tells it, and not only the state that is lost."""
    for number in (2, 3):
        bridge.server.insert(a=(number,))
        assert bridge.live() is None
    path = bridge.path("a")
    whole = len(bridge.lake.tables[path]) - 1
    bridge.lake.restore(path, whole - 1)
    assert bridge.recover() is None
    bridge.server.insert(a=(9,), b=(9,))
    error = bridge.live()
    assert isinstance(error, TargetError)
    assert "is behind: changes up to" in error.message
    assert f"VERSION AS OF {whole};" in (error.hint or "")
    bridge.lake.restore(path, whole)
    assert ends_equal(bridge)


@pytest.mark.parametrize("is_lost", [True, False])
def test_changes_of_what_is_prepared_are_lost_for_a_table_that_the_worker_has(with_the_worker, monkeypatch, is_lost):
    """Another slot waits for its end: the one that the worker had would bring nothing of it."""
    bridge = with_the_worker
    with monkeypatch.context() as patch:
        waits(patch)
        bridge.server.prepare({"a": (50,)})
        assert bridge.live() is None
    if is_lost:
        assert bridge.recover() is None
    assert bridge.live() is None
    assert ends_equal(bridge)


def test_a_second_recovery_leaves_alone_what_is_prepared_in_other_tables(bridge, monkeypatch):
    """The first has given the changed table to the worker."""
    with monkeypatch.context() as patch:
        waits(patch)
        bridge.server.prepare({"a": (50,)})
        assert bridge.live() is None
        for _ in range(2):
            assert bridge.recover() is None
            assert bridge.live() is None
    assert ends_equal(bridge)
    marks = [version.info.get("userMetadata") or "" for version in bridge.lake.tables[bridge.path("b")]]
    assert sum('/copy"' in mark and "given_up" not in mark for mark in marks) == 1


def test_the_workers_slot_does_not_outlive_the_subscriptions(with_the_worker):
    """Nobody would know of it; it would hold WAL, and be in the way of the next worker."""
    bridge = with_the_worker
    del bridge.server.slots[bridge.subscription.slot_name]
    assert bridge.recover() is None
    assert [*bridge.server.slots] == []
    assert bridge.live() is None
    bridge.resync("a")
    assert bridge.live() is None
    assert ends_equal(bridge)


@pytest.mark.parametrize("back", [0, 1], ids=["to the last batch's version", "to the one before"])
def test_a_table_is_restored_to_what_it_had_before_the_worker_copied_it(bridge, back):
    """The worker's commits are this life's, too: the hint names the version that has them."""
    for number in (2, 3):
        bridge.server.insert(a=(number,))
        assert bridge.live() is None
    path = bridge.path("a")
    batch = len(bridge.lake.tables[path]) - 1
    bridge.server.insert(a=(5,))
    bridge.resync("a")
    assert bridge.live() is None
    bridge.lake.restore(path, batch - back)
    assert bridge.recover() is None
    error = bridge.live()
    assert isinstance(error, TargetError)
    (version,) = re.findall(r"VERSION AS OF (\d+);", error.hint or "")
    bridge.lake.restore(path, int(version))
    assert ends_equal(bridge)


def test_a_table_that_was_restored_and_copied_since_goes_on(bridge):
    """The copy has cured it."""
    for number in (2, 3):
        bridge.server.insert(a=(number,))
        assert bridge.live() is None
    path = bridge.path("a")
    bridge.lake.restore(path, len(bridge.lake.tables[path]) - 2)
    bridge.server.insert(b=(5,))
    bridge.resync("a")
    assert bridge.live() is None
    assert bridge.differences() == {}
    assert bridge.recover() is None
    assert ends_equal(bridge)
