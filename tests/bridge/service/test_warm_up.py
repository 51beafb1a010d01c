"""A warm-up commits what a batch would, once, and leaves nothing.

What is prepared once: jars, and an archive of classes that a later JVM reads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from queue import Queue
from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.config.config import Config, load
from pgbridge.bridge.lake.commit.apply_table import apply_table
from pgbridge.bridge.runtime.errors import BridgeError, ConfigError
from pgbridge.bridge.service import warm_up
from pgbridge.bridge.service.warm_up import prepare
from pgbridge.bridge.spark.driver import Driver
from pgbridge.bridge.spark.session import fork

if TYPE_CHECKING:
    from pathlib import Path


def test_it_commits_an_append_and_an_update(spark, scratch_base, monkeypatch):
    operations = []

    def recorded(session, changes):
        apply_table(session, changes)
        row = session.sql(f"DESCRIBE HISTORY delta.`{changes.target.path}` LIMIT 1").collect()[0]
        operations.append((row.operation, row.operationParameters.get("mode")))

    monkeypatch.setattr(warm_up, "apply_table", recorded)
    warm_up.warm_up(fork(spark))
    assert operations == [("WRITE", "Append"), ("WRITE", "Overwrite")]
    assert [path for path in scratch_base.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("sizes", "asked"),
    [
        ((1, 256 << 20), warm_up.ROWS),
        ((1 << 30, 1), warm_up.MERGED_ROWS),
        ((), warm_up.ROWS),
    ],
)
def test_it_commits_as_to_the_largest_table(spark, monkeypatch, sizes, asked):
    calls: Queue[int] = Queue()
    monkeypatch.setattr(warm_up, "warm_up", lambda _session, rows: calls.put(rows))
    warm_up.WarmUp(spark).begin(sizes)
    assert calls.get(timeout=10) == asked


def test_it_is_begun_once_and_its_errors_do_not_matter(spark, monkeypatch):
    begun = []

    def fail(*_):
        begun.append(threading.current_thread())
        raise OSError("no space left")

    monkeypatch.setattr(warm_up, "warm_up", fail)
    one = warm_up.WarmUp(spark)
    for _ in range(3):
        one.begin([1])
    begun_by = [thread for thread in threading.enumerate() if thread.name == "warm-up"]
    for thread in begun_by:
        thread.join(10)
    assert len(begun) == 1


START = """
from pathlib import Path
from pgbridge.bridge.spark import session

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

    jars, archive = run("-m", "pgbridge", "prepare")
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
