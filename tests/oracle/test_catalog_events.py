"""Catalog events at random, between and inside transactions, under lag: the bridge is equal to a native subscriber.

Or it has said what may differ, and the command that it printed helps. `python -m tests.oracle.catalog_events` runs
seeds by hand, and prints what a seed does.
"""

from __future__ import annotations

import pytest

from tests.oracle.catalog_events_bridge import Beside

SEEDS = (1, 2, 4)
"""Those that each run of the tests has: cheap ones, which together have every kind of event."""


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 201) if seed not in SEEDS)]
)
def test_seed(spark, postgresql_server, tmp_path, seed):
    beside = Beside(spark, postgresql_server, tmp_path, seed)
    try:
        outcome = beside.run()
    finally:
        beside.close()
    assert not outcome.failures, str(outcome)
