"""Catalog events at random, between and inside transactions, under lag: the bridge is equal to a native subscriber.

Or it has said what may differ, and the command that it printed helps. `python -m tests.oracle.catalog_events` runs
seeds by hand, and prints what a seed does.
"""

from __future__ import annotations

import pytest

from tests.oracle.catalog_events.beside import outcome_of
from tests.oracle.memory_tables import in_memory

SEEDS = (1, 3, 4, 5, 7, 8, 9, 12, 14, 16, 17, 18, 19, 20, 21, 22, 24, 26, 27, 30)
"""Those of each run of the tests; the others take long, and are for `make soak`."""
OTHERS = [pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 201) if seed not in SEEDS]


@pytest.mark.parametrize("seed", [*SEEDS, *OTHERS])
def test_seed(postgresql_server, tmp_path, seed):
    """The tables are in memory: what Delta makes of changes is tested elsewhere, and would take minutes here."""
    with in_memory() as tables:
        outcome = outcome_of(tables, postgresql_server, tmp_path, seed)
    assert not outcome.failures, str(outcome)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_seed_with_delta_tables(spark, postgresql_server, tmp_path, seed):
    outcome = outcome_of(spark, postgresql_server, tmp_path, seed)
    assert not outcome.failures, str(outcome)
