"""`pgbridge reload` asks the daemon and prints its answer; without one it says when the file takes effect."""

from __future__ import annotations

import threading
import time

import pytest

from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.catalog.notes import Outcome, answer, asked
from pgbridge.bridge.commands import alter as command
from tests.fix_cli import catalog_of


def answering(folder, outcome: Outcome) -> threading.Thread:
    """A daemon's part: waits for a request and answers it."""

    def run() -> None:
        with catalog_of(folder) as catalog:
            while (number := asked(catalog)) is None:
                time.sleep(0.01)
            answer(catalog, number, outcome)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_without_a_daemon(two, tmp_path):
    line = f"no daemon runs on {tmp_path / 'state'}: this takes effect at the daemon's next start\n"
    assert two("reload") == (0, line, "")
    assert not (tmp_path / "state").exists(), "it leaves nothing behind"


def test_a_wrong_file_is_told_before_the_daemon_is_asked(two, tmp_path):
    (tmp_path / "pgbridge.toml").write_text("[subscription.shop]\n")
    code, out, err = two("reload")
    assert (code, out) == (2, "")
    assert err.count("this key is required") == 3


@pytest.mark.parametrize(
    ("outcome", "printed"),
    [
        (Outcome(0, ("a", "b")), (0, "a\nb\n", "")),
        (Outcome(1, ("a",)), (1, "a\n", "")),
        (Outcome(2, ("f.toml: x", "f.toml: y")), (2, "", "pgbridge: f.toml: x\nf.toml: y\n")),
    ],
)
def test_the_answer_is_printed(two, tmp_path, outcome, printed):
    with locked(tmp_path / "state"):
        thread = answering(tmp_path, outcome)
        assert two("reload") == printed
        thread.join()


def test_a_daemon_that_does_not_answer_yet(two, tmp_path, monkeypatch):
    """The request stays, so that it is taken up as soon as the daemon can."""
    monkeypatch.setattr(command, "_POLL_S", 0.01)
    monkeypatch.setattr(command, "_ANSWER_PATIENCE_S", 0.1)
    with locked(tmp_path / "state"):
        code, out, _ = two("reload")
        with catalog_of(tmp_path) as catalog:
            assert asked(catalog) is not None
    assert (code, out.partition(":")[0]) == (1, "the daemon has not answered yet")


def test_a_daemon_that_ends_meanwhile(two, tmp_path):
    lock = locked(tmp_path / "state")
    lock.__enter__()
    ended = threading.Timer(0.3, lock.__exit__, (None, None, None))
    ended.start()
    assert two("reload").out.startswith("no daemon runs on ")
    ended.join()
