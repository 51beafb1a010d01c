"""The order of the tests, and which of them: `--fast` those that need neither a server nor Spark, `--no-spark` more.

A run of all folders leaves out what nightly.txt lists, unless it has `--all`; a run of some runs all that they have.

A test's fixtures say what it needs, so there is no list of files to keep. A test that starts a server of its own, in
this process or in another, names the fixture `private_server` or `starts_server`.
"""

from __future__ import annotations

import gc
import sys
from pathlib import PurePath
from typing import Any, Final

import pytest

from tests.nightly import nightly

SPARK_FIXTURES: Final = frozenset({"spark", "cluster", "connect_server"})
# `postgresql` asks for its server at run time, unseen by collection
POSTGRES_FIXTURES: Final = frozenset({"postgresql_server", "postgresql", "private_server", "starts_server"})
SLOW_FIXTURES: Final = SPARK_FIXTURES | POSTGRES_FIXTURES

# The programs by which a JVM or a server begins; `postgres` does so with -D only.
LAUNCHERS: Final = frozenset({"java", "pg_ctl", "spark-submit"})
# JAVA_HOME of a fast run. Processes that tests start inherit it, and Spark's launcher shows it when it fails.
NO_JAVA: Final = "/there-is-no-java-with-fast"
LONGEST: Final = frozenset(
    f"tests/{name}.py"
    for name in (
        "bridge/apply/test_applier",
        "bridge/service/test_daemon_monitor",
        "bridge/source/test_data_source",
        "bridge/verify/test_verification",
        "faults/test_apply",
        "faults/test_promotion",
        "oracle/test_documentation",
        "simulation/test_seeds",
    )
)
"""Files that take longest, a quarter to three quarters of a minute each."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin, and that of `tests/oracle`."""
    parser.addoption("--fast", action="store_true", help="only tests that need neither a PostgreSQL server nor Spark")
    parser.addoption("--all", action="store_true", help="also the tests of nightly.txt, in a run of all folders")
    parser.addoption("--no-spark", action="store_true", help="only tests that need no Spark")
    parser.addoption(
        "--every-way",
        action="store_true",
        help="only tests with Delta tables; those of tests/oracle commit in each way",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of the files; with `--fast`, refuse to start a server or a JVM, whatever the fixtures say.

    pytest-xdist would begin with the files that have most tests. Those that take longest have few.
    """
    config.option.loadscopereorder = False
    if config.getoption("fast"):
        sys.addaudithook(refuse_launch)
        patch = pytest.MonkeyPatch()
        patch.setenv("JAVA_HOME", NO_JAVA)
        config.add_cleanup(patch.undo)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run what needs neither server nor Spark first: it is fast, and it finds most mistakes.

    Then the files that take longest: begun at the end, one of them would keep one process busy and the others idle.
    """
    items.sort(key=lambda item: (rank(item), _file(item) not in LONGEST))
    if hasattr(config, "workerinput"):
        mix(items)
    ranks = {0} if config.getoption("fast") else {0, 1} if config.getoption("no_spark") else {0, 1, 2}
    ranks &= {2} if config.getoption("every_way") else ranks
    left_out = set() if config.getoption("all") or not is_whole(config) else nightly_of(items)
    chosen = [item for item in items if rank(item) in ranks and item not in left_out]
    config.hook.pytest_deselected(items=sorted({*items} - {*chosen}, key=lambda item: item.nodeid))
    items[:] = chosen


def is_whole(config: pytest.Config) -> bool:
    """Whether a run is of all folders: the controller's arguments are also those of its processes."""
    return bool([str(argument) for argument in config.args] == config.getini("testpaths"))


def nightly_of(items: list[pytest.Item]) -> set[pytest.Item]:
    """Those that are left to `make test-all`: of several cases of a test, all but the first."""
    slow = nightly()
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.partition("[")[0].removeprefix("tests/")
        if name in slow and item.get_closest_marker("soak") is None:
            cases.setdefault(name, []).append(item)
    return {item for of_one in cases.values() for item in of_one[len(of_one) > 1 :]}


def pytest_collection_finish() -> None:
    """Leave what collecting made out of garbage collection.

    The product collects where it must let go of large values. With thousands of tests that took a quarter of a second.
    """
    gc.collect()
    gc.freeze()


def mix(items: list[pytest.Item]) -> None:
    """Have files with Spark and files with a server alternate, for several processes: the latter mostly wait."""
    place: dict[tuple[int, str], float] = {}
    for group in (1, 2):
        files = dict.fromkeys(_file(item) for item in items if rank(item) == group)
        place |= {(group, file): number / len(files) for number, file in enumerate(files)}
    items.sort(key=lambda item: place.get((rank(item), _file(item)), -1.0))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def rank(item: pytest.Item) -> int:
    """The group of a test: 0 needs neither server nor Spark, 1 needs a server, 2 needs Spark."""
    fixtures = set(getattr(item, "fixturenames", ()))
    return 2 if fixtures & SPARK_FIXTURES else 1 if fixtures & POSTGRES_FIXTURES else 0


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """With `--fast`, fail a test that asks for a slow fixture while it runs, where collection does not see it.

    Raises:
        RuntimeError: That is what it does.
    """
    if request.config.getoption("fast") and fixturedef.argname in SLOW_FIXTURES:
        raise RuntimeError(f"the fixture {fixturedef.argname!r} is not for --fast; name it among the test's arguments")


def refuse_launch(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook that lets no process of `LAUNCHERS` begin.

    Raises:
        RuntimeError: One was about to.
    """
    if event != "subprocess.Popen":
        return
    executable, argv = arguments[:2]
    words = [argv] if isinstance(argv, str | bytes | PurePath) else list(argv)
    program = PurePath(str(executable or words[0])).name
    if program in LAUNCHERS or (program == "postgres" and "-D" in words):
        raise RuntimeError(f"a test of --fast started {program}; it needs the fixture of what it starts")


@pytest.fixture
def starts_server() -> None:
    """Mark a test that starts a server by itself as one that needs a server."""
