"""Gives Spark's executors on other machines what they need of pgbridge: a Python, and this package.

Only copies run Python there (`bridge.sync.copy`); batches are Spark's own work. The libraries that a copy imports are
compiled for a machine and a version of Python, so an operator gives them: installed on each machine, or packed into an
archive that Spark unpacks (docs/clusters.md).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipfile import ZIP_DEFLATED, ZipFile

import protocol
import sql

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkContext

_PYTHON: Final = "spark.pyspark.python"
_VARIABLE: Final = "PYSPARK_PYTHON"
_NOT_FOR_THEM: Final = frozenset({"__pycache__", "demo", "monitor"})


def choose_python(settings: Mapping[str, str]) -> None:
    """Have PySpark use a Python for executors: the configuration's, the environment's, or the path of this one.

    PySpark takes it from the environment only, when its context is made.
    """
    os.environ[_VARIABLE] = settings.get(_PYTHON) or os.environ.get(_VARIABLE) or sys.executable


def send_package(context: SparkContext, folder: Path | None) -> None:
    """Have executors get this package as it is here, whatever they have installed.

    Args:
        context: Spark's context; its driver serves the file to executors as long as it runs.
        folder: Where the file is put; None for a temporary folder.
    """
    file = (folder or Path(tempfile.mkdtemp(prefix="pgbridge-package-"))) / "pgbridge-executors.zip"
    new = file.with_suffix(f".{os.getpid()}")
    with ZipFile(new, "w", ZIP_DEFLATED) as archive:
        for path, name in _modules():
            archive.write(path, name)
    new.replace(file)  # the driver of a killed daemon may be serving the one before
    before = list(sys.path)
    context.addPyFile(str(file))
    sys.path[:] = before  # this process has the package itself


def _modules() -> Iterator[tuple[Path, str]]:
    """The files of this package, and their names in the archive; in a wheel the three folders are in one."""
    for top in sorted({name.partition(".")[0] for name in (__name__, protocol.__name__, sql.__name__)}):
        folder = Path(str(sys.modules[top].__file__)).parent
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if path.suffix in {".py", ".sql", ".tsv"} and _NOT_FOR_THEM.isdisjoint(inside.parts):
                yield path, f"{top}/{inside.as_posix()}"
