"""The oldest outstanding commit time is known, within a bound that is bounded itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.monitor import outstanding as module
from bridge.monitor.outstanding import Outstanding
from protocol.lsn import Lsn


def begun(lsn: int = 100) -> Outstanding:
    made = Outstanding()
    made.stream_begins(Lsn(lsn))
    return made


def test_the_oldest_until_it_is_durable():
    told = begun()
    assert told.oldest_s is None
    for number in (1, 2, 3):
        told.received(float(number), Lsn(100 + number))
    assert told.oldest_s == 1.0
    told.durable(Lsn(102))
    assert told.oldest_s == 3.0
    told.durable(Lsn(103))
    assert told.oldest_s is None


def test_a_stream_that_begins_again_keeps_what_is_outstanding():
    """What it sends again is not counted again."""
    told = begun()
    told.received(1.0, Lsn(110))
    told.received(2.0, Lsn(120))
    told.durable(Lsn(110))
    told.stream_begins(Lsn(110))
    assert told.oldest_s == 2.0
    told.received(2.0, Lsn(120))
    told.received(3.0, Lsn(130))
    told.durable(Lsn(120))
    assert told.oldest_s == 3.0


def test_a_stream_that_begins_elsewhere_keeps_nothing():
    """After a resync from another server, its lower LSNs would never reach those of the first."""
    told = begun()
    told.received(1.0, Lsn(110))
    told.stream_begins(Lsn(50))
    assert told.oldest_s is None
    told.received(2.0, Lsn(60))
    assert told.oldest_s == 2.0


@given(
    st.lists(st.tuples(st.floats(0, 2, allow_nan=False), st.integers(1, 9)), max_size=200),
    st.integers(0, 2_000),
)
def test_never_too_young_and_rarely_too_old(steps, durable):
    """Against a list of all: the answer is at most the resolution older than the truth, however commits are spaced."""
    told, times, lsn, now_s = begun(), [], 100, 0.0
    for wait_s, length in steps:
        now_s, lsn = now_s + wait_s, lsn + length
        told.received(now_s, Lsn(lsn))
        times.append((now_s, lsn))
    told.durable(Lsn(100 + durable))
    left = [time_s for time_s, end in times if end > 100 + durable]
    if not left:
        assert told.oldest_s is None
    else:
        assert told.oldest_s is not None
        assert min(left) - module._RESOLUTION_S <= told.oldest_s <= min(left)


def test_a_day_of_transactions_takes_little_memory():
    told = begun(0)
    for second in range(86_400):
        told.received(float(second), Lsn(second + 1))
    assert len(told._entries) <= module._MOST
    told.durable(Lsn(43_200))
    assert told.oldest_s is not None
    assert 43_200 - 60 <= told.oldest_s <= 43_200
    told.durable(Lsn(86_400))
    assert not told._entries
    assert told._resolution_s == module._RESOLUTION_S
