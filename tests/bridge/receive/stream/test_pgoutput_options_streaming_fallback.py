"""A stream that fails again and again at one position goes without streaming until that WAL is applied."""

from __future__ import annotations

import pytest

from pgbridge.bridge.receive.stream.pgoutput_options import REPEATS, StreamingFallback
from pgbridge.protocol.lsn import Lsn

AT, FLUSHED = Lsn(100), Lsn(500)


@pytest.fixture
def active() -> StreamingFallback:
    fallback = StreamingFallback()
    for _ in range(REPEATS):
        fallback.failed("no such file", AT)
    assert fallback.begins(lambda: FLUSHED)
    return fallback


def test_the_same_error_at_one_position_thrice():
    fallback = StreamingFallback()
    for _ in range(REPEATS):
        assert not fallback.begins(lambda: FLUSHED)
        assert not fallback.active
        fallback.failed("no such file", AT)
    assert fallback.begins(lambda: FLUSHED)
    assert fallback.active
    assert not fallback.begins(lambda: FLUSHED), "it is said once"


def test_an_error_that_does_not_go_away_by_itself_is_not_waited_for():
    fallback = StreamingFallback()
    fallback.failed("division by zero", AT, lasting=True)
    assert fallback.begins(lambda: FLUSHED)
    fallback.failed("division by zero", AT, lasting=True)
    assert not fallback.begins(lambda: FLUSHED), "streaming was not why"


@pytest.mark.parametrize("others", [[("another", AT)], [("no such file", Lsn(101))]])
def test_other_errors_and_other_positions_begin_anew(others):
    """A stream that makes progress may get past the error by itself, as with PostgreSQL's own subscriber."""
    fallback = StreamingFallback()
    for message, lsn in [*[("no such file", AT)] * (REPEATS - 1), *others, *[("no such file", AT)] * (REPEATS - 1)]:
        fallback.failed(message, lsn)
        assert not fallback.begins(lambda: FLUSHED)


def test_on_again_when_the_wal_it_failed_in_is_behind(active):
    assert not active.ends(Lsn(499))
    assert active.active
    assert active.ends(FLUSHED)
    assert not active.active
    assert not active.ends(Lsn(600)), "it is said once"
    active.failed("no such file", AT)
    assert not active.begins(lambda: FLUSHED), "counted from the start"


def test_on_again_when_it_fails_without_as_well(active):
    """Streaming was not why."""
    active.failed("no such file", AT)
    assert not active.active
    assert not active.begins(lambda: FLUSHED)


def test_text_until_the_wal_that_cannot_be_read_in_binary_form_is_behind():
    fallback = StreamingFallback()
    assert fallback.needs_text(lambda: FLUSHED)
    assert fallback.text
    assert not fallback.needs_text(lambda: FLUSHED), "the stream is in text already"
    assert not fallback.ends(Lsn(499))
    assert fallback.ends(FLUSHED)
    assert not fallback.text
    assert not fallback.active
