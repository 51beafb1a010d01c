"""Java is found as Spark's launcher finds it, and too old a one is told."""

from __future__ import annotations

import pytest

from bridge.check.finding import Level
from bridge.check.java import check_java

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
