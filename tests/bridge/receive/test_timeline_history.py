"""A server without the WAL that was received from it is refused, with what that means; one that lost none is not.

Real servers that went back and were promoted are in `tests/bridge/sync/test_start.py`.
"""

from __future__ import annotations

import pytest

from bridge.errors import PublisherError, PublisherWentBack
from bridge.receive.timeline_history import ServerIdentity, check_history, switch_point
from protocol.lsn import Lsn

HISTORY = "1\t0/3000110\tno recovery target specified\n\n2\t0/5000000\tbefore 2026-11-22 18:00:00+00\n"
"""The history of timeline 3 as PostgreSQL writes it, with an empty line after a copied history."""


def check(remote_lsn: str, *, on: int | None, now: int, flush_lsn: str = "0/9000000", standby: bool = False):
    server = ServerIdentity("7", now, Lsn.parse(flush_lsn))
    return check_history(
        server,
        subscription="shop",
        standby=standby,
        remote_lsn=Lsn.parse(remote_lsn),
        timeline=on,
        history=lambda _: HISTORY,
    )


def test_where_a_timeline_was_left():
    assert [switch_point(HISTORY, number) for number in (1, 2, 3)] == [Lsn(0x3000110), Lsn(0x5000000), None]


@pytest.mark.parametrize(
    ("remote_lsn", "on", "now"),
    [
        ("0/9000000", 3, 3),
        ("0/9000000", None, 3),  # of a catalog that did not note it
        ("0/5000000", 2, 3),
        ("0/3000110", 1, 3),
    ],
)
def test_a_server_that_has_all_is_accepted_and_its_timeline_noted(remote_lsn, on, now):
    assert check(remote_lsn, on=on, now=now) == now


@pytest.mark.parametrize(
    ("remote_lsn", "on", "now", "words"),
    [
        ("0/9000001", 3, 3, "it has WAL up to 0/9000000, but changes up to 0/9000001 are durable here"),
        ("0/3000111", 1, 3, "its timeline 3 left it at 0/3000110"),
        ("0/5000001", 2, 3, "its timeline 3 left it at 0/5000000"),
        ("0/100", 4, 5, "its timeline 5 is no descendant of it"),
        ("0/100", 3, 2, "the publisher is on timeline 2, but changes up to 0/100 of timeline 3 are durable here"),
    ],
)
def test_a_server_that_lost_some_is_refused(remote_lsn, on, now, words):
    with pytest.raises(PublisherWentBack) as caught:
        check(remote_lsn, on=on, now=now)
    assert words in caught.value.message
    assert "run: pgbridge resync shop" in caught.value.hint
    assert not caught.value.retry


def test_a_standby_that_lags_is_waited_for():
    with pytest.raises(PublisherError, match="the standby lags") as caught:
        check("0/9000001", on=3, now=3, standby=True)
    assert caught.value.retry
    assert not isinstance(caught.value, PublisherWentBack)


def test_a_standbys_timeline_is_not_noted():
    """It may be promoted while it sends: then the origin would be on a timeline that nobody saw."""
    assert check("0/9000000", on=3, now=3, standby=True) is None
