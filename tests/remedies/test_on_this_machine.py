"""What is to be typed into a shell or written into the configuration is, in the situation in which it is printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from pgbridge.bridge.catalog.lock import spark_lock
from pgbridge.bridge.check.finding import Level
from pgbridge.bridge.check.machine import check_descriptors, check_memory
from pgbridge.bridge.config.config import load
from pgbridge.bridge.demo.subscriber import DemoFolder
from pgbridge.bridge.lake.forms import delta_schema, row_schema
from pgbridge.bridge.runtime import process
from pgbridge.bridge.runtime.errors import BridgeError, StateError, TargetError
from pgbridge.bridge.runtime.process import OWN_BYTES
from pgbridge.bridge.service import daemon
from pgbridge.bridge.spark.session import driver_for
from pgbridge.bridge.targets.target import VALIDITY
from pgbridge.protocol.lsn import Lsn
from tests.fix_cli import catalog_of

HOLDER = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(1, flush=True); time.sleep(60)"


def test_the_spark_of_an_earlier_daemon(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "spark.lock")], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StateError) as caught, spark_lock(tmp_path, 0.0):
            pass
        command = caught.value.hint.partition("found by: ")[2]
        found = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
        assert found.stdout.split() == [str(holder.pid)]
        subprocess.run(["kill", *found.stdout.split()], check=True)
        holder.wait(30)
    with spark_lock(tmp_path, 0.0) as held:
        assert held >= 0


def test_the_limit_of_file_descriptors(monkeypatch):
    """In a shell whose limit is too low; only root may raise it."""
    most = process.limit()
    monkeypatch.setattr(process, "needed", lambda _: 512)
    monkeypatch.setattr(process, "limit", lambda: 256)
    found = check_descriptors(1)
    assert found.statement == "ulimit -Hn 512"
    if most is not None and most < 512:
        pytest.skip("the limit of this machine is lower")
    raised = subprocess.run(
        ["sh", "-c", f"ulimit -Sn 128; {found.statement}; ulimit -Hn"], capture_output=True, text=True, check=True
    )
    monkeypatch.setattr(process, "limit", lambda: int(raised.stdout))
    assert check_descriptors(1).level is Level.PASS


CONFIG = """
state_dir = "state"
[spark]
master = "local[8]"
[spark.conf]
"spark.driver.memory" = "{0}"
[subscription.shop]
connection = ""
publications = ["pub"]
warehouse = "lake"
"""


def test_memory_that_is_not_there(tmp_path, monkeypatch):
    """To `check` and to the daemon, before and after the file was changed."""
    file = tmp_path / "pgbridge.toml"
    said = {}
    for heap in ("64g", "1g"):
        file.write_text(CONFIG.format(heap))
        config = load(file)
        driver = driver_for(config.spark.master)
        needed = driver.memory_bytes(config.spark.conf) + OWN_BYTES
        monkeypatch.setattr(process, "available_bytes", lambda: 32 << 30)
        log = mock.Mock()
        of_daemon: Any = SimpleNamespace(_config=config, _driver=driver, _log=log)
        daemon.Daemon._check_memory(of_daemon)
        checked = check_memory(needed, 32 << 30)
        said[heap] = {checked.remedy, *(call.kwargs["hint"] for call in log.warning.call_args_list)} - {""}
    assert said["64g"] == {'set a lower "spark.driver.memory" in [spark.conf], or master = "local[N]" with a smaller N'}
    assert said["1g"] == set()


def test_no_configuration(pgbridge, tmp_path, publisher):
    refused = pgbridge("status")
    assert refused.code != 0
    (command,) = re.findall("pgbridge (init .*)", refused.err)
    values = iter([shlex.quote(publisher.conninfo), "pub", "./lake"])
    assert pgbridge(*shlex.split(re.sub("…", lambda _: next(values), command))).code == 0
    assert pgbridge("status").code == 0
    assert load(tmp_path / "pgbridge.toml").subscription["pub"].connection == publisher.conninfo


def test_a_folder_that_is_no_demos(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(BridgeError) as caught, DemoFolder(tmp_path / "taken").taken():
        pass
    assert caught.value.hint == "choose a new folder: pgbridge demo --directory …"
    with DemoFolder(tmp_path / "new").taken():
        assert (tmp_path / "new").is_dir()


def test_modes_that_a_table_cannot_have():
    """A column that a history adds; a mirror that looks like one; a Delta table of another mode."""
    history = delta_schema("history", [("id", pa.int32())], "public.t")
    names = [("id", pa.int32()), ("valid_from", pa.string())]
    mode: Any
    like_one = [("id", pa.int32()), *VALIDITY]
    for mode, fields in (("history", names), ("mirror", like_one)):
        with pytest.raises(TargetError) as caught:
            delta_schema(mode, fields, "public.t")
        (changed,) = re.findall('set mode = "(.*)" for the table', caught.value.hint)
        assert delta_schema(changed, fields, "public.t").fields
        left_out = [field for field in fields if field[0] != fields[-1][0]]
        assert delta_schema(mode, left_out, "public.t").fields
    with pytest.raises(TargetError, match='not have the columns of mode = "mirror"') as caught:
        row_schema("mirror", history, "/lake/t")
    assert caught.value.hint.endswith("or put the mode back")
    assert [field.name for field in row_schema("history", history, "/lake/t")] == ["id"]


def test_a_replay_of_what_was_not_skipped(two, tmp_path):
    with catalog_of(tmp_path) as catalog:
        catalog.register("shop", enabled=True)
        catalog.create_origin("shop", Lsn(0x20), "abc", [])
        refused = two("replay", "shop", "--lsn", "0/30", "--dry-run")
        (command,) = re.findall("skip one first: pgbridge (.*)", refused.err)
        assert two(*shlex.split(command)).code == 0
        assert catalog.skip_lsn("shop") == Lsn(0x30)
