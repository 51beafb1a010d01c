"""tests/ is the mirror of the sources: `bridge/track/progress.py` is tested by `tests/bridge/track/test_progress.py`.

So it is clear which tests belong to a module, and a module without tests is seen at once. A module with many tests may
have further files, `test_<module>_<aspect>.py`. Tests of several modules together have folders of their own
(tests/oracle, tests/faults, …), which this test leaves alone. A page (`bridge/monitor/page.html`) is a module, too.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("benchmarks", "bridge", "fuzz", "protocol", "sql", "src/pgbridge")

UNTESTED: dict[str, str] = {
    "benchmarks/apply.py": "takes minutes of Spark; what it measures is tested in tests/bridge",
    "benchmarks/copy.py": "takes minutes of Spark; what it measures is tested in tests/bridge",
    "benchmarks/copy_cluster.py": "takes minutes of Spark; what it measures is tested in tests/faults/test_cluster.py",
    "benchmarks/verify.py": "takes minutes of Spark; what it measures is tested in tests/bridge/verify",
    "benchmarks/filter_cost.py": "takes minutes of Spark; what it measures is tested in tests/bridge",
    "benchmarks/many_batches.py": "takes minutes of Spark; what it measures is tested in tests/bridge",
    "benchmarks/large_transaction.py": "starts Spark twice; what it measures is tested in tests/oracle",
    "benchmarks/__main__.py": "only calls benchmarks.cli.app",
    "fuzz/__main__.py": "runs atheris, which the tests do without",
    "src/pgbridge/session.py": "only names bridge's; tests/test_wheel.py imports it",
    "bridge/__main__.py": "only calls pgbridge.__main__.main; tests/test_wheel.py starts it",
    "bridge/source/register.py": "tests/bridge/source/test_data_source.py registers, by the name that users write",
    "bridge/verify/source_table.py": "tests/bridge/verify/test_source.py reads a table under a snapshot",
    "bridge/verify/table_comparison.py": "tests/bridge/verify/test_verification.py compares tables",
    "bridge/verify/target.py": "tests/bridge/verify/test_verification.py compares both sides",
    "bridge/sqltext/syntax.py": "nodes without behaviour; the parser's tests make all of them",
}
"""Modules that need no test file, and why. An `__init__.py` without functions and classes needs no entry."""


def mirror_of(module: str) -> str:
    """The path of a module's test file; an `__init__.py` with code has `test_init.py`."""
    path = Path(module.removeprefix("src/"))
    return str(Path("tests") / path.with_name(f"test_{path.stem.strip('_')}.py"))


def modules() -> set[str]:
    """The source files that have something to test."""
    found = (path for top in SOURCES for path in (ROOT / top).rglob("*.*") if path.suffix in {".py", ".html"})
    paths = {path.relative_to(ROOT) for path in found}
    return {str(path) for path in paths if path.name != "__init__.py" or defines_something(ROOT / path)}


def defines_something(path: Path) -> bool:
    """Whether a file has a function or a class."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def present() -> set[str]:
    """The test files in the mirrored folders."""
    folders = (ROOT / "tests" / top.removeprefix("src/") for top in SOURCES)
    return {str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("test_*.py")}


def test_every_module_has_its_test_file():
    missing = {mirror_of(module) for module in modules() - UNTESTED.keys()} - present()
    assert missing == set()


def test_every_test_file_has_its_module():
    mirrors = {mirror_of(module).removesuffix(".py") for module in modules()}
    stems = {path: path.removesuffix(".py") for path in present()}
    orphans = {
        path
        for path, stem in stems.items()
        if stem not in mirrors and not any(stem.startswith(f"{mirror}_") for mirror in mirrors)
    }
    assert orphans == set()


def test_exceptions_are_still_needed():
    assert UNTESTED.keys() <= modules()
    assert not {mirror_of(module) for module in UNTESTED} & present()


def test_names_are_mirrored():
    """The rule itself, on its three cases."""
    assert mirror_of("bridge/track/progress.py") == "tests/bridge/track/test_progress.py"
    assert mirror_of("sql/__init__.py") == "tests/sql/test_init.py"
    assert mirror_of("bridge/__main__.py") == "tests/bridge/test_main.py"
    assert mirror_of("bridge/monitor/page.html") == "tests/bridge/monitor/test_page.py"
