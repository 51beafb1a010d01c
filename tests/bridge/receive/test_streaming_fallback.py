"""A stream that is broken off again and again at one position goes without streaming, until the place is behind."""

from __future__ import annotations

import pytest

from bridge.receive.streaming_fallback import PATIENCE, BrokenOff
from protocol.lsn import Lsn

AT, FLUSHED = Lsn(100), Lsn(500)


@pytest.fixture
def switched_off():
    broken_off = BrokenOff()
    for _ in range(PATIENCE):
        broken_off.failed("no such file", AT)
    assert broken_off.switches_off(lambda: FLUSHED)
    return broken_off


def test_the_same_error_at_one_position_thrice():
    broken_off = BrokenOff()
    for _ in range(PATIENCE):
        assert not broken_off.switches_off(lambda: FLUSHED)
        assert not broken_off.off
        broken_off.failed("no such file", AT)
    assert broken_off.switches_off(lambda: FLUSHED)
    assert broken_off.off
    assert not broken_off.switches_off(lambda: FLUSHED), "it is said once"


@pytest.mark.parametrize("others", [[("another", AT)], [("no such file", Lsn(101))]])
def test_other_errors_and_other_positions_begin_anew(others):
    """What has moved on may get past it by itself, as PostgreSQL's own subscriber does."""
    broken_off = BrokenOff()
    for message, lsn in [*[("no such file", AT)] * (PATIENCE - 1), *others, *[("no such file", AT)] * (PATIENCE - 1)]:
        broken_off.failed(message, lsn)
        assert not broken_off.switches_off(lambda: FLUSHED)


def test_on_again_when_the_wal_it_failed_in_is_behind(switched_off):
    assert not switched_off.switches_on(Lsn(499))
    assert switched_off.off
    assert switched_off.switches_on(FLUSHED)
    assert not switched_off.off
    assert not switched_off.switches_on(Lsn(600)), "it is said once"
    switched_off.failed("no such file", AT)
    assert not switched_off.switches_off(lambda: FLUSHED), "counted from the start"


def test_on_again_when_it_fails_without_as_well(switched_off):
    """Streaming was not why."""
    switched_off.failed("no such file", AT)
    assert not switched_off.off
    assert not switched_off.switches_off(lambda: FLUSHED)
