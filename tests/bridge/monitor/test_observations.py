"""What streams tell is counted, bounded, and gives the lag that users ask for.

The oldest outstanding commit time is known, within a bound that is bounded itself.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from pgbridge.bridge.monitor import observations as module
from pgbridge.bridge.monitor.observations import Observations, Outstanding, epoch_s
from pgbridge.bridge.runtime.observer import BatchReport
from pgbridge.protocol.lsn import Lsn

EPOCH_S = 946_684_800


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_s = float(EPOCH_S + 100)

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def told(clock):
    return Observations(clock)


def us(seconds: float) -> int:
    """A commit time so many seconds after the beginning of 2000."""
    return int(seconds * 1e6)


def test_commit_times():
    assert epoch_s(us(1.5)) == EPOCH_S + 1.5


def test_the_lag_is_that_of_the_oldest_received_commit(told, clock):
    assert told.lag_s() is None  # no stream: what waits on the server is not known
    told.stream_begins(Lsn(5), Lsn(1000))
    assert told.lag_s() == 0
    told.received(us(90), Lsn(10))
    told.received(us(95), Lsn(20))
    assert told.lag_s() == 10
    told.durable(Lsn(10))
    assert told.lag_s() == 5
    clock.now_s += 1
    assert told.lag_s() == 6
    told.durable(Lsn(25))
    assert told.lag_s() == 0


def test_the_lag_grows(told, clock):
    """The stream ends, and what it had received is still outstanding; the next one receives it again."""
    told.stream_begins(Lsn(5), Lsn(1000))
    told.received(us(99), Lsn(10))
    told.stream_ended()
    clock.now_s += 60
    assert told.lag_s() == 61
    told.stream_begins(Lsn(5), Lsn(1000))
    assert told.lag_s() == 61
    told.received(us(99), Lsn(10))
    told.durable(Lsn(10))
    assert told.lag_s() == 0
    told.stream_ended()
    assert told.lag_s() is None


def test_a_message_that_nobody_committed_has_no_lag(told):
    """A logical message outside of transactions has no commit time."""
    told.stream_begins(Lsn(5), Lsn(1000))
    told.received(0, Lsn(10))
    assert told.lag_s() == 0


def test_a_servers_clock_ahead_gives_no_negative_lag(told):
    told.stream_begins(Lsn(5), Lsn(1000))
    told.received(us(200), Lsn(10))
    assert told.lag_s() == 0


def test_samples_are_ten_seconds_apart_and_an_hour_in_all(told, clock):
    told.stream_begins(Lsn(5), Lsn(1000))
    for step in range(10_000):
        clock.now_s = EPOCH_S + step
        told.sample(step)
    lags = told.as_json()["lag_history"]
    assert len(lags) == 360
    assert {round(b[0] - a[0]) for a, b in pairwise(lags)} == {10}
    assert lags[-1][1] == 9990


def test_batches_are_counted_and_bounded(told):
    seconds = {"form": 0.01, "commit": 0.7, "flush": 0.2, "record": 400.0}
    for number in range(200):
        told.applied(BatchReport(Lsn(number), us(1), 3, 100, 2, seconds))
    assert (told.transactions, told.rows, told.batches_applied) == (600, 20_000, 200)
    assert [batch["end_lsn"] for batch in told.as_json()["batches"]] == [str(Lsn(n)) for n in range(150, 200)]
    assert sampled(told.histograms["commit"])["0.5"] == 0
    assert sampled(told.histograms["commit"])["1.0"] == 200
    assert sampled(told.histograms["record"])["300.0"] == 0
    assert sampled(told.histograms["record"])["sum"] == 80_000
    rows = sampled(told.batch_rows)
    assert (rows["10.0"], rows["100.0"], rows["+Inf"]) == (0, 200, 200)


def sampled(histogram):
    """The counts by their upper limits, and the sum."""
    (metric,) = histogram.collect()
    return {sample.labels.get("le", sample.name.rpartition("_")[2]): sample.value for sample in metric.samples}


def begun(lsn: int = 100) -> Outstanding:
    made = Outstanding()
    made.stream_begins(Lsn(lsn), Lsn(10**9))
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
    told.stream_begins(Lsn(110), Lsn(1000))
    assert told.oldest_s == 2.0
    told.received(2.0, Lsn(120))
    told.received(3.0, Lsn(130))
    told.durable(Lsn(120))
    assert told.oldest_s == 3.0


def test_what_the_server_has_lost_is_not_outstanding():
    """A standby that lagged was promoted: what it does not have never comes again."""
    told = begun()
    told.received(1.0, Lsn(110))
    told.received(2.0, Lsn(120))
    told.stream_begins(Lsn(100), Lsn(115))
    told.durable(Lsn(105))
    assert told.oldest_s == 1.0
    told.received(7.0, Lsn(115))
    told.durable(Lsn(112))
    assert told.oldest_s == 7.0
    told.stream_begins(Lsn(112), Lsn(112))
    assert told.oldest_s is None


def test_a_stream_that_begins_elsewhere_keeps_nothing():
    """After a resync from another server, its lower LSNs would never reach those of the first."""
    told = begun()
    told.received(1.0, Lsn(110))
    told.stream_begins(Lsn(50), Lsn(1000))
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
