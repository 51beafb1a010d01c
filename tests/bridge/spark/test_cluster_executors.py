"""What executors get: this package as it is here."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

from pgbridge.bridge.spark.cluster import send_package

READER = """
import sys
sys.path.insert(0, sys.argv[1])
from pgbridge.bridge.sync import copy_reader
from pgbridge.bridge.receive import connection
from pgbridge import sql
print(copy_reader.__file__)
print(len(sql.load("copy_sizes")) > 0, sorted({"pyspark", "pydantic", "structlog"} & sys.modules.keys()))
"""


def context(add) -> Any:
    """A Spark context as `send_package` needs it."""
    return SimpleNamespace(addPyFile=add)


def test_the_copys_reader_runs_from_what_is_sent(tmp_path):
    """It reads its statements from the archive, and needs no more libraries than docs/clusters.md asks for."""
    sent: list[str] = []

    def add(path):
        sent.append(path)
        sys.path.insert(1, path)  # as PySpark does

    before = list(sys.path)
    send_package(context(add), tmp_path)
    send_package(context(add), tmp_path)
    assert sent == [str(tmp_path / "pgbridge-executors.zip")] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["pgbridge-executors.zip"]
    assert sys.path == before
    assert not [name for name in ZipFile(sent[0]).namelist() if "__pycache__" in name or "demo" in name]
    command = [sys.executable, "-I", "-c", READER, sent[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{sent[0]}/pgbridge/bridge/sync/copy_reader.py", "True []"]


def test_without_a_log_there_is_a_temporary_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sent: list[str] = []
    send_package(context(sent.append), None)
    assert ZipFile(sent[0]).testzip() is None
    assert str(tmp_path) in sent[0]
