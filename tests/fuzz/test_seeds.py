"""The seeds are what servers sent: all targets take them, and the decoders take most."""

from __future__ import annotations

import pytest

from fuzz import targets
from fuzz.seeds import seeds
from fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_keep_the_promise(name):
    found = list(seeds(name))
    assert len(found) > 50
    for seed in found:
        TARGETS[name](seed)


def test_rows_of_the_seeds_are_decoded(monkeypatch):
    """Seeds that no decoder accepts would be a poor start."""
    taken: list[None] = []
    strictly = targets._strictly
    monkeypatch.setattr(
        targets, "_strictly", lambda data, count, *, in_stream: taken.append(strictly(data, count, in_stream=in_stream))
    )
    for seed in seeds("columns"):
        targets.columns(seed)
    assert len(taken) > 100
