"""The architecture as rules on imports, read from the source by `ast`.

An import counts wherever it stands. An import under TYPE_CHECKING counts, too, except where a rule says otherwise: a
module that only hands a Spark session on may name its type in a signature.

Three kinds of rules: what the modules of a package may import; what a package must not reach, over any number of
imports; and that nothing imports itself in a ring.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

ROOT = Path(__file__).parents[1]
SOURCES = ("benchmarks", "bridge", "fuzz", "protocol", "sql", "src/pgbridge")

Graph = dict[str, set[str]]
"""Which modules (or rooms) import which."""


class Rule(NamedTuple):
    """Modules in `scope` but not in `exempt` use none of `names`, or, with `only`, no other packages.

    A name covers what is below it: `datetime` also `datetime.datetime.now`. Patterns are of `fnmatch`, where
    `*` goes over slashes.
    """

    scope: tuple[str, ...]
    names: frozenset[str]
    why: str
    exempt: tuple[str, ...] = ()
    only: bool = False
    in_types: bool = True  # whether imports under TYPE_CHECKING count


_STDLIB = frozenset(sys.stdlib_module_names)
_IO = frozenset(
    {
        "asyncio", "io", "logging", "multiprocessing", "os", "pathlib", "select", "selectors",
        "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading",
        "time",
    }
)  # fmt: skip
_PURE = frozenset(
    {
        "__future__", "bisect", "collections", "dataclasses", "enum", "functools", "heapq",
        "itertools", "typing", "protocol",
    }
)  # fmt: skip
_CLOCK = frozenset({f"datetime.{name}" for name in ("datetime.now", "datetime.today", "datetime.utcnow", "date.today")})

RULES = (
    Rule(
        ("protocol/*",),
        (_STDLIB - _IO) | {"numpy", "pyarrow", "protocol"},
        "protocol/ turns bytes into values: no I/O, no psycopg, no Spark, no log",
        only=True,
    ),
    Rule(
        ("protocol/*", "bridge/track/progress.py"),
        _CLOCK,
        "no clock: time comes in as a value",
    ),
    Rule(
        ("bridge/track/progress.py",),
        _PURE | {"bridge.runtime.errors"},
        "what to confirm and what to skip are pure decisions",
        only=True,
    ),
    Rule(
        ("bridge/publication/*",),
        _STDLIB
        | {"protocol", "bridge.runtime.errors", "bridge.publication", "bridge.sqltext", "bridge.runtime.warehouse"},
        "PostgreSQL's rules on publications are pure: `receive` reads the catalog for them",
        only=True,
    ),
    Rule(
        ("bridge/runtime/warehouse.py",), _PURE | {"re"}, "what a warehouse may be is decided without Spark", only=True
    ),
    Rule(("sql/*",), _STDLIB | {"sql"}, "sql/ holds statements; who sends them is elsewhere", only=True),
    Rule(
        ("src/pgbridge/*",),
        frozenset({"bridge", "importlib", "sys", "typing"}),
        "it only gives names to what bridge/ has",
        only=True,
    ),
    Rule(
        ("bridge/*",),
        frozenset({"psycopg"}),
        "the server is spoken to by receive/ and the copy",
        exempt=(
            "bridge/receive/*",
            "bridge/sync/*",
            "bridge/demo/*",
            "bridge/verify/source.py",
            "bridge/verify/source_table.py",
        ),
        in_types=False,
    ),
    Rule(
        ("bridge/*",),
        frozenset({"pyspark", "delta"}),
        "Spark and Delta are the business of spark/, the row filters, the lake, the copy and the data source",
        exempt=(
            "bridge/spark/connect.py",
            "bridge/spark/driver.py",
            "bridge/spark/launch.py",
            "bridge/spark/outcome.py",
            "bridge/spark/session.py",
            "bridge/rowfilter/*",
            "bridge/lake/*",
            "bridge/recovery/*",
            "bridge/snapshots/*",
            "bridge/skipped/*",
            "bridge/sync/*",
            "bridge/source/*",
            "bridge/verify/target.py",
        ),
        in_types=False,
    ),
    Rule(
        ("bridge/*",),
        frozenset({"py4j"}),
        "classic sessions and Spark Connect have one code path: `spark.outcome` knows the errors of both",
        exempt=("bridge/spark/driver.py", "bridge/spark/outcome.py"),
    ),
    Rule(
        ("bridge/*",),
        frozenset({"pyspark.sql.utils.is_remote", "bridge.spark.cluster", "bridge.spark.connect"}),
        "a driver is asked for what is needed; which kind it is, is decided once",
        exempt=("bridge/spark/session.py",),
    ),
    Rule(
        ("bridge/*",),
        frozenset({"grpc", "grpc_status", "pyspark.sql.connect", "delta.connect"}),
        "they are installed with the extra connect only, which `connect` looks for",
        exempt=("bridge/spark/connect.py",),
    ),
    Rule(
        ("bridge/*", "protocol/*", "sql/*"),
        frozenset({"bridge.source"}),
        "the Spark data source stands beside the daemon, which does not need it",
        exempt=("bridge/source/*",),
    ),
    Rule(
        ("bridge/source/*",),
        frozenset(
            {
                "bridge.catalog.catalog",
                "bridge.catalog.schema",
                "bridge.service.daemon",
                "bridge.service.subscriber",
                "delta",
            }
        ),
        "the data source keeps no state of its own: Spark's checkpoint has it, and the sink is the user's",
        exempt=("bridge/source/merge.py",),
    ),
    Rule(
        ("bridge/*", "protocol/*", "sql/*"),
        frozenset({"sys.argv", "os.environ", "os.environb", "os.getenv", "os.putenv", "signal"}),
        "arguments, environment and signals are for the shell around the daemon",
        # PySpark takes the Python of its workers from the environment only
        exempt=(
            "bridge/service/cli.py",
            "bridge/service/daemon.py",
            "bridge/runtime/supervisor.py",
            "bridge/spark/connect.py",
            "bridge/spark/driver.py",
            "bridge/spark/launch.py",
            "bridge/demo/*",
        ),
    ),
    Rule(
        ("bridge/rowfilter/*",),
        frozenset({"bridge.publication"}),
        "what is published and how a filter is computed share no import",
    ),
    Rule(
        ("bridge/publication/*",),
        frozenset({"bridge.rowfilter"}),
        "what is published and how a filter is computed share no import",
    ),
    Rule(
        ("bridge/*",),
        frozenset({"select.select"}),
        "select takes no descriptor beyond 1023: `readiness` waits by poll",
    ),
    Rule(
        ("bridge/*", "protocol/*", "sql/*"),
        frozenset({"bridge.demo"}),
        "the demo stands on top; only its command starts it",
        exempt=("bridge/service/cli.py", "bridge/demo/*"),
    ),
    Rule(
        ("bridge/*", "protocol/*", "sql/*"),
        frozenset({"tests", "benchmarks", "fuzz", "pgbridge"}),
        "sources do not need their tests, nor the names that users have",
        exempt=("bridge/__main__.py",),
    ),
    Rule(
        ("benchmarks/*",),
        frozenset({"bridge.apply", "bridge.receive", "bridge.track"}),
        "single modules know the receive path, how changes are applied, how tables are copied, and a daemon's state",
        exempt=(
            "benchmarks/receiver.py",
            "benchmarks/filter_cost.py",
            "benchmarks/copy.py",
            "benchmarks/apply.py",
            "benchmarks/many_batches.py",
            "benchmarks/apply_tables.py",
            "benchmarks/bridge_folder.py",
            "benchmarks/many_tables.py",
            "benchmarks/verify.py",
        ),
    ),
)


class Unreachable(NamedTuple):
    """No module of `package` reaches any of `names` when it is imported, over any number of imports."""

    package: str
    names: frozenset[str]
    why: str


_SPARK = frozenset({"pyspark", "delta", "py4j"})
_EXTRAS = frozenset({"pandas", "prometheus_client", "rich", "structlog", "tenacity", "typer"})
UNREACHABLE = (
    Unreachable("protocol", frozenset({"bridge", "psycopg", "structlog", *_SPARK}), "bytes and values only"),
    Unreachable("bridge.source", _EXTRAS, "the data source needs pgbridge without extras, and the user's PySpark"),
    Unreachable("bridge.sqltext", frozenset({"psycopg", *_SPARK}), "text and its parse tree only"),
    Unreachable("bridge.publication", frozenset({"psycopg", *_SPARK}), "PostgreSQL's rules, pure"),
    Unreachable("bridge.targets", frozenset({"psycopg", *_SPARK}), "columns as Arrow types"),
    Unreachable("bridge.effects", frozenset({"psycopg", *_SPARK}), "net effects in Arrow"),
    Unreachable("bridge.evolution", frozenset({"psycopg", *_SPARK}), "plans, not their execution"),
    Unreachable("bridge.batch", frozenset({"psycopg", *_SPARK}), "changes in Arrow"),
    Unreachable("bridge.track", frozenset({"psycopg", *_SPARK}), "the command line reads the catalog without Spark"),
    Unreachable("bridge.receive", _SPARK, "the server's side; commands ask it without Spark"),
    Unreachable("bridge.commands", _SPARK, "commands answer without waiting for Spark"),
    Unreachable("bridge.demo", _SPARK, "what it starts has Spark"),
)


def modules() -> list[str]:
    """All source files, as paths from the root."""
    return sorted(path.relative_to(ROOT).as_posix() for top in SOURCES for path in (ROOT / top).rglob("*.py"))


class WithoutTypes(ast.NodeTransformer):
    """Takes out what only a type checker runs."""

    def visit_If(self, node: ast.If) -> ast.AST:
        """Leave `pass` in the place of `if TYPE_CHECKING: …`."""
        return ast.Pass() if ast.unparse(node.test).endswith("TYPE_CHECKING") else self.generic_visit(node)


_OURS = re.compile(r"^pgbridge\.(bridge|protocol|sql)\b")
"""The folders of this repository, as code imports them; here they have the names of their paths."""


@cache
def uses(path: str, source: str, *, in_types: bool) -> set[str]:
    """Dotted names of all that a module imports, and of the attributes that it takes from its imports."""
    tree = ast.parse(source)
    if not in_types:
        WithoutTypes().visit(tree)
    package = path.split("/")[:-1]
    imported: set[str] = set()
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                imported.add(name.name)
                aliases[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for name in node.names:
                imported.add(f"{module}.{name.name}")
                aliases[name.asname or name.name] = f"{module}.{name.name}"
    taken = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = ast.unparse(node).split(".")
            if parts[0] in aliases:
                taken.add(".".join([aliases[parts[0]], *parts[1:]]))
    return {_OURS.sub(r"\1", name) for name in imported | taken}


def broken(rule: Rule, path: str, source: str) -> list[str]:
    """What a module does against a rule, a line each."""
    if any(fnmatch(path, glob) for glob in rule.exempt) or not any(fnmatch(path, glob) for glob in rule.scope):
        return []
    found = []
    for name in sorted(uses(path, source, in_types=rule.in_types)):
        parts = name.split(".")
        covered = any(".".join(parts[:length]) in rule.names for length in range(1, len(parts) + 1))
        if covered is not rule.only:
            found.append(f"{path} uses {name}: {rule.why}")
    return found


# --- the graph of imports ---------------------------------------------------------------------------------------------


def dotted(path: str) -> str:
    """A module's name: `bridge/track/progress.py` is `bridge.track.progress`."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(sources: Mapping[str, str], *, in_types: bool) -> Graph:
    """What each module imports: modules among `sources` by their whole name, others by the name of their package."""
    names = {dotted(path) for path in sources}
    graph: dict[str, set[str]] = {}
    for path, source in sources.items():
        own = dotted(path)
        found = set()
        for name in uses(path, source, in_types=in_types):
            parts = name.split(".")
            heads = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
            found.add(next((head for head in heads if head in names), parts[0]))
        graph[own] = found - {own}
    return graph


def reached(graph: Graph, start: str) -> dict[str, str]:
    """Everything that a module imports, over any number of imports; each with the module that imports it."""
    found: dict[str, str] = {}
    waiting = [start]
    while waiting:
        module = waiting.pop()
        # importing a.b.c runs a and a.b first
        above = {module.rsplit(".", length)[0] for length in range(1, module.count(".") + 1)}
        for name in (graph.get(module, set()) | above.intersection(graph)) - found.keys() - {start}:
            found[name] = module
            waiting.append(name)
    return found


def ring(graph: Graph) -> list[str]:
    """Modules that import each other in a ring; empty where there is none."""
    left = {node: set(targets) & graph.keys() for node, targets in graph.items()}
    while free := [node for node, targets in left.items() if not targets]:
        left = {node: targets - set(free) for node, targets in left.items() if node not in free}
    if not left:
        return []
    path = [next(iter(left))]
    while path[-1] not in path[:-1]:
        path.append(min(left[path[-1]]))
    return path[path.index(path[-1]) :]


def rooms(graph: Graph, packages: Collection[str]) -> Graph:
    """The same by folders, each a room; a package's `__init__.py` is in its own folder."""

    def room(module: str) -> str:
        return module if module in packages else module.rpartition(".")[0] or module

    between: Graph = {}
    for module, targets in graph.items():
        between.setdefault(room(module), set()).update({room(target) for target in targets} - {room(module)})
    return between


@cache
def sources() -> dict[str, str]:
    """The text of each source file."""
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in modules()}


@cache
def whole_graph(*, in_types: bool) -> Graph:
    """What each source file imports."""
    return imports(sources(), in_types=in_types)


@pytest.mark.parametrize("rule", UNREACHABLE, ids=lambda rule: rule.package)
def test_what_a_package_never_reaches(rule):
    graph = whole_graph(in_types=False)
    members = [module for module in graph if module == rule.package or module.startswith(f"{rule.package}.")]
    assert members
    for module in members:
        above = reached(graph, module)
        found = {f"{module} reaches {name}, imported by {above[name]}" for name in rule.names & above.keys()}
        assert found == set(), rule.why


def test_no_module_imports_itself_in_a_ring():
    assert ring(whole_graph(in_types=True)) == []


PACKAGES = frozenset(dotted(path) for path in modules() if path.endswith("/__init__.py"))


def test_no_folder_imports_itself_in_a_ring():
    """The root of `bridge` is a folder as others are."""
    assert ring(rooms(whole_graph(in_types=True), PACKAGES)) == []


def test_no_folder_is_a_drawer():
    """At most 15 modules, and at most five at the root of `bridge`."""
    counts = Counter(path.rpartition("/")[0] for path in modules() if not path.endswith("/__init__.py"))
    source = {folder: count for folder, count in counts.items() if folder.startswith(("bridge", "protocol"))}
    assert {folder: count for folder, count in source.items() if count > 15} == {}
    assert source["bridge"] <= 5


def test_a_ring_and_what_is_reached_are_seen():
    """The rules bite, on small examples."""
    paths = {
        "a/__init__.py": "",
        "a/x.py": "from a.y import f",
        "a/y.py": "if TYPE_CHECKING:\n    import a.x",
        "b/z.py": "def f():\n    from a import x",
        "b/w.py": "import b.z\nfrom pyspark.sql import types",
    }
    graph = imports(paths, in_types=True)
    assert ring(graph) == ["a.x", "a.y", "a.x"]
    assert ring(imports(paths, in_types=False)) == []
    assert reached(graph, "b.w") == {"b.z": "b.w", "pyspark": "b.w", "a.x": "b.z", "a.y": "a.x", "a": "a.x"}
    crossing = {
        "a/x.py": "import a.b.z",
        "a/b/z.py": "import c.v",
        "a/b/w.py": "",
        "c/v.py": "import a.u",
        "a/u.py": "",
    }
    assert ring(imports(crossing, in_types=True)) == []
    assert ring(rooms(imports(crossing, in_types=True), {"a", "a.b", "c"})) == ["a", "a.b", "c", "a"]


# --- the rules of modules ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(rule.scope))
def test_modules_keep_to_a_rule(rule):
    assert [line for path, source in sources().items() for line in broken(rule, path, source)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("protocol/lsn.py", "import psycopg"),
        ("protocol/lsn.py", "import structlog"),
        ("protocol/lsn.py", "from time import monotonic"),
        ("protocol/lsn.py", "import pgbridge.bridge.runtime.errors"),
        ("protocol/lsn.py", "if TYPE_CHECKING:\n    import pgbridge.bridge.runtime.errors"),
        ("protocol/lsn.py", "from datetime import datetime\nx = datetime.now()"),
        ("protocol/lsn.py", "import datetime as dt\nx = dt.datetime.now(dt.UTC)"),
        ("bridge/config/config.py", "import psycopg.conninfo"),
        ("bridge/apply/applier.py", "from psycopg import sql"),
        ("bridge/publication/routing.py", "def f():\n    import pyspark.sql"),
        (
            "bridge/publication/tables.py",
            "if TYPE_CHECKING:\n    from pgbridge.bridge.receive.publisher import Publisher",
        ),
        ("bridge/service/cli.py", "from delta import DeltaTable"),
        ("bridge/runtime/log.py", "import os\nx = os.environ['HOME']"),
        ("bridge/runtime/log.py", "from os import environ"),
        ("bridge/runtime/log.py", "import sys\nx = sys.argv[1]"),
        ("bridge/receive/stream/walreceiver.py", "import signal"),
        ("bridge/track/progress.py", "import sqlite3"),
        ("bridge/track/progress.py", "from pgbridge.bridge.track import catalog"),
        ("bridge/track/progress.py", "from . import catalog"),
        ("bridge/service/daemon.py", "from pgbridge.bridge.demo.server import EmbeddedPostgres"),
        ("bridge/spark/session.py", "from tests import fix_spark"),
        ("bridge/lake/commit_errors.py", "from py4j.protocol import Py4JNetworkError"),
        ("bridge/lake/source.py", "from pyspark.sql.connect.session import SparkSession"),
        ("bridge/lake/source.py", "from pyspark.sql.utils import is_remote"),
        ("bridge/service/daemon.py", "from pgbridge.bridge.spark.connect import Connect"),
        ("sql/__init__.py", "import psycopg"),
        ("sql/__init__.py", "from pgbridge import session"),
        ("src/pgbridge/session.py", "from pgbridge.protocol.lsn import Lsn"),
        ("benchmarks/measure.py", "from pgbridge.bridge.receive.stream.walreceiver import WalReceiver"),
    ],
)
def test_violation_is_seen(path, source):
    """Each rule bites: without this, a rule with a misspelt pattern would pass for ever."""
    assert any(broken(rule, path, source) for rule in RULES)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "protocol/bulk/columns.py",
            "import numpy as np\nimport pyarrow.compute\nfrom pgbridge.protocol import lsn\nimport struct",
        ),
        ("protocol/values/types.py", "import datetime as dt\nx = dt.datetime(2000, 1, 1)"),
        ("bridge/receive/slot.py", "import psycopg"),
        ("bridge/lake/commit/merge.py", "from pyspark.sql import functions\nfrom delta import DeltaTable"),
        ("bridge/service/daemon.py", "import signal\nimport os\nx = os.environ"),
        ("bridge/service/daemon.py", "if TYPE_CHECKING:\n    from pyspark.sql import SparkSession"),
        ("bridge/runtime/log.py", "import os, sys\nx = os.getpid()\ny = sys.stderr"),
        ("bridge/track/progress.py", "from dataclasses import dataclass\nfrom pgbridge.protocol.lsn import Lsn"),
    ],
)
def test_what_is_allowed_passes(path, source):
    assert not any(broken(rule, path, source) for rule in RULES)
