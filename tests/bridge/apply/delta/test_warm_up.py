"""A warm-up commits what a batch would, once, and leaves nothing."""

from __future__ import annotations

import threading
from queue import Queue

import pytest

from bridge.apply.delta import merge_effects, warm_up
from bridge.apply.delta.apply_table import apply_table
from bridge.apply.delta.rewrite_kept import MOST_BYTES, rewrite_kept
from bridge.session import fork


@pytest.mark.parametrize(("merged", "operation"), [(False, ("WRITE", "Overwrite")), (True, ("MERGE", None))])
def test_it_commits_an_append_and_an_update(spark, scratch_base, monkeypatch, merged, operation):
    operations = []

    def recorded(session, changes):
        apply_table(session, changes)
        row = session.sql(f"DESCRIBE HISTORY delta.`{changes.target.path}` LIMIT 1").collect()[0]
        operations.append((row.operation, row.operationParameters.get("mode")))

    monkeypatch.setattr(warm_up, "apply_table", recorded)
    monkeypatch.setattr(merge_effects, "rewrite_kept", rewrite_kept)
    warm_up.warm_up(fork(spark), merged=merged)
    assert operations == [("WRITE", "Append"), operation]
    assert [path for path in scratch_base.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(("sizes", "merged"), [((1, MOST_BYTES), False), ((MOST_BYTES + 1, 1), True), ((), False)])
def test_it_merges_for_large_tables(spark, monkeypatch, sizes, merged):
    asked: Queue[bool] = Queue()
    monkeypatch.setattr(warm_up, "warm_up", lambda _session, *, merged: asked.put(merged))
    warm_up.WarmUp(spark).begin(sizes)
    assert asked.get(timeout=10) is merged


def test_it_is_begun_once_and_its_errors_do_not_matter(spark, monkeypatch):
    begun = []

    def fail(_session, **_):
        begun.append(threading.current_thread())
        raise OSError("no space left")

    monkeypatch.setattr(warm_up, "warm_up", fail)
    one = warm_up.WarmUp(spark)
    for _ in range(3):
        one.begin([1])
    begun_by = [thread for thread in threading.enumerate() if thread.name == "warm-up"]
    for thread in begun_by:
        thread.join(10)
    assert len(begun) == 1
