"""A request to read the configuration file again is answered once, and its answer is read once."""

from __future__ import annotations

import time

from pgbridge.bridge.catalog.notes import Outcome, answer, ask, asked, take_answer

DONE = Outcome(1, ('subscription "shop" changed: enabled', "state_dir not changed"))


def test_requests_and_their_answers(catalog):
    assert asked(catalog) is None
    first, second = ask(catalog), ask(catalog)
    assert asked(catalog) == second > first
    third = ask(catalog)
    answer(catalog, second, DONE)
    assert asked(catalog) == third
    assert take_answer(catalog, third) is None
    assert take_answer(catalog, first) == DONE
    assert take_answer(catalog, first) is None
    answer(catalog, third, Outcome(0, ()))
    assert (take_answer(catalog, second), take_answer(catalog, third)) == (DONE, Outcome(0, ()))
    assert catalog.rows("SELECT * FROM reload") == []


def test_an_answer_that_nobody_reads_is_deleted_later(catalog):
    lost = ask(catalog)
    answer(catalog, lost, DONE, now_s=lambda: time.time() - 3600)
    other = ask(catalog)
    answer(catalog, other, DONE)
    assert take_answer(catalog, lost) is None
    assert take_answer(catalog, other) == DONE
