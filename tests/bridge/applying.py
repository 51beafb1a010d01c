"""Fixtures of the rooms that apply batches: targets, a catalog, and a loop with scripted parts."""

from __future__ import annotations

import tempfile

import pytest

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.lake import source
from pgbridge.bridge.lake.commit import plan
from pgbridge.protocol.lsn import Lsn
from tests.bridge.apply.made_targets import delta_target, empty_target
from tests.bridge.apply.made_worker import Parts

AS_IN_PRODUCTION = frozenset(
    {"test_execute", "test_plan", "test_replace", "test_snapshot", "test_stream", "test_suspects"}
)
"""Tests of the way to write small tables anew, and of whole subscriptions."""


@pytest.fixture(autouse=True)
def merging(request, monkeypatch):
    """Small tables are merged into as large ones are."""
    if request.module.__name__.rpartition(".")[2] not in AS_IN_PRODUCTION:
        monkeypatch.setattr(plan, "replaceable", lambda _: False)


@pytest.fixture
def scratch_base(tmp_path, monkeypatch):
    """Where scratch folders are made: a folder of this test, with a name that a URI would encode."""
    base = tmp_path / "a b%20"
    base.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    source._folder.cache_clear()
    yield base
    source._folder.cache_clear()


@pytest.fixture
def target(spark, tmp_path):
    return empty_target(spark, tmp_path)


@pytest.fixture
def strict(spark, tmp_path):
    return strict_target(spark, tmp_path)


def strict_target(spark, folder):
    """Another table, which takes small ids only."""
    return delta_target(spark, folder, "strict", check="id < 5")


@pytest.fixture
def catalog(tmp_path):
    """A catalog with a subscription whose origin stands at 0/10."""
    catalog = Catalog(catalog_path(tmp_path / "state"))
    catalog.register("sub", enabled=True)
    catalog.create_origin("sub", Lsn(0x10), "inc", [])
    yield catalog
    catalog.close()


@pytest.fixture
def parts(tmp_path):
    """Parts at LSN 100."""
    made = Parts(tmp_path)
    yield made
    made.catalog.close()
