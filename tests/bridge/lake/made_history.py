"""Histories of tables, as versions of a subscription's commits, of other writers', and of RESTOREs."""

from __future__ import annotations

from types import SimpleNamespace

from pgbridge.bridge.lake.log.commit_info import Commit
from pgbridge.bridge.lake.log.history import History
from pgbridge.bridge.lake.log.stamp import CommitStamp
from pgbridge.protocol.lsn import Lsn

FAMILY = "pgbridge/1/sub/inc/"
ME = f"{FAMILY}3"
COPY_ID = f"{FAMILY}copy"
BEYOND = 0x10


def mine(lsn, app_id=ME, *, part=False):
    """A commit of a batch up to there, or of a part of it."""
    return SimpleNamespace(operation="MERGE", origin=app_id, end_lsn=f"0/{lsn:X}", restored=None, part=part)


def by_command(lsn, command="replay", after=None):
    """A commit of `pgbridge replay` or `verify --repair`, with the stamp that they have."""
    stamp = CommitStamp(f"{FAMILY}{command}-0-{lsn:X}.1", Lsn(after or lsn), Lsn(lsn))
    return SimpleNamespace(operation="MERGE", stamp=stamp)


def theirs(operation="WRITE", restored=None):
    """A commit of somebody else's."""
    return SimpleNamespace(operation=operation, origin="", end_lsn="", restored=restored)


def back_to(version, app_id="", end_lsn=0x20):
    """A RESTORE; with an application id, an undo's."""
    undo = {"origin": app_id, "end_lsn": f"0/{end_lsn:X}" if app_id else "", "given_up": bool(app_id)}
    return SimpleNamespace(operation="RESTORE", restored=version, **undo)


def fence(lsn=0x20, app_id=ME):
    """An empty commit that keeps a late one of a batch out."""
    return SimpleNamespace(operation="WRITE", origin=app_id, end_lsn=f"0/{lsn:X}", restored=None, given_up=True)


def commit_of(version, made):
    if stamp := getattr(made, "stamp", None):
        return Commit.of_log(version, {"operation": made.operation, "userMetadata": stamp.user_metadata})
    given_up, part = getattr(made, "given_up", False), getattr(made, "part", False)
    return Commit(version, made.operation, made.origin, made.end_lsn, made.restored, part=part, given_up=given_up)


def history(*commits):
    """The history of versions 0, 1, …, with how many of the latest were asked for, each time."""
    rows = [commit_of(version, made) for version, made in enumerate(commits)]
    asked = []

    def read(latest):
        asked.append(latest)
        return rows[::-1][:latest]

    return History("/lake/t", read), asked


BEFORE = (theirs("CREATE TABLE"), mine(0x10))
UPKEEP = theirs("OPTIMIZE")
EARLIER = f"{FAMILY}2"
