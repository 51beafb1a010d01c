"""The run's own server, for benchmarks need its process id and its programs."""

from __future__ import annotations

import pytest


@pytest.fixture
def private(postgresql_server, monkeypatch):
    """The embedded server; skipped on one that belongs to others."""
    if postgresql_server.embedded is None:
        pytest.skip("benchmarks run on the private server only")
    monkeypatch.setattr("benchmarks.measure._REST_S", 0.0)
    return postgresql_server.embedded
