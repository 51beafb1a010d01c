"""Pauses grow up to the longest one, and differ from worker to worker."""

from __future__ import annotations

import pytest

from pgbridge.bridge.runtime.threads import backoff_s, jittered_s


@pytest.mark.parametrize(("failures", "pause_s"), [(1, 0.5), (2, 1.0), (3, 2.0), (8, 60.0), (10**6, 60.0)])
def test_pauses_grow(failures, pause_s):
    assert backoff_s(failures, 60.0) == pause_s


def test_pauses_differ():
    pauses = {jittered_s(8.0) for _ in range(100)}
    assert len(pauses) > 1
    assert all(6.0 <= pause <= 10.0 for pause in pauses)
