"""The README names what there is: every command, every configuration key, every folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from bridge.cli import app
from bridge.config import Subscription
from bridge.errors import BridgeError

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", sorted(get_command(app).commands))  # type: ignore[attr-defined]  # a group
def test_readme_names_every_command(command):
    assert f"pgbridge {command}" in README or f"`{command} SUB`" in README


@pytest.mark.parametrize("key", sorted(Subscription.model_fields.keys() - {"name"}))
def test_readme_names_every_key(key):
    assert re.search(rf"`{key}\b", README)


@pytest.mark.parametrize("target", ["demo", "test", "bench", "fuzz"])
def test_readme_and_makefile_have_the_commands(target):
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_architecture_names_every_folder():
    folders = {f"{path.parent.relative_to(ROOT)}/" for path in (ROOT / "bridge").glob("*/__init__.py")}
    assert {
        folder
        for folder in folders | {"benchmarks/", "fuzz/", "protocol/", "sql/", "tests/"}
        if f"`{folder}`" not in ARCHITECTURE
    } == set()


def test_errors_have_one_root():
    from bridge import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(issubclass(kind, BridgeError) for kind in kinds)
