"""A warm-up commits what a batch would, once, and leaves nothing."""

from __future__ import annotations

import threading
from queue import Queue

import pytest

from bridge.lake.commit.apply_table import apply_table
from bridge.service import warm_up
from bridge.spark.session import fork


def test_it_commits_an_append_and_an_update(spark, scratch_base, monkeypatch):
    operations = []

    def recorded(session, changes):
        apply_table(session, changes)
        row = session.sql(f"DESCRIBE HISTORY delta.`{changes.target.path}` LIMIT 1").collect()[0]
        operations.append((row.operation, row.operationParameters.get("mode")))

    monkeypatch.setattr(warm_up, "apply_table", recorded)
    warm_up.warm_up(fork(spark))
    assert operations == [("WRITE", "Append"), ("WRITE", "Overwrite")]
    assert [path for path in scratch_base.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("sizes", "asked"),
    [
        ((1, 256 << 20), warm_up.ROWS),
        ((1 << 30, 1), warm_up.MERGED_ROWS),
        ((), warm_up.ROWS),
    ],
)
def test_it_commits_as_to_the_largest_table(spark, monkeypatch, sizes, asked):
    calls: Queue[int] = Queue()
    monkeypatch.setattr(warm_up, "warm_up", lambda _session, rows: calls.put(rows))
    warm_up.WarmUp(spark).begin(sizes)
    assert calls.get(timeout=10) == asked


def test_it_is_begun_once_and_its_errors_do_not_matter(spark, monkeypatch):
    begun = []

    def fail(*_):
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
