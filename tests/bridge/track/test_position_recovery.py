"""What becomes of each kind of position, beside each kind of server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgbridge.bridge.track.position import Comparison, Held, Position, ServerHistory, compare
from pgbridge.protocol.lsn import Lsn

A, B = ("public", "a"), ("public", "b")

PRIMARY = ServerHistory("7", 2, Lsn(0x900), left={1: Lsn(0x500)})
STANDBY = replace(PRIMARY, in_recovery=True)
ANOTHER = replace(PRIMARY, system_identifier="8")
FORMER = ServerHistory("7", 1, Lsn(0x900))
STRANGE = replace(PRIMARY, left={})


def at(lsn: int, timeline: int | None = 2) -> Position:
    return Position("7", timeline, Lsn(lsn))


HELD = Held(at(0x100, 1), None, {A: at(0x100, 1), B: at(0x80, 1)})
"""Of before the primary's branch, in all that it has."""

HAS = at(0x300)
LEFT = at(0x501, 1)
LAGS = at(0x901)
UNKNOWN = at(0x300, 5)


def with_(kind: str, position: Position) -> Held:
    """`HELD` with a position of a kind."""
    match kind:
        case "origin":
            return replace(HELD, origin=position)
        case "table":
            return replace(HELD, tables={**HELD.tables, B: position})
        case "batch":
            return replace(HELD, batch=position)
        case "skip":
            return replace(HELD, skip=position)
        case _:
            return replace(HELD, fence=position)


KINDS = ("origin", "table", "batch", "skip", "fence")


def test_without_more_than_the_server_has():
    assert compare(HELD, PRIMARY).has_all
    assert compare(HELD, STANDBY).has_all
    assert compare(Held(at(0, None), None, {}), FORMER).has_all


@pytest.mark.parametrize("server", [PRIMARY, STANDBY])
@pytest.mark.parametrize("position", [HAS, at(0x500, 1), at(0x300, None), at(0x900)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_server_has_it(kind, position, server):
    assert compare(with_(kind, position), server) == Comparison()


@pytest.mark.parametrize("server", [PRIMARY, STANDBY])
@pytest.mark.parametrize(
    ("position", "words"),
    [
        (LEFT, "its timeline 2 left timeline 1 at 0/500"),
        (at(0x9000, 1), "its timeline 2 left timeline 1 at 0/500"),
        (UNKNOWN, "it is on timeline 2"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_server_is_on_another_branch(kind, position, words, server):
    """Nothing of it is passed over, on a standby neither: it will not have it."""
    compared = compare(with_(kind, position), server)
    assert not compared.has_all
    if kind in {"origin", "fence"}:
        assert compared.refused is not None
        assert words in compared.refused.reason
        assert (compared.position, compared.undo, compared.skips_another) == (position, False, False)
        assert compared.afresh == {}
        return
    assert (compared.refused, compared.position) == (None, None)
    assert compared.undo == (kind == "batch")
    assert compared.skips_another == (kind == "skip")
    assert list(compared.afresh) == ([B] if kind == "table" else [])
    assert all(words in missing.reason for missing in compared.afresh.values())


@pytest.mark.parametrize("timeline", [2, None])
@pytest.mark.parametrize("kind", KINDS)
def test_a_primary_with_less_wal(kind, timeline):
    """It was restored from a backup. The transaction to skip may be one that is to come."""
    position = at(0x901, timeline)
    compared = compare(with_(kind, position), PRIMARY)
    if kind in {"origin", "fence"}:
        assert compared.refused is not None
        assert compared.refused.reason.startswith("it has WAL up to 0/900")
        assert not compared.refused.later
        return
    assert compared.refused is None
    assert compared.undo == (kind == "batch")
    assert list(compared.afresh) == ([B] if kind == "table" else [])
    assert not compared.skips_another


@pytest.mark.parametrize("timeline", [2, None])
@pytest.mark.parametrize("kind", KINDS)
def test_a_standby_that_lags_is_waited_for(kind, timeline):
    """Nothing is copied afresh or taken back because of it."""
    position = at(0x901, timeline)
    compared = compare(with_(kind, position), STANDBY)
    if kind == "skip":
        assert compared == Comparison()
        return
    assert compared.refused is not None
    assert compared.refused.later
    assert compared.position == position
    assert (compared.undo, compared.afresh, compared.skips_another) == (False, {}, False)


def test_a_standby_that_lags_for_one_table_and_has_left_another_one():
    """It is waited for first; the next look tells what is to be copied afresh."""
    compared = compare(replace(HELD, tables={A: LEFT, B: LAGS}), STANDBY)
    assert compared.refused is not None
    assert compared.refused.later
    assert compared.position == LAGS


@pytest.mark.parametrize("held", [HELD, *(with_(kind, HAS) for kind in KINDS), with_("table", LEFT)])
def test_another_server(held):
    """Refused with its origin, whatever else there is."""
    compared = compare(held, ANOTHER)
    assert compared.refused is not None
    assert compared.refused.another_server
    assert compared.position == held.origin


@pytest.mark.parametrize("kind", KINDS)
def test_a_former_primary(kind):
    """A timeline that it never saw, however low the LSN."""
    compared = compare(with_(kind, at(0x10)), FORMER)
    assert (compared.refused is not None) == (kind in {"origin", "fence"})
    assert compared.undo == (kind == "batch")
    assert list(compared.afresh) == ([B] if kind == "table" else [])
    assert compared.skips_another == (kind == "skip")


def test_a_server_that_does_not_descend_from_the_timeline():
    compared = compare(HELD, STRANGE)
    assert compared.refused is not None
    assert compared.refused.reason == "its timeline 2 is no descendant of timeline 1"


def test_all_that_is_ahead_is_told_at_once():
    held = replace(HELD, tables={A: LEFT, B: LAGS}, batch=LEFT, skip=LEFT)
    compared = compare(held, PRIMARY)
    assert (compared.refused, compared.undo, compared.skips_another) == (None, True, True)
    assert list(compared.afresh) == [A, B]
    assert "left timeline 1 at 0/500" in compared.afresh[A].reason
    assert "it has WAL up to 0/900" in compared.afresh[B].reason


def test_the_origin_goes_before_all_else():
    held = replace(with_("origin", LEFT), tables={A: LAGS}, batch=LAGS, skip=LEFT, fence=LEFT)
    compared = compare(held, PRIMARY)
    assert compared.position == LEFT
    assert (compared.undo, compared.afresh, compared.skips_another) == (False, {}, False)
