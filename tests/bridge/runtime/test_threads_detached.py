"""The answer, or any error, is there where it is taken; the end of the process waits for neither."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from pgbridge.bridge.runtime.threads import detached

ENDLESS = """
import threading
from pgbridge.bridge.runtime.threads import detached
detached(threading.Event().wait, "endless")
"""


def test_the_answer_comes_from_another_thread():
    assert detached(lambda: threading.current_thread().name, "asker").result(20) == "asker"


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit])
def test_an_error_is_raised_where_the_answer_is_taken(kind):
    def fail() -> None:
        raise kind

    with pytest.raises(kind):
        detached(fail, "failing").result(20)


def test_the_end_of_the_process_does_not_wait():
    assert subprocess.run([sys.executable, "-c", ENDLESS], timeout=60, check=False).returncode == 0
