"""What is prepared once: jars, and an archive of classes that a later JVM reads."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bridge.config.config import Config, load
from bridge.runtime.errors import BridgeError, ConfigError
from bridge.service.prepare import prepare
from bridge.spark.driver import Driver

if TYPE_CHECKING:
    from pathlib import Path

START = """
from pathlib import Path
from bridge.spark import session

spark = session.start("local[1]", {"spark.driver.memory": "512m"})
maps = Path(f"/proc/{session.driver_of(spark).process.pid}/maps").read_text().split()
print(*{word for word in maps if "pgbridge/classes" in word})
"""
"""Starts Spark with another heap and collector than the archive was made with."""


def configured(folder: Path, spark: str) -> Config:
    file = folder / "pgbridge.toml"
    file.write_text(
        'state_dir = "state"\n[subscription.s]\nconnection = ""\npublications = ["p"]\nwarehouse = "lake"\n' + spark
    )
    return load(file)


@pytest.mark.soak  # it starts four JVMs; `make test` has run the command when it installed
def test_a_later_start_reads_the_archive(tmp_path):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}

    def run(*arguments: str) -> list[str]:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout.splitlines()

    jars, archive = run("-m", "bridge", "prepare")
    assert jars.endswith(" jars")
    assert archive.endswith(" MB)")
    (file,) = (tmp_path / "pgbridge").glob("*.jsa")
    assert run("-c", START) == [str(file)]
    assert {path.suffix for path in (tmp_path / "pgbridge").iterdir()} == {".jsa", ".json", ".log"}


def test_a_connect_server_has_jars_of_its_own(tmp_path):
    config = configured(tmp_path, '[spark]\nmaster = "sc://server:15002"\n')
    with pytest.raises(ConfigError, match="Connect server has jars of its own"):
        prepare(config, os.environ)


def test_jars_that_the_user_names_are_not_prepared(tmp_path):
    config = configured(tmp_path, '[spark.conf]\n"spark.jars" = "mine.jar"\n')
    with pytest.raises(ConfigError, match="nothing to prepare: the environment, or spark"):
        prepare(config, os.environ)


def test_a_folder_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    (tmp_path / "pgbridge").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(Driver, "start", lambda *_, **__: pytest.fail("nothing is started"))
    with pytest.raises(BridgeError, match="cannot be written: ") as caught:
        prepare(None, os.environ)
    assert "HOME" in str(caught.value.hint)
