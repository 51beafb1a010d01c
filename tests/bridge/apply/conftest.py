"""The fixtures of what applies batches: a catalog, and tables, which are Delta's for a test that has `spark`."""

from __future__ import annotations

import pytest

from tests.bridge import applying
from tests.bridge.apply.made_targets import empty_target
from tests.bridge.applying import catalog, merging, parts, scratch_base

__all__ = ["catalog", "merging", "parts", "scratch_base"]


@pytest.fixture
def target(request, tmp_path):
    return empty_target(request.getfixturevalue("spark" if "spark" in request.fixturenames else "tables"), tmp_path)


@pytest.fixture
def strict(request, tmp_path):
    """Another table, which takes small ids only."""
    if "spark" in request.fixturenames:
        return applying.strict_target(request.getfixturevalue("spark"), tmp_path)
    tables = request.getfixturevalue("tables")
    made = empty_target(tables, tmp_path, "strict")
    tables.checks[made.path] = lambda row: row["id"] < 5
    return made
