"""A warm-up commits what a batch would, once, and leaves nothing."""

from __future__ import annotations

import threading

from bridge.apply.delta import warm_up
from bridge.apply.delta.apply_table import apply_table
from bridge.session import fork


def test_it_commits_an_append_and_a_merge(spark, scratch_base, monkeypatch):
    operations = []

    def recorded(session, changes):
        apply_table(session, changes)
        row = session.sql(f"DESCRIBE HISTORY delta.`{changes.target.path}` LIMIT 1").collect()[0]
        operations.append(row.operation)

    monkeypatch.setattr(warm_up, "apply_table", recorded)
    warm_up.warm_up(fork(spark))
    assert operations == ["WRITE", "MERGE"]
    assert [path for path in scratch_base.rglob("*") if path.is_file()] == []


def test_it_is_begun_once_and_its_errors_do_not_matter(spark, monkeypatch):
    begun = []

    def fail(_session):
        begun.append(threading.current_thread())
        raise OSError("no space left")

    monkeypatch.setattr(warm_up, "warm_up", fail)
    one = warm_up.WarmUp(spark)
    for _ in range(3):
        one.begin()
    begun_by = [thread for thread in threading.enumerate() if thread.name == "warm-up"]
    for thread in begun_by:
        thread.join(10)
    assert len(begun) == 1
