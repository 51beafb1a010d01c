"""A publication and a slot, and readers of it as Spark makes them, without Spark."""

from __future__ import annotations

import pytest

from tests.bridge.source.without_spark import Source


@pytest.fixture
def source(publisher):
    found = Source(publisher)
    yield found
    found.close()
