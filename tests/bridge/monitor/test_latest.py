"""The last answer is there at once, whatever becomes of the next one."""

from __future__ import annotations

import threading

from bridge.monitor.latest import Latest


def test_a_value_grows_old():
    now_s = [100.0]
    latest = Latest(lambda: 7, now_s=lambda: now_s[0])
    assert latest.value() is None
    latest.look()
    now_s[0] += 30
    assert latest.value() == 7
    now_s[0] += 1
    assert latest.value() is None


def test_an_error_is_no_value():
    answers = [7]
    latest = Latest(answers.pop)
    latest.look()
    assert latest.value() == 7
    latest.look()
    assert latest.value() is None


def test_an_answer_that_does_not_come_holds_up_neither_readers_nor_the_end():
    asked, never = threading.Event(), threading.Event()

    def ask() -> int:
        asked.set()
        never.wait(60)
        return 7

    with Latest(ask, interval_s=0) as latest:
        latest.start()
        assert asked.wait(10)
        assert latest.value() is None
    never.set()


def test_it_asks_until_it_is_closed():
    enough, count = threading.Event(), [0]

    def ask() -> int:
        count[0] += 1
        if count[0] == 3:
            enough.set()
        return count[0]

    with Latest(ask, interval_s=0) as latest:
        latest.start()
        assert enough.wait(10)
    latest._thread.join(10)
    assert not latest._thread.is_alive()
    assert latest.value() == count[0]
