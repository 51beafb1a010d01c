"""The Java that Spark will start, found as Spark's launcher finds it: by JAVA_HOME, else on the PATH."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.check.finding import Finding, Level, failure, passed
from bridge.errors import SparkLost

if TYPE_CHECKING:
    from collections.abc import Mapping

LOWEST_VERSION: Final = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_TIMEOUT_S = 20.0
_REMEDY = "install Java 17 or 21, and set JAVA_HOME to its folder if it is not on the PATH"


def check_java(environment: Mapping[str, str]) -> Finding:
    """Look for Java, and ask it for its version.

    Args:
        environment: The process's environment variables.
    """
    home = environment.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    if program is None:
        return failure("Java", "no java on the PATH, and JAVA_HOME is not set", remedy=_REMEDY)
    command = [program, "-version"]
    try:
        said = subprocess.run(  # noqa: S603 - the program that Spark's launcher runs, without a shell
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, env=dict(environment)
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return failure("Java", f"{program} cannot be run: {error}", remedy=_REMEDY)
    found = _VERSION.search(said)
    if found is None:
        return failure("Java", f"{program} does not tell its version", remedy=_REMEDY)
    version = int(found[2] or 0) if found[1] == "1" else int(found[1])  # 1.8 is Java 8
    if version < LOWEST_VERSION:
        return failure("Java", f"{program} is Java {version}; Spark needs {LOWEST_VERSION} or later", remedy=_REMEDY)
    return passed("Java", f"{program} is Java {version}")


def not_started(error: Exception, environment: Mapping[str, str], log: Path) -> SparkLost:
    """The error that Spark cannot be started; it says so if Java is the reason.

    Args:
        error: What the start raised.
        environment: The process's environment variables.
        log: What Spark's processes have printed.
    """
    java = check_java(environment)
    if java.level is Level.FAILURE:
        return SparkLost(f"Spark cannot be started: {java.message}", hint=java.remedy)
    return SparkLost(
        f"Spark cannot be started: {error}",
        hint=f"at its first start it needs Maven Central, for Delta's jars; see {log}",
    )
