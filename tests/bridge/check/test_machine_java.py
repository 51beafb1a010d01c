"""Java is found as Spark's launcher finds it, and too old a one is told."""

from __future__ import annotations

import pytest

from pgbridge.bridge.check.finding import Level
from pgbridge.bridge.check.machine import check_java, not_started

pytestmark = pytest.mark.usefixtures("starts_server")  # with --fast, nothing of the name java is started


@pytest.fixture
def fake(tmp_path):
    """Makes a `java` that prints a text as its version; returns its JAVA_HOME."""

    def make(text: str, code: int = 0) -> str:
        program = tmp_path / "bin" / "java"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit {code}\n")
        program.chmod(0o755)
        return str(tmp_path)

    return make


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ('openjdk version "17.0.12" 2024-07-16', Level.PASS),
        ('openjdk version "21" 2023-09-19', Level.PASS),
        ('openjdk version "25.0.3" 2026-04-21 LTS', Level.PASS),
        ('openjdk version "25.0.2" 2026-01-20 LTS', Level.WARNING),
        ('openjdk version "25" 2025-09-16', Level.WARNING),
        ('openjdk version "19.0.2" 2023-01-17', Level.WARNING),
        ('openjdk version "26" 2026-03-17', Level.WARNING),
        ('openjdk version "11.0.24" 2024-07-16', Level.FAILURE),
        ('java version "1.8.0_421"', Level.FAILURE),
        ("what?", Level.FAILURE),
    ],
)
def test_versions(fake, text, level):
    assert check_java({"JAVA_HOME": fake(text), "PATH": "/usr/bin:/bin"}).level is level


def test_on_the_path(fake):
    home = fake('openjdk version "17.0.1"')
    assert f"{home}/bin/java" in check_java({"PATH": f"{home}/bin:/usr/bin:/bin"}).message


def test_none():
    assert "no java on the PATH" in check_java({"PATH": "/nonexistent"}).message


def test_one_that_cannot_be_run(fake, tmp_path):
    assert "cannot be run" in check_java({"JAVA_HOME": str(tmp_path / "none")}).message
    assert "cannot be run" in check_java({"JAVA_HOME": fake("broken", 1), "PATH": "/usr/bin:/bin"}).message


def test_why_spark_has_not_started(fake, tmp_path):
    """Maven Central is named only where its jars are what is missing; else the log's last words are shown."""
    environment, log = {"JAVA_HOME": fake('openjdk version "17.0.12"')}, tmp_path / "spark.log"
    assert "Maven Central" in not_started(OSError("exited"), environment, log).hint
    log.write_text('old\nException in thread "main" java.lang.X: [unresolved dependency: io.delta]\n\tat Error.a\n')
    assert "Maven Central" in not_started(OSError("exited"), environment, log).hint
    log.write_text("Invalid maximum heap size: -Xmx2gb\nError: Could not create the Java Virtual Machine.\n")
    error = not_started(OSError("exited"), environment, log)
    assert "-Xmx2gb" in error.message
    assert "Maven" not in error.hint
