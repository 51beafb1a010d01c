"""The soft limit is raised to the hard one, within reason; never lowered."""

from __future__ import annotations

import resource

import pytest

from pgbridge.bridge.runtime import process

ANY = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch):
    """Stands for the process's limits, which are not changed."""
    held: dict[str, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "getrlimit", lambda _: held["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: held.update(now=new))
    return held


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 4096), (4096, 4096)),
        ((1024, 524288), (65536, 524288)),
        ((1024, ANY), (65536, ANY)),
        ((4096, 4096), (4096, 4096)),
        ((200000, 524288), (200000, 524288)),
        ((ANY, ANY), (ANY, ANY)),
    ],
)
def test_the_limit_is_raised(limits, before, after):
    limits["now"] = before
    process.raise_limit()
    assert limits["now"] == after


def test_a_sandbox_may_refuse(limits, monkeypatch):
    def refuse(*_):
        raise PermissionError

    limits["now"] = (1024, 4096)
    monkeypatch.setattr(resource, "setrlimit", refuse)
    process.raise_limit()
    assert limits["now"] == (1024, 4096)


def test_what_is_allowed_is_the_hard_limit(limits):
    limits["now"] = (1024, 4096)
    assert process.limit() == 4096
    limits["now"] = (1024, ANY)
    assert process.limit() is None


def test_more_subscriptions_need_more():
    assert process.needed(1) < 1024 < process.needed(200) < 4096
