"""The Java that Spark will start, found as Spark's launcher finds it: by JAVA_HOME, else on the PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.check.finding import Finding, Level, failure, passed, warning
from bridge.runtime.errors import SparkLost

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSIONS: Final = (17, 21, 25)
"""The versions that Spark 4.2's documentation names ("Spark runs on Java 17/21/25"). It starts on no older one."""

_SOUND_25: Final = (25, 0, 3)
"""Spark deprecates earlier ones: their G1 collector may corrupt data (SPARK-55852)."""

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?(?:\.(\d+))?')
_TIMEOUT_S = 20.0
_TAIL_BYTES, _TAIL_LINES, _SHOWN_CHARACTERS = 8192, 3, 300
_TELLING = re.compile(r"^(?!\s*at ).*(?:Exception|Error|Invalid|unresolved dependency)")
_DOWNLOAD = re.compile("unresolved dependency|download failed|UnknownHost")
_REMEDY = "install Java 17, 21 or 25, and set JAVA_HOME to its folder if it is not on the PATH"


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
    match = _VERSION.search(said)
    if match is None:
        return failure("Java", f"{program} does not tell its version", remedy=_REMEDY)
    return _of_version(program, tuple(int(number or 0) for number in match.groups()))


def _of_version(program: str, numbers: tuple[int, ...]) -> Finding:
    version = numbers[1] if numbers[0] == 1 else numbers[0]  # 1.8 is Java 8
    if version < VERSIONS[0]:
        return failure("Java", f"{program} is Java {version}; Spark needs {VERSIONS[0]} or later", remedy=_REMEDY)
    if version not in VERSIONS:
        return warning("Java", f"{program} is Java {version}: Spark is not tested on it, and may fail", remedy=_REMEDY)
    if _SOUND_25[:1] <= numbers < _SOUND_25:
        text = ".".join(map(str, numbers))
        fault = "whose garbage collector G1 may corrupt data"
        return warning("Java", f"{program} is Java {text}, {fault}", remedy="upgrade it to 25.0.3")
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
    said = _last_words(log)
    if not said or any(map(_DOWNLOAD.search, said)):
        hint = f"at its first start it needs Maven Central, for Delta's jars; see {log}"
    elif java.level is Level.WARNING:
        hint = f"{java.message}: {java.remedy}; see {log}"
    else:
        hint = f"correct [spark] in the configuration; see {log}"
    return SparkLost("\n".join([f"Spark cannot be started: {error}", *said]), hint=hint)


def _last_words(log: Path) -> list[str]:
    """Return the last few lines of Spark's log that tell of an error."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip()[:_SHOWN_CHARACTERS] for line in lines if _TELLING.search(line)][-_TAIL_LINES:]
