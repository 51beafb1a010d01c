"""Fault points do nothing unless asked; the list of them is complete, so that tests can go through it."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from pgbridge.bridge.runtime import faults

SOURCES = Path(faults.__file__).parents[1]


@pytest.fixture
def restored(monkeypatch):
    """Whatever a test installs is gone after it."""
    monkeypatch.setattr(faults, "_action", faults._action)


def test_nothing_happens_by_default():
    """In a module as fresh as the daemon's: other tests may have installed something in this process's."""
    spec = importlib.util.spec_from_file_location("fresh_faults", faults.__file__)
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    assert fresh._action is fresh._nothing
    for point in fresh.FAULT_POINTS:
        fresh.reach(point)


@pytest.mark.usefixtures("restored")
def test_action_is_called_with_the_point():
    reached: list[str] = []
    faults.install(reached.append)
    for point in faults.FAULT_POINTS:
        faults.reach(point)
    assert reached == list(faults.FAULT_POINTS)


@pytest.mark.usefixtures("restored")
def test_action_may_fail_where_it_is_called():
    """So that a test can inject an error as well as a kill."""

    def fail(point: str) -> None:
        raise ConnectionError(point)

    faults.install(fail)
    with pytest.raises(ConnectionError, match="batch_begun"):
        faults.reach("batch_begun")


def test_every_point_stands_in_the_source():
    """Each name of the lists is reached somewhere, and no other: a misspelt one would never kill anything."""
    reached = {
        node.args[0].value
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "reach"
        and isinstance(node.args[0], ast.Constant)
    }
    points = [*faults.FAULT_POINTS, *faults.UNDO_POINTS, *faults.SCHEMA_POINTS, *faults.REFRESH_POINTS]
    points += [*faults.LARGE_POINTS, *faults.MAINTENANCE_POINTS, *faults.MAINTENANCE_UNDO_POINTS]
    points += [*faults.RECOVERY_POINTS, *faults.RANGED_COPY_POINTS]
    assert reached == set(points)
    assert len(reached) == len(points)
