"""Whether a server's history has a position. Real servers that went back are in `tests/bridge/sync/test_start.py`."""

from __future__ import annotations

from typing import Any

import pytest

from pgbridge.bridge.track.position import Missing, Position, ServerHistory, switch_points
from pgbridge.protocol.lsn import Lsn

HISTORY = "1\t0/3000110\tno recovery target specified\n\n2\t0/5000000\tbefore 2026-11-22 18:00:00+00\n"
"""The history of timeline 3 as PostgreSQL writes it, with an empty line after a copied history."""

LEFT = {1: Lsn(0x3000110), 2: Lsn(0x5000000)}
SERVER = ServerHistory("7", 3, Lsn(0x9000000), left=LEFT)
STANDBY = ServerHistory("7", 3, Lsn(0x9000000), in_recovery=True, left=LEFT)


def at(lsn: str, timeline: int | None = None, system: str | None = "7") -> Position:
    return Position(system, timeline, Lsn.parse(lsn))


def missing(position: Position, server: ServerHistory = SERVER) -> Missing:
    lacks = server.missing(position)
    assert lacks is not None
    return lacks


def test_where_a_history_left_its_timelines():
    assert switch_points(HISTORY) == LEFT
    assert switch_points("") == {}
    assert switch_points("# a comment\n 1\t0/3000110\tx\n") == {1: LEFT[1]}


@pytest.mark.parametrize("server", [SERVER, STANDBY])
@pytest.mark.parametrize(
    "position",
    [
        at("0/9000000", 3),
        at("0/0", 3),
        at("0/9000000"),  # of a catalog that did not note the timeline
        at("0/9000000", None, None),  # and of a subscription that has not begun
        at("0/5000000", 2),
        at("0/3000110", 1),
        at("0/0", 1),
    ],
)
def test_a_server_that_has_all(server, position):
    assert server.missing(position) is None


@pytest.mark.parametrize("server", [SERVER, STANDBY])
@pytest.mark.parametrize(
    ("position", "words"),
    [
        (at("0/3000111", 1), "its timeline 3 left timeline 1 at 0/3000110: a standby that lagged was promoted"),
        (at("0/5000001", 2), "its timeline 3 left timeline 2 at 0/5000000: a standby that lagged was promoted"),
        (at("0/9000001", 2), "its timeline 3 left timeline 2 at 0/5000000"),
        (at("0/100", 4), "it is on timeline 3: it is a former primary, or was restored from a backup"),
        (at("0/9000001", 4), "it is on timeline 3: it is a former primary"),
    ],
)
def test_a_server_on_another_branch(server, position, words):
    """A standby as well: it will not come back to it."""
    lacks = missing(position, server)
    assert words in lacks.reason
    assert not lacks.another_server
    assert not lacks.later


def test_a_timeline_that_is_not_in_its_history():
    server = ServerHistory("7", 5, Lsn(0x9000000), left={1: Lsn(0x100), 3: Lsn(0x200)})
    assert missing(at("0/50", 2), server).reason == "its timeline 5 is no descendant of timeline 2"
    assert server.missing(at("0/50", 1)) is None


def test_where_timelines_begin():
    """Where the one before was left; those of another history are not known."""
    assert [SERVER.begin_of(timeline) for timeline in (1, 2, 3, 4)] == [0, LEFT[1], LEFT[2], None]
    branched = ServerHistory("7", 5, Lsn(0x9000000), left={1: Lsn(0x100), 3: Lsn(0x200)})
    assert [branched.begin_of(timeline) for timeline in (1, 2, 3, 4, 5)] == [0, None, 0x100, None, 0x200]
    assert ServerHistory("7", 1, Lsn(0x100)).begin_of(1) == 0


@pytest.mark.parametrize("server", [SERVER, STANDBY])
@pytest.mark.parametrize(
    ("timeline", "begin_lsn", "has"),
    [(3, 0x5000000, True), (3, 0x4FFFFFF, False), (3, 0x5000001, False), (2, 0x3000110, True), (2, 0x3000111, False)],
)
def test_another_timeline_of_the_same_number(server, timeline, begin_lsn, has):
    """Of another standby that was promoted: however low the LSN is. What is not known is no difference."""
    position = Position("7", timeline, Lsn(0x3000000), Lsn(begin_lsn))
    lacks = server.missing(position)
    assert (lacks is None) == has
    if lacks is not None:
        began = {2: "0/3000110", 3: "0/5000000"}[timeline]
        assert lacks.reason == (
            f"its timeline {timeline} began at {began}, that of the changes here at {Lsn(begin_lsn)}"
        )
        assert not lacks.later
    assert server.missing(Position("7", timeline, Lsn(0x3000000))) is None


@pytest.mark.parametrize("timeline", [None, 3])
def test_a_server_with_less_wal(timeline):
    lacks = missing(at("0/9000001", timeline))
    assert lacks.reason.startswith("it has WAL up to 0/9000000: a standby that lagged was promoted, or the server was")
    assert not lacks.later


@pytest.mark.parametrize("timeline", [None, 3])
def test_a_standby_that_lags_will_have_it(timeline):
    assert missing(at("0/9000001", timeline), STANDBY) == Missing("it has WAL up to 0/9000000", later=True)


@pytest.mark.parametrize("server", [SERVER, STANDBY])
@pytest.mark.parametrize("position", [at("0/0", 3, "8"), at("0/9000001", None, "8"), at("0/100", 4, "8")])
def test_another_server(server, position):
    """Whatever the LSN is: it says nothing there."""
    lacks = missing(position, server)
    assert lacks.another_server
    assert not lacks.later
    assert lacks.reason == "it has system identifier 7, the subscription began with 8"


def test_a_position_in_words():
    assert (str(at("0/10")), str(at("0/10", 2))) == ("0/10", "0/10 of timeline 2")


def test_they_are_values():
    """So that a comparison that finds nothing is equal to an empty one."""
    position: Any = at("0/10", 2)
    assert position == at("0/10", 2)
    with pytest.raises(AttributeError):
        position.lsn = Lsn(0)
