"""What is left to `make test-all` exists, and each run still has a case of what has several."""

from __future__ import annotations

import ast
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import fix_selection
from tests.nightly import EACH_RUN, LIST, MOST_S, nightly, slow

TESTS = Path(__file__).parent


class Item:
    """What stands for a collected test."""

    def __init__(self, nodeid, is_soaked):
        self.nodeid, self._is_soaked = nodeid, is_soaked

    def get_closest_marker(self, name):
        return name if name == "soak" and self._is_soaked else None


def functions(file):
    """The names of a file's tests."""
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", sorted({name.partition("::")[0] for name in nightly() | EACH_RUN}))
def test_what_is_listed_exists(name):
    listed = {entry.partition("::")[2] for entry in nightly() | EACH_RUN if entry.startswith(f"{name}::")}
    assert listed <= functions(TESTS / name)


def test_the_list_is_as_it_is_written():
    assert LIST.read_text().split() == sorted(nightly())
    assert not nightly() & EACH_RUN


def test_slow_is_what_takes_long_with_all_its_cases():
    cases = [
        ("tests.a.test_b", "test_long", MOST_S),
        ("tests.a.test_b", "test_short", MOST_S / 2),
        ("tests.a.test_b", "test_cases[1]", MOST_S / 2),
        ("tests.a.test_b", "test_cases[2]", MOST_S / 2),
        ("tests.simulation.test_seeds", "test_equal_or_refused[0]", 99.0),
    ]
    report = ET.Element("testsuite")
    for module, name, taken_s in cases:
        ET.SubElement(report, "testcase", classname=module, name=name, time=str(taken_s))
    assert slow(report) == ["a/test_b.py::test_cases", "a/test_b.py::test_long"]


def test_the_first_of_several_cases_is_in_each_run(monkeypatch):
    """A case that only `make soak` has is none of them."""
    monkeypatch.setattr(fix_selection, "nightly", lambda: {"a.py::test_one", "a.py::test_cases", "a.py::test_soaked"})
    soaked = {"tests/a.py::test_soaked[0]", "tests/a.py::test_cases[0]"}
    names = ["test_one", "test_quick", "test_cases[0]", "test_cases[1]", "test_cases[2]", "test_soaked[0]"]
    items: list[Any] = [Item(f"tests/a.py::{name}", f"tests/a.py::{name}" in soaked) for name in names]
    left = {item.nodeid.partition("::")[2] for item in fix_selection.nightly_of(items)}
    assert left == {"test_one", "test_cases[2]"}


def test_a_run_of_some_folders_is_not_a_whole_one(pytestconfig):
    def run(*arguments):
        return SimpleNamespace(args=list(arguments), getini=pytestconfig.getini)

    whole: Any = run("tests")
    some: Any = run("tests/oracle")
    assert fix_selection.is_whole(whole)
    assert not fix_selection.is_whole(some)
