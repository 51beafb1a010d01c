"""A commit is read from DESCRIBE HISTORY and from the table's log; others' metadata is whatever they like."""

from __future__ import annotations

import json
from types import SimpleNamespace

from pgbridge.bridge.lake.log.commit_info import Commit
from tests.bridge.lake.made_history import COPY_ID, ME


def test_commits_are_read_from_rows():
    """Others' metadata is whatever they like."""

    def row(metadata, operation="WRITE", parameters=None):
        return Commit.of(
            SimpleNamespace(
                version=7, operation=operation, operationParameters=parameters, userMetadata=metadata, timestamp=None
            )
        )

    assert row(json.dumps({"pgbridge": {"origin": ME, "end_lsn": "0/20"}})) == Commit(7, "WRITE", ME, "0/20")
    for key in ("given_up", "undone"):  # the latter by earlier versions
        given_up = row(json.dumps({"pgbridge": {"origin": ME, "end_lsn": "0/20", key: True}}))
        assert given_up == Commit(7, "WRITE", ME, "0/20", given_up=True)
        assert given_up.position is None
    # a fence of an earlier version: empty, and not marked otherwise
    earlier = row(json.dumps({"pgbridge": {"origin": ME, "start_lsn": "0/20", "end_lsn": "0/20"}}))
    assert earlier.position is None
    copied = row(json.dumps({"pgbridge": {"origin": COPY_ID, "start_lsn": "0/20", "end_lsn": "0/20"}}))
    assert copied.position == 0x20
    part = row(json.dumps({"pgbridge": {"origin": ME, "end_lsn": "0/20", "timeline": 4, "part": 0}}))
    assert part == Commit(7, "WRITE", ME, "0/20", timeline=4, part=True)
    assert (part.position, part.epoch, part.is_beyond(0x1F), part.is_beyond(0x20)) == (0x20, 3, True, False)
    for others in (None, "", "text", "[1]", '{"pgbridge": 1}', "1"):
        assert row(others) == Commit(7, "WRITE")
    assert row(None, "RESTORE", {"version": "3", "timestamp": None}).restored == 3
    assert row(None, "RESTORE", {"version": None, "timestamp": "2026-01-01"}).restored is None
    assert row(None, "WRITE", {"version": "3"}).restored is None


def test_commits_are_read_from_the_log():
    mark = {"origin": ME, "start_lsn": "0/10", "end_lsn": "0/20", "last_commit_time": "2026-01-01T00:00:00+00:00"}
    info = {"timestamp": 5, "operation": "MERGE", "operationParameters": {"predicate": "[]"}}
    found = Commit.of_log(7, info | {"userMetadata": json.dumps({"pgbridge": mark})})
    assert found == Commit(7, "MERGE", ME, "0/20", None, "0/10", mark["last_commit_time"], 5)
    assert found.position == 0x20
    assert Commit.of_log(7, {"operation": "RESTORE", "operationParameters": {"version": 3}}).restored == 3
    given = {"defaultRetentionMillis": 604800000}
    vacuum = {"operation": "VACUUM START", "operationParameters": given}
    assert Commit.of_log(7, vacuum).retention_ms == 604800000
    given["specifiedRetentionMillis"] = 0
    assert Commit.of_log(7, vacuum).retention_ms == 0
    assert Commit.of_log(7, {}) == Commit(7, "")
