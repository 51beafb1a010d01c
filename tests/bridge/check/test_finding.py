"""The exit code of a check is that of its worst finding."""

import pytest

from pgbridge.bridge.check.finding import Level, exit_code, failed, failure, passed, warning
from pgbridge.bridge.runtime.errors import PublisherError

PASS, WARNING = passed("a", "fine"), warning("b", "hm", remedy="look")
FAILURE = failure("c", "no", remedy="mend", statement="SELECT 1;")


@pytest.mark.parametrize(
    ("findings", "code"),
    [([], 0), ([PASS], 0), ([PASS, WARNING], 1), ([FAILURE, PASS], 2), ([WARNING, FAILURE, WARNING], 2)],
)
def test_exit_code(findings, code):
    assert exit_code(findings) == code


def test_a_failure_has_the_words_of_the_error():
    found = failed("slot", PublisherError("it is gone", hint="make it"))
    assert (found.level, found.message, found.remedy) == (Level.FAILURE, "it is gone", "make it")
