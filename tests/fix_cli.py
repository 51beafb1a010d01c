"""The command line under test: the console script's function, called in the test's folder."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import pytest

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.service import cli

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TWO = """
[subscription.shop]
connection = "host=/nonexistent"
publications = ["shop_pub"]
warehouse = "./lake"
[subscription.hr]
connection = "host=/nonexistent"
publications = ["hr_pub"]
warehouse = "./hr"
"""
"""A configuration of the subscriptions `shop` and `hr`, whose servers do not answer."""


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _no_configuration_file():
    """A command that was run in this process has remedies name its file."""
    yield
    remedies.use(remedies.DEFAULT_FILE)


@pytest.fixture
def pgbridge(monkeypatch, capsys, tmp_path) -> Callable[..., Outcome]:
    """Runs a command in the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["pgbridge", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def two(pgbridge, tmp_path):
    """Runs a command in the test's folder, with the configuration `TWO` in it."""
    (tmp_path / "pgbridge.toml").write_text(TWO)
    return pgbridge


def catalog_of(folder: Path) -> closing[Catalog]:
    """The catalog in the folder of a configuration."""
    return closing(Catalog(catalog_path(folder / "state")))
