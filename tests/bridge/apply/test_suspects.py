"""What was under way when the JVM died is tried alone; what ends it alone is found, and the rest goes on."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
from py4j.protocol import Py4JError

from pgbridge.bridge.apply.suspects import Suspects, Work
from pgbridge.bridge.runtime.errors import EndsSpark, SyncError
from pgbridge.bridge.spark.driver import Local
from pgbridge.protocol.lsn import Lsn

BIG, SMALL = Work("shop", "copy", "public.big"), Work("shop", "copy", "public.small")


class Killed(ConnectionError):
    """What a work ends by when the JVM dies in its course."""


def fail() -> None:
    raise Killed


@pytest.fixture
def jvm(monkeypatch):
    """A registry with a clock, and a JVM that can be dead."""
    monkeypatch.setattr("pgbridge.bridge.apply.suspects._POLL_S", 0.01)
    return Jvm()


class Jvm(Local):
    """A JVM that dies as told, with the registry of what is under way in it."""

    def __init__(self) -> None:
        super().__init__("local[2]")
        self.now_s = 1000.0
        self.reason: str | None = None
        self.suspects = Suspects(lambda: self.now_s)
        self.suspects.jvm_started(self)

    def lost(self, error: BaseException | None = None) -> str | None:
        """How it has ended."""
        return self.reason

    def dies_during(self, *works: Work, after_s: float = 1.0) -> list[str]:
        """All of them are under way when it dies, and another one is started."""
        with suppress(Killed), ExitStack() as under_way:
            for work in works:
                under_way.enter_context(self.suspects.under_way(work))
            self.now_s += after_s
            under_way.callback(fail)
        said = self.suspects.jvm_died("it ended with exit code 52")
        self.suspects.jvm_started(self)
        return said

    def begins(self, work: Work) -> threading.Event:
        """Begin a work in a thread; the event is set when it is under way."""
        begun = threading.Event()

        def run() -> None:
            with self.suspects.under_way(work):
                begun.set()

        threading.Thread(target=run, daemon=True).start()
        return begun

    def tries(self, work: Work) -> None:
        with self.suspects.under_way(work):
            pass


def batch(start: int, end: int, transactions: int = 1) -> Work:
    return Work("shop", "apply", None, Lsn(start), Lsn(end), transactions)


def test_what_was_under_way_is_suspected_and_what_comes_through_is_not_any_more(jvm):
    """Both copies and a batch; the one that ends the JVM alone twice is refused, and names its size and a way on."""
    jvm.tries(Work("other", "copy", "public.t"))
    said = jvm.suspects
    assert jvm.dies_during(SMALL, batch(5, 9, 3), BIG) == [str(BIG), str(batch(5, 9, 3)), str(SMALL)]
    jvm.tries(SMALL)
    jvm.tries(batch(5, 9, 3))
    jvm.dies_during(BIG)
    jvm.dies_during(BIG)
    with pytest.raises(EndsSpark) as caught, said.under_way(BIG, describe=lambda: "its largest row has 50 MB"):
        pytest.fail("it is not begun")
    assert caught.value.message == (
        'the copy of table "public.big" of subscription "shop" has ended Spark\'s JVM 2 times alone '
        "(it ended with exit code 52), and is not tried any more; its largest row has 50 MB"
    )
    assert caught.value.hint.endswith("as it is: pgbridge refresh shop --resync public.big")
    jvm.tries(SMALL)
    said.forget("shop")
    jvm.tries(BIG)


def test_others_wait_for_a_suspect_and_it_for_them(jvm):
    """It is alone, so that nothing else can be to blame, and nothing else dies with it."""
    jvm.dies_during(BIG, SMALL)
    waiting = jvm.begins(Work("other", "copy", "public.t"))
    assert not waiting.wait(0.1), "suspects come first"
    with jvm.suspects.under_way(BIG):
        second = jvm.begins(SMALL)
        assert not second.wait(0.1)
        assert not waiting.is_set()
    assert second.wait(60)
    assert waiting.wait(60)


def test_what_a_suspect_needs_before_it_does_not_wait_for_it(jvm):
    """A batch is applied once its transactions are formed; the other subscriptions wait for both."""
    jvm.dies_during(batch(5, 9))
    forming = replace(batch(5, 9), step="form")
    other = jvm.begins(replace(forming, name="other"))
    assert jvm.begins(forming).wait(60)
    assert not other.wait(0.1)
    jvm.tries(batch(5, 9))
    assert other.wait(60)


def test_a_suspect_that_does_not_come_is_waited_for_no_longer_than_a_minute(jvm):
    """Its server may be away. Nor is one that takes long: others then join it."""
    jvm.dies_during(BIG)
    waiting = jvm.begins(SMALL)
    assert not waiting.wait(0.1)
    jvm.now_s += 61
    assert waiting.wait(60)
    with jvm.suspects.under_way(BIG):
        waiting = jvm.begins(SMALL)
        assert not waiting.wait(0.1)
        jvm.now_s += 121
        assert waiting.wait(60)
    jvm.dies_during(BIG, after_s=1000)
    with jvm.suspects.under_way(BIG):
        waiting = jvm.begins(SMALL)
        jvm.now_s += 1900
        assert waiting.wait(60)


def test_a_copy_that_takes_too_long_to_be_alone_is_found_too(jvm):
    for _ in range(8):
        with suppress(Killed), jvm.suspects.under_way(BIG):
            jvm.now_s += 4000
            jvm.tries(SMALL)
            fail()
        jvm.suspects.jvm_died("it was killed by SIGKILL")
        jvm.suspects.jvm_started(jvm)
    with pytest.raises(EndsSpark, match="8 times"):
        jvm.tries(BIG)


def test_a_batch_that_ends_the_jvm_is_divided_until_its_transaction_is_alone(jvm):
    """Then that transaction is refused; those before it go on, and after it nothing is suspected."""
    most = jvm.suspects.most_transactions
    jvm.dies_during(batch(0, 1000, 1000), BIG)
    jvm.tries(BIG)
    assert most("shop", Lsn(0)) is not None, "it is tried alone, so nothing joins it"
    assert most("other", Lsn(0)) is None
    jvm.dies_during(batch(0, 1000, 1000))
    assert most("shop", Lsn(0)) == 62
    jvm.tries(batch(0, 62, 62))
    jvm.dies_during(batch(62, 124, 62))
    assert most("shop", Lsn(62)) == 3
    jvm.dies_during(batch(62, 65, 3))
    assert most("shop", Lsn(62)) == 1
    jvm.tries(batch(62, 63))
    for _ in range(2):
        jvm.dies_during(batch(63, 64))
    with pytest.raises(EndsSpark, match=r'the transaction of subscription "shop" from 0/3F to 0/40 has ended'):
        jvm.tries(batch(63, 64))
    assert most("shop", Lsn(64)) in {None, 1}
    jvm.tries(batch(64, 65))


def test_a_death_of_others_is_not_blamed_on_what_comes_after_it(jvm):
    """A worker that has not noticed yet begins nothing."""
    jvm.reason = "it was killed by SIGKILL"
    with pytest.raises(ConnectionError):
        jvm.tries(BIG)
    assert jvm.suspects.jvm_died("it was killed by SIGKILL") == []


def test_a_process_that_stops_waits_for_none(jvm):
    jvm.dies_during(BIG)
    waiting = jvm.begins(SMALL)
    assert not waiting.wait(0.1)
    jvm.suspects.stop_waiting()
    assert waiting.wait(60)


def test_an_error_long_before_is_no_suspect(jvm):
    with pytest.raises(Killed), jvm.suspects.under_way(BIG):
        raise Killed
    jvm.now_s += 61
    assert jvm.suspects.jvm_died("it was killed by SIGKILL") == []


def test_the_worker_beats_while_it_waits(jvm):
    """Or systemd would take it for one that hangs."""
    jvm.dies_during(BIG)
    beats: list[float] = []

    def beat() -> None:
        beats.append(time.monotonic())
        jvm.now_s += 30

    with jvm.suspects.under_way(SMALL, beat=beat):
        assert len(beats) >= 2


def test_an_error_of_the_server_or_of_a_value_is_no_suspect(jvm):
    """It would be tried alone first, and others would wait for it, though it has a pause of its own."""
    with suppress(SyncError), jvm.suspects.under_way(SMALL):
        raise SyncError("permission denied")
    with suppress(SyncError), jvm.suspects.under_way(BIG):
        raise SyncError("java.lang.NullPointerException") from Py4JError("java.lang.NullPointerException")
    assert jvm.suspects.jvm_died("it ended with exit code 52") == [str(BIG)]


def test_a_copy_is_the_same_by_whichever_worker(jvm):
    """A table that the subscription could not copy is left to its tablesync worker, which must not begin anew."""
    for _ in range(3):
        jvm.dies_during(BIG)
    with pytest.raises(EndsSpark):
        jvm.tries(Work("shop:sync", "copy", "public.big"))
    jvm.tries(Work("other", "copy", "public.big"))
