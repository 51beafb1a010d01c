"""How long a worker waits between two attempts."""

from __future__ import annotations

import random

_FIRST_PAUSE_S = 0.5


def backoff_s(failures: int, longest_s: float) -> float:
    """Return the pause after so many failures in a row: it doubles with each, up to `longest_s`."""
    return min(longest_s, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))


def jittered_s(pause_s: float) -> float:
    """Return a random pause, up to a quarter shorter or longer: so workers do not all try again at the same time."""
    return pause_s * random.uniform(0.75, 1.25)  # noqa: S311 - nothing secret
