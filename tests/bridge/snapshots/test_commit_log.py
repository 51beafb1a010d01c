"""Records go to the table of commits in order, once, and whatever happens in between."""

from __future__ import annotations

import threading
import time

import pytest
import structlog

from pgbridge.bridge.catalog import commits
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import AppliedBatch, RelRow
from pgbridge.bridge.lake.log.commit_info import Commit
from pgbridge.bridge.snapshots import commit_log
from pgbridge.bridge.snapshots.commit_log import CommitLog, derived
from pgbridge.protocol.lsn import Lsn

TABLE = ("public", "a", "/lake/a")


class Rows:
    """A table of commits in memory, which may fail before or after an append."""

    path = "/lake/pgbridge/commits"

    def __init__(self):
        self.numbers, self.rebuilt, self.pruned, self.fails, self.appends = [], [], [], [], []
        self.appended = threading.Event()

    def ensure(self):
        if "ensure" in self.fails:
            raise RuntimeError("no store\nat all")

    def last_numbers(self, origins):
        return dict.fromkeys(origins, max(self.numbers)) if self.numbers else {}

    def append(self, parts):
        assert all(part.origin == f"pgbridge/None/{part.subscription}/inc" for part in parts)
        if "before" in self.fails:
            raise RuntimeError("before")
        self.appends.append([part.subscription for part in parts])
        if "other" in self.appends[-1] and "other" in self.fails:
            raise RuntimeError("other")
        self.numbers += [record.number for part in parts for record in part.records]
        self.appended.set()
        if "after" in self.fails:
            raise RuntimeError("after")

    def rebuild(self, subscription, origin, tables):
        self.rebuilt.append(list(tables))
        return 3

    def prune(self, origin, before_s):
        self.pruned.append(before_s)
        return 1

    def interrupt(self):
        self.interrupted = True


@pytest.fixture
def catalog(tmp_path):
    made = Catalog(catalog_path(tmp_path))
    made.register("sub", enabled=True)
    made.create_origin("sub", Lsn(0x10), "inc", [RelRow(*TABLE[:2], "r", Lsn(0x10), TABLE[2])])
    yield made
    made.close()


def batch(catalog, end_lsn):
    catalog.finish_batch("sub", Lsn(end_lsn), applied=AppliedBatch("o", Lsn(0x10), 1, 2, 1, (TABLE,)))


def log_of(catalog, rows, now_s=4e9):
    return CommitLog(catalog, "sub", rows, structlog.get_logger(), now_s=lambda: now_s)


def test_records_wait_for_others(catalog):
    rows = Rows()
    young = commits.pending(catalog, "sub")[0].recorded_s + 9
    assert not log_of(catalog, rows, young).turn()
    batch(catalog, 0x20)
    assert log_of(catalog, rows, young + 2).turn()
    assert rows.numbers == [1, 2]
    assert commits.pending(catalog, "sub") == []
    assert not log_of(catalog, rows).turn()


@pytest.mark.parametrize("fails", ["ensure", "before", "after"])
def test_each_is_appended_once_whatever_fails(catalog, fails):
    rows = Rows()
    rows.fails = [fails]
    with pytest.raises(RuntimeError):
        log_of(catalog, rows).turn()
    batch(catalog, 0x20)
    rows.fails = []
    log = log_of(catalog, rows)
    log.turn()
    batch(catalog, 0x30)
    log.turn()
    assert rows.numbers == [1, 2, 3]
    assert commits.pending(catalog, "sub") == []


def test_a_table_that_was_lost_is_made_again(catalog):
    log_of(catalog, Rows()).turn()
    batch(catalog, 0x20)
    lost = Rows()
    log_of(catalog, lost).turn()
    assert lost.rebuilt == [[TABLE]]
    assert lost.numbers == [2, 3]  # the batch, and that the table joins
    log_of(catalog, lost).turn()
    assert len(lost.rebuilt) == 1


@pytest.mark.parametrize("fails", [[], ["other"]])
def test_those_of_others_go_with_them(catalog, monkeypatch, fails):
    """By one commit, if they have waited as long. What is the matter with another subscription holds up nobody."""
    catalog.register("other", enabled=True)
    catalog.create_origin("other", Lsn(0x10), "inc", [RelRow("public", "b", "r", Lsn(0x10), "/lake/b")])
    rows = Rows()
    rows.fails = fails
    logs = [CommitLog(catalog, name, rows, structlog.get_logger(), now_s=lambda: 4e9) for name in ("sub", "other")]
    monkeypatch.setattr(commit_log, "_STARTED", {*logs})
    assert logs[0].turn()
    left = [len(commits.pending(catalog, name)) for name in ("sub", "other")]
    assert (rows.appends[-1], left) == ((["sub"], [0, 1]) if fails else (["sub", "other"], [0, 0]))
    elsewhere = Rows()
    elsewhere.path = "/another/pgbridge/commits"
    batch(catalog, 0x20)
    assert CommitLog(catalog, "sub", elsewhere, structlog.get_logger(), now_s=lambda: 4e9).turn()
    assert elsewhere.appends == [["sub"]]


def test_what_a_joint_append_has_left_is_not_appended_again(catalog, monkeypatch):
    """It was committed, and could not be flushed: each subscription asks what the table has."""
    catalog.register("other", enabled=True)
    catalog.create_origin("other", Lsn(0x10), "inc", [RelRow("public", "b", "r", Lsn(0x10), "/lake/b")])
    rows = Rows()
    logs = [CommitLog(catalog, name, rows, structlog.get_logger(), now_s=lambda: 4e9) for name in ("sub", "other")]
    monkeypatch.setattr(commit_log, "_STARTED", {*logs})
    logs[0].turn()
    for number, name in enumerate(("sub", "other"), 2):
        applied = AppliedBatch("o", Lsn(0x10), 1, 2, 1, (TABLE,))
        catalog.finish_batch(name, Lsn(0x10 * number), applied=applied)
    rows.fails = ["after"]
    logs[0].turn()
    rows.fails = []
    for log in logs:
        log.turn()
    assert rows.numbers == [1, 2, 3, 4]
    assert [len(commits.pending(catalog, name)) for name in ("sub", "other")] == [0, 0]


def test_one_that_has_failed_goes_alone(catalog, monkeypatch):
    catalog.register("other", enabled=True)
    catalog.create_origin("other", Lsn(0x10), "inc", [RelRow("public", "b", "r", Lsn(0x10), "/lake/b")])
    rows = Rows()
    logs = [CommitLog(catalog, name, rows, structlog.get_logger(), now_s=lambda: 4e9) for name in ("sub", "other")]
    logs[1].failed = True
    monkeypatch.setattr(commit_log, "_STARTED", {*logs})
    logs[0].turn()
    assert rows.appends == [["sub"]]


def test_a_log_that_is_stopped_begins_nothing(catalog):
    rows = Rows()
    log = log_of(catalog, rows)
    log.stop()
    assert not log.turn()
    assert rows.appends == []


def test_old_rows_are_pruned_once_a_day(catalog):
    rows, hour_s = Rows(), 3600.0
    log = log_of(catalog, rows)
    for hours in (0, 0.9, 1.1, 20, 26):
        log.now_s = lambda hours=hours: 4e9 + hours * hour_s
        batch(catalog, 0x20 + round(hours * 10))
        log.turn()
    assert rows.pruned == [4e9 + hours * hour_s - 30 * 24 * hour_s for hours in (1.1, 26)]


def test_a_run_that_has_caught_up_appends_at_once(catalog):
    """Readers come next. What could not be appended is so by the next run."""
    rows = Rows()
    young = commits.pending(catalog, "sub")[0].recorded_s + 0.1
    log_of(catalog, rows, young).stop()
    assert rows.numbers == []
    rows.fails = ["before"]
    log_of(catalog, rows, young).stop(caught_up=True)  # a warning
    rows.fails = []
    log_of(catalog, rows, young).stop(caught_up=True)
    assert rows.numbers == [1]


def test_the_thread_appends_and_survives_failures(catalog, monkeypatch):
    monkeypatch.setattr("pgbridge.bridge.snapshots.commit_log._EVERY_S", 0.01)
    monkeypatch.setattr("pgbridge.bridge.snapshots.commit_log._LOOK_S", 0.01)
    monkeypatch.setattr("pgbridge.bridge.snapshots.commit_log._AGAIN_S", 0.01)
    rows = Rows()
    rows.fails = ["ensure"]
    log = log_of(catalog, rows)
    with structlog.testing.capture_logs() as logged:
        log.log = structlog.get_logger()
        log.start()
        while not logged:
            assert not rows.appended.wait(0.01)
        rows.fails = []
        assert rows.appended.wait(60)
        log.stop()
    assert (logged[0]["log_level"], logged[0]["error"]) == ("warning", "no store")
    assert sum(one["log_level"] == "warning" for one in logged) == 1  # not each time


def test_a_batch_ends_the_wait_of_a_log_without_records(catalog, monkeypatch):
    for name in ("_EVERY_S", "_LOOK_S"):
        monkeypatch.setattr(f"bridge.snapshots.commit_log.{name}", 0.01)
    monkeypatch.setattr("pgbridge.bridge.snapshots.commit_log._REST", 0)
    rows = Rows()
    log = log_of(catalog, rows)
    log.start()
    for number in (1, 2, 3):
        assert rows.appended.wait(60)
        rows.appended.clear()
        assert rows.numbers[-1] == number
        while not log._idle:
            time.sleep(0.001)
        batch(catalog, 0x10 + number)
        log.noted()
    log.stop()


ORIGIN = "pgbridge/1/sub/inc"


def own(version, start, end, time="", by=f"{ORIGIN}/0", *, given_up=False):
    """A commit of a batch."""
    return Commit(version, "MERGE", by, f"0/{end}", None, f"0/{start}", time, given_up=given_up)


def test_batches_are_derived_from_histories():
    """Commits of tablesync workers, of an earlier life, and what lies before a copy do not count."""
    copy = Commit(1, "WRITE", f"{ORIGIN}/copy", "0/10", None, "0/10")
    a = [own(3, 25, 30), own(2, 10, 20, "2026-01-01T00:00:00+00:00"), copy, own(0, 5, 9)]
    b = [own(5, 25, 30), Commit(4, "OPTIMIZE"), own(3, 20, 25), own(2, 20, 25)]
    c = [own(2, 12, 22, by="pgbridge/1/sub:sync/inc/0"), own(1, 70, 80, by="pgbridge/1/sub/before/0")]
    tables = {name: ("n", name, f"/{name}") for name in "abc"}
    batches, joins = derived({tables["a"]: a, tables["b"]: b, tables["c"]: c}, ORIGIN)
    assert [(batch["end_lsn"], batch["position"]) for batch in batches] == [("0/20", 0x20), ("0/25", 0x25)]
    assert [batch["tables"] for batch in batches] == [{tables["a"]: 2}, {tables["b"]: 3}]  # 0/30 may go on
    assert batches[0]["last_commit_time"] == "2026-01-01T00:00:00+00:00"
    assert joins == {tables["a"]: 0x10, tables["b"]: 0x25}
    later = [own(3, 20, 30), own(2, 15, 25), own(1, 12, 22, by="pgbridge/1/sub:sync/inc/0"), copy]
    assert derived({tables["a"]: later[1:]}, ORIGIN) == ([], {})
    assert derived({tables["a"]: [own(4, 30, 40), own(3, 25, 30), *later[1:]]}, ORIGIN)[1] == {tables["a"]: 0x25}
    assert derived({}, ORIGIN) == ([], {})


def test_a_batch_that_was_cut_short_and_received_again_in_parts():
    """Only at its end do all tables have the same: one has had all of it since it was cut short."""
    tables = {name: ("n", name, f"/{name}") for name in "ab"}
    again = f"{ORIGIN}/1"
    a = [own(3, 30, 40, by=again), own(2, 10, 30), own(1, 5, 10)]
    b = [
        own(5, 30, 40, by=again),
        own(4, 25, 30, by=again),
        own(3, 20, 25, by=again),
        own(2, 10, 20, by=again),
        own(1, 10, 30, given_up=True),  # keeps a late commit out
        own(0, 5, 10),
    ]
    batches, _ = derived({tables["a"]: a, tables["b"]: b}, ORIGIN)
    assert [(batch["position"], batch["tables"]) for batch in batches] == [
        (0x10, {tables["a"]: 1, tables["b"]: 0}),
        (0x30, {tables["a"]: 2, tables["b"]: 4}),
    ]


def test_a_batch_that_was_cut_short_and_joined_others():
    """What it has committed counts for the larger batch that has the rest of its transactions."""
    tables = {name: ("n", name, f"/{name}") for name in "ab"}
    again = f"{ORIGIN}/1"
    a = [own(3, 35, 40, by=again), own(1, 10, 30)]
    b = [own(3, 35, 40, by=again), own(2, 10, 35, by=again)]
    batches, _ = derived({tables["a"]: a, tables["b"]: b}, ORIGIN)
    assert [(batch["position"], batch["tables"]) for batch in batches] == [(0x35, {tables["a"]: 1, tables["b"]: 2})]


def test_a_batch_of_which_no_part_was_left_out_counts_alone():
    """Neighbours share a boundary only."""
    table = ("n", "a", "/a")
    batches, _ = derived({table: [own(3, 30, 40), own(2, 20, 30), own(1, 10, 20)]}, ORIGIN)
    assert [batch["position"] for batch in batches] == [0x20, 0x30]
