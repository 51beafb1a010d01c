"""Runs that the host disturbed, by giving this machine's cores to others, are made again.

The rate of the machine is wanted, not that of the share which others leave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_STOLEN_SHARE = 0.1
_TRIES = 4
"""How often a run is tried, if the host steals more than `_STOLEN_SHARE` of its time."""


class Disturbable(Protocol):
    """A run that knows how much time was stolen from it."""

    @property
    def seconds(self) -> float:
        """Wall clock."""

    @property
    def stolen_s(self) -> float:
        """CPU time of this machine that the host gave to others."""


R = TypeVar("R", bound=Disturbable)
V = TypeVar("V")


def stolen_s() -> float:
    """Return the stolen CPU time since the machine's start, of all cores; 0 if it is not counted."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def busy_s() -> float:
    """Return the CPU time that all processes of this machine have used since its start."""
    times = psutil.cpu_times()
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq")))


def is_disturbed(run: Disturbable) -> bool:
    """Whether the host stole more of a run's time than can be neglected."""
    return run.stolen_s > _STOLEN_SHARE * run.seconds


def undisturbed(make: Callable[[], R], left_out: list[R]) -> R:
    """Make a run until it is not disturbed, but not for ever: the last one counts, whatever it is.

    Args:
        make: Makes a run.
        left_out: The disturbed ones are added here.
    """
    for _ in range(_TRIES - 1):
        run = make()
        if not is_disturbed(run):
            return run
        left_out.append(run)
    return make()


def in_turn(variants: Sequence[V], number: int) -> list[V]:
    """Return the variants in a round's order: they take turns in being first."""
    first = number % len(variants)
    return [*variants[first:], *variants[:first]]
