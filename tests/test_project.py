"""The files around the code agree: packaging, CI, the container, the changelog, the editor."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import tomllib
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgbridge.bridge import runtime
from pgbridge.bridge.demo.server import DEFAULT_SETTINGS
from tests.fix_postgres import TEST_SETTINGS

ROOT = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
POSTGRES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"][
    "postgres"
]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
TARGETS = (re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE) or [""])[0].split()

ENTRIES: list[dict[str, Any]] = WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["include"]
PYTHONS = sorted(
    (
        classifier.rpartition(" ")[2]
        for classifier in PYPROJECT["project"]["classifiers"]
        if classifier.startswith("Programming Language :: Python :: 3.")
    ),
    key=lambda version: int(version.partition(".")[2]),
)
NO_NAMES = {"found", "one", "some"}
MAX_LINE = int(PYPROJECT["tool"]["ruff"]["line-length"])


def described(value: str | int | bool) -> str:
    """A setting's value as an option of `postgres` has it."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def files() -> list[Path]:
    """The text files that git knows, without recordings, the output of benchmarks, and docs/."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    left_out = ("tests/vectors/pg", "benchmarks/reports/", "LICENSE", "docs/")
    names = [name for name in listed.stdout.split("\0") if name and not name.startswith(left_out)]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def test_ci_runs_every_python_of_the_package():
    assert sorted(entry["python"] for entry in ENTRIES if entry.keys().isdisjoint({"postgresql", "spark"})) == PYTHONS
    assert PYPROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{PYTHONS[0].replace('.', '')}"
    assert {entry["python"] for entry in ENTRIES} <= set(PYTHONS)


def test_ci_runs_every_server_that_the_tests_are_for():
    servers = [int(entry["postgresql"]) for entry in ENTRIES if "postgresql" in entry]
    readme = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    promised = re.search(r"another server, PostgreSQL (\d+) to\s+(\d+)", readme)
    assert promised is not None
    assert servers == list(range(int(promised[1]), int(promised[2]) + 1))
    assert POSTGRES["image"] == f"postgres:${{POSTGRES_VERSION:-{servers[-1]}}}"


def test_ci_is_bounded_and_may_only_read():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert WORKFLOW["concurrency"]["group"]
    assert all(job["timeout-minutes"] for job in WORKFLOW["jobs"].values())


def test_ci_names_steps_of_the_matrix_and_commands_that_are_there():
    steps = WORKFLOW["jobs"]["test"]["steps"]
    for job in WORKFLOW["jobs"].values():
        keys = {key for entry in job.get("strategy", {"matrix": {"include": []}})["matrix"]["include"] for key in entry}
        assert set(re.findall(r"matrix\.(\w+)", str(job))) == keys
    commands = [line.strip() for step in steps for line in step.get("run", "").splitlines()]
    assert {line.split()[1] for line in commands if line.startswith("make ")} <= set(TARGETS)
    assert ".ci/run" in commands
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_ci_leads_the_tests_to_the_container():
    (step,) = [step for step in WORKFLOW["jobs"]["test"]["steps"] if "PYTEST_ARGS" in step.get("env", {})]
    options = dict(option.split("=") for option in shlex.split(step["env"]["PYTEST_ARGS"]))
    host, port, _ = POSTGRES["ports"][0].split(":")
    assert options == {
        "--postgresql-host": host,
        "--postgresql-port": port,
        "--postgresql-password": POSTGRES["environment"]["POSTGRES_PASSWORD"],
    }
    for file in ("docker-compose.yml", "tests/README.md"):
        assert step["env"]["PYTEST_ARGS"] in (ROOT / file).read_text(encoding="utf-8")


def test_container_has_the_settings_of_the_private_server():
    """All but those of its log, and of the language in it."""
    given = dict(option.removeprefix("-c").split("=") for option in POSTGRES["command"][1:])
    settings = {**DEFAULT_SETTINGS, **TEST_SETTINGS, "fsync": False}
    assert given == {
        name: described(value) for name, value in settings.items() if not name.startswith(("log_", "lc_messages"))
    }


def test_package_is_typed_and_measured():
    (package,) = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert (ROOT / package / "py.typed").exists()
    assert PYPROJECT["tool"]["coverage"]["run"]["source_pkgs"] == [Path(package).name]


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"help", "format", "clean"}))
def test_make_help_shows_every_target(target):
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
    assert re.search(rf"^#   make {target} ", MAKEFILE, re.MULTILINE)


def test_contributing_names_targets_that_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= set(TARGETS)


def test_version_is_in_the_changelog():
    """The newest version first, below what is not released yet; each with its date."""
    unreleased, *headings = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert unreleased == "[Unreleased]"
    versions = []
    for heading in headings:
        found = re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\S+)", heading)
        assert found is not None, heading
        versions.append((date.fromisoformat(found[4]), *map(int, found.groups()[:3])))
    assert all(newer > older for newer, older in pairwise(versions))
    assert f"[{runtime.__version__}]" in headings[0]


@pytest.mark.parametrize("package", ["bridge", "protocol", "sql", "src/pgbridge"])
def test_names_say_what_a_value_is(package):
    """No variable or parameter is called `found`, `one` or `some`."""
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.arg) and node.arg in NO_NAMES)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NO_NAMES)
    ]
    assert named == []


def test_one_length_of_lines():
    """Editors and ruff are told the same. A row of a Markdown table is a line, however long, and so is a pragma."""
    assert re.findall(r"^max_line_length = (\d+)$", (ROOT / ".editorconfig").read_text(), re.MULTILINE) == [
        str(MAX_LINE)
    ]
    too_long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files()
        if path.suffix not in {".tsv", ".ipynb", ".txt", ".svg"}  # rows; ruff looks at cells; names of tests; drawings
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(re.sub(r" *# (noqa|type: ignore).*", "", line)) > MAX_LINE and not line.startswith("|")
    ]
    assert too_long == []
