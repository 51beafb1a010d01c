"""A `with` block closes its object, also after an error."""

from __future__ import annotations

import pytest

from pgbridge.bridge.runtime.threads import Closing


class Door(Closing):
    """Counts how often it was closed."""

    closed: int = 0

    def close(self) -> None:
        """Count."""
        self.closed += 1


def test_closed_at_the_end():
    door = Door()
    with door as entered:
        assert (entered, entered.closed) == (door, 0)
    assert door.closed == 1


def test_closed_after_an_error():
    door = Door()
    with pytest.raises(ValueError, match="in between"), door:
        raise ValueError("in between")
    assert door.closed == 1
