"""The wheel: one package at the top, which runs a pipeline where there is no checkout."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from configparser import ConfigParser
from email import message_from_string
from pathlib import Path, PurePosixPath

import pytest

from pgbridge.bridge import runtime
from tests.oracle.delta import differences

ROOT = Path(__file__).parents[1]
FOLDERS = ("bridge", "protocol", "sql")
INFO = f"pgbridge-{runtime.__version__}.dist-info"
DATA = f"pgbridge-{runtime.__version__}.data"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
SCRIPTS = {"pgbridge": "pgbridge.__main__:main"}

TABLE = """
    CREATE TABLE t (id int PRIMARY KEY, price numeric(9, 2), note text, at timestamptz);
    INSERT INTO t SELECT n, n / 7.0, 'note ' || n, '2026-01-01'::timestamptz + n * interval '1 min'
        FROM generate_series(1, 3000) n;
    CREATE PUBLICATION pub FOR TABLE t"""
CHANGES = """
    INSERT INTO t VALUES (4000, 1.5, NULL, now());
    UPDATE t SET note = 'changed' WHERE id % 10 = 0;
    DELETE FROM t WHERE id % 10 = 1"""

# The command line, but with a table of any size copied by Spark's Python processes: they import the package, too.
ON_EXECUTORS = """
from pgbridge.bridge.sync import copy
read = copy.read_on_executors
from pgbridge.bridge.spark.driver import Local
Local.copied_bytes = -1
copy.read_on_executors = lambda *arguments: print("on executors") or read(*arguments)
from pgbridge.__main__ import main
main()"""


def built(source: Path, folder: Path) -> Path:
    """The wheel that pip builds, with the Hatchling that is installed here."""
    options = ("--no-deps", "--no-build-isolation", "--no-index")
    subprocess.run([*PIP, "wheel", *options, "--wheel-dir", folder, source], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def contents(wheel):
    """The wheel's files and their bytes."""
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A virtual environment's bin folder: the wheel is there, what it depends on is here, the checkout is not.

    The lines of a .pth file are folders for sys.path. The .pth files in those folders are not read, so the one of an
    editable install has no effect there.
    """
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, symlinks=True)
    # before the .pth file: pip must not find the pgbridge that is installed here
    pip = (*PIP, "--python", root / "bin/python", "install")
    subprocess.run([*pip, "--no-compile", "--no-deps", "--no-index", wheel], check=True)
    (packages,) = root.glob("lib/python3*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join({sysconfig.get_path(name) for name in ("purelib", "platlib")}))
    return root / "bin"


def started(command, cwd):
    """Start a command as a user's shell does. What it prints goes to files: a pipe would stay open with Spark's."""
    ours = ("PYTHONPATH", "PYSPARK_PYTHON")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    with (cwd / "output.txt").open("w") as output, (cwd / "log.txt").open("w") as log:
        return subprocess.Popen(command, cwd=cwd, env=environment, stdout=output, stderr=log)


def ended(process, cwd, *, status=0):
    """Wait for a command, and return what it printed."""
    process.wait(240)
    printed, logged = ((cwd / name).read_text(encoding="utf-8") for name in ("output.txt", "log.txt"))
    assert process.returncode == status, printed + logged
    return printed


def run(command, cwd, *, status=0):
    """Run a command, and return what it printed."""
    return ended(started(command, cwd), cwd, status=status)


# --- what is in it ----------------------------------------------------------------------------------------------------


def test_one_package_is_at_the_top(contents):
    assert {name.partition("/")[0] for name in contents} == {"pgbridge", INFO, DATA}


def test_its_modules_are_those_of_the_checkout(contents):
    """Each file, byte for byte: modules, statements, the page, and the mark for type checkers."""
    names = subprocess.run(["git", "ls-files", "src/pgbridge", *FOLDERS], cwd=ROOT, check=True, capture_output=True)
    sources = [ROOT / name for name in names.stdout.decode().split()]
    files = {path.relative_to(ROOT).as_posix(): path for path in sources if path.is_file()}
    expected = {f"pgbridge/{name.removeprefix('src/pgbridge/')}": path.read_bytes() for name, path in files.items()}
    assert {name: text for name, text in contents.items() if name.startswith("pgbridge/")} == expected
    assert "pgbridge/py.typed" in contents


def test_it_has_the_files_of_operations(contents):
    """Who installs it has the unit, the dashboard and the alerts in share/pgbridge of the environment."""
    files = {name.removeprefix(f"{DATA}/data/share/pgbridge/"): name for name in contents if name.startswith(DATA)}
    assert files.keys() == {"pgbridge.service", "grafana-dashboard.json", "prometheus-alerts.yml"}
    assert all(contents[name] == (ROOT / "docs" / file).read_bytes() for file, name in files.items())


def test_every_import_is_of_the_wheel_or_of_another_distribution(contents):
    files = [PurePosixPath(name) for name in contents if name.endswith(".py")]
    modules = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files}
    seen = 0
    for name, source in contents.items():
        for node in ast.walk(ast.parse(source)) if name.endswith(".py") else ():
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported = [str(node.module)]
                # a module out of a package, or a name out of a module
                if node.module == "pgbridge":
                    imported += [f"pgbridge.{alias.name}" for alias in node.names]
            else:
                continue
            assert not {module.partition(".")[0] for module in imported} & set(FOLDERS), (name, ast.unparse(node))
            ours = {module for module in imported if module.partition(".")[0] == "pgbridge"}
            assert ours <= modules, (name, ast.unparse(node))
            seen += len(ours)
    assert seen > 500


def test_metadata(contents):
    metadata = message_from_string(contents[f"{INFO}/METADATA"].decode())
    assert (metadata["Name"], metadata["Version"]) == ("pgbridge", runtime.__version__)
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert contents[f"{INFO}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert "demo" in metadata.get_all("Provides-Extra", [])
    assert scripts(contents) == SCRIPTS


def scripts(files):
    """A wheel's console scripts."""
    parser = ConfigParser()
    parser.read_string(files[f"{INFO}/entry_points.txt"].decode())
    assert parser.sections() == ["console_scripts"]
    return dict(parser["console_scripts"])


# --- other ways to build ----------------------------------------------------------------------------------------------


def test_the_source_distribution_makes_the_same_wheel(wheel, tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    assert built(sdist, tmp_path / "dist").read_bytes() == wheel.read_bytes()


def test_an_editable_install_puts_nothing_else_on_the_path(tmp_path):
    """`import pgbridge` and `python -m bridge` work with it; `protocol` and `sql` are names for others."""
    code = "import sys, hatchling.build; hatchling.build.build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True, capture_output=True)
    (made,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (path_file,) = (name for name in files if not name.startswith((INFO, DATA)))
    assert path_file.endswith(".pth")
    path = Path(files[path_file].decode().strip())
    assert path == ROOT / "src"
    assert {entry.name for entry in path.iterdir()} - {"__pycache__"} == {"pgbridge", "bridge"}
    assert scripts(files) == SCRIPTS
    environment = {**os.environ, "PYTHONPATH": str(path)}
    said = subprocess.run(
        [sys.executable, "-m", "bridge", "-V"], cwd=tmp_path, env=environment, check=True, capture_output=True
    )
    assert said.stdout.decode() == f"pgbridge {runtime.__version__}\n"


# --- installed --------------------------------------------------------------------------------------------------------


def test_the_checkout_is_not_there(installed, tmp_path):
    """Else the tests of this file would prove nothing."""
    code = f"from importlib.util import find_spec; print([find_spec(name) for name in {FOLDERS}])"
    assert run([installed / "python", "-c", code], tmp_path) == "[None, None, None]\n"


@pytest.mark.parametrize("command", [["pgbridge"], ["python", "-m", "pgbridge"], ["python", "-m", "pgbridge.bridge"]])
def test_version(installed, tmp_path, command):
    program, *arguments = command
    assert run([installed / program, *arguments, "--version"], tmp_path) == f"pgbridge {runtime.__version__}\n"


def test_every_module_can_be_imported(installed, tmp_path):
    """Each one: what a command imports at the last moment, too."""
    code = (
        "import importlib, pkgutil, pgbridge.session\n"
        "for module in pkgutil.walk_packages(pgbridge.__path__, 'pgbridge.'): importlib.import_module(module.name)\n"
        "print(pgbridge.session.start.__module__)"
    )
    assert run([installed / "python", "-c", code], tmp_path) == "pgbridge.bridge.spark.session\n"


def test_a_first_pipeline(installed, spark, publisher, daemon):
    """A table is copied by Spark's own Python processes, and followed; the Delta table has the publisher's rows."""
    publisher.execute(TABLE)
    files = daemon()
    script = [installed / "pgbridge"]
    checked = run([*script, "check", "--config", files.config], files.folder, status=1)  # warns: a superuser
    assert ", 0 failed" in checked

    def equal():
        """Wait until the Delta table has the publisher's rows."""
        until_s = time.monotonic() + 240
        created = Path(files.path("t"), "_delta_log", f"{0:020}.json")  # its folder comes before it
        while not created.exists() or differences(spark, files.path("t"), publisher, "t"):
            assert bridge.poll() is None, (files.folder / "log.txt").read_text(encoding="utf-8")
            assert time.monotonic() < until_s
            time.sleep(0.2)
        return True

    command = [installed / "python", "-P", "-c", ON_EXECUTORS, "run", "--config", files.config]
    with started(command, files.folder) as bridge:
        try:
            assert equal()
            publisher.execute(CHANGES)
            assert equal()
        finally:
            bridge.terminate()
        assert ended(bridge, files.folder) == "on executors\n"
    assert publisher.query("SELECT count(*) FROM t") == [(2701,)]
    assert "public.t" in run([*script, "status", "--config", files.config], files.folder)
