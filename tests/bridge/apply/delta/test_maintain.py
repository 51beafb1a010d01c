"""An OPTIMIZE is undone only if it was committed, and if no other writer's rows would be lost."""

from __future__ import annotations

import pytest

from bridge.apply.delta.history import Commit
from bridge.apply.delta.maintain import is_committed
from bridge.errors import TargetError
from bridge.track.maintenance import OptimizeIntent

INTENT = OptimizeIntent("/lake/t1", 7)


@pytest.mark.parametrize(
    ("later", "committed"),
    [
        ([], False),
        ([Commit(8, "WRITE")], False),
        ([Commit(8, "OPTIMIZE")], True),
        ([Commit(9, "VACUUM END"), Commit(8, "OPTIMIZE")], True),
        ([Commit(9, "OPTIMIZE"), Commit(8, "OPTIMIZE")], True),
        ([Commit(9, "RESTORE", restored=7), Commit(8, "OPTIMIZE")], False),
    ],
)
def test_it_is_found_by_the_history(later, committed):
    assert is_committed(later, INTENT) is committed


def test_rows_of_others_are_not_lost():
    with pytest.raises(TargetError, match=r"version 9 \(WRITE\) after it"):
        is_committed([Commit(9, "WRITE"), Commit(8, "OPTIMIZE")], INTENT)
