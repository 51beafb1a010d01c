"""A folder's configuration is a real one, and a copy of the folder has tables of its own."""

from __future__ import annotations

from contextlib import closing

import pytest

from benchmarks.bridge_folder import NAME, BridgeFolder, copies, is_copied
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.config.config import load
from pgbridge.protocol.lsn import Lsn


@pytest.fixture
def folder(tmp_path):
    """A folder whose subscription has copied a table."""
    made = BridgeFolder(tmp_path / "start")
    made.configure("dbname=x", "p", slot_name="s", spark={"spark.driver.memory": "1g"}, streaming="on")
    rel = RelRow("public", "t", "r", Lsn(5), str(made.path / "lake" / "public" / "t"), 7)
    with closing(made.catalog()) as catalog:
        catalog.register(NAME, enabled=True)
        catalog.create_origin(NAME, Lsn(5), "incarnation", [rel])
    log = made.path / "lake" / "public" / "t" / "_delta_log"
    log.mkdir(parents=True)
    for name in ("0.json", "1.json", "1.checkpoint.parquet"):
        (log / name).touch()
    return made


def test_configuration(folder):
    config = load(folder.config_file)
    (subscription,) = config.choose()
    assert (subscription.name, subscription.connection, subscription.slot_name) == (NAME, "dbname=x", "s")
    assert subscription.warehouse == str(folder.path / "lake")
    assert subscription.streaming == "on"
    assert config.state_dir == folder.path / "state"
    assert config.spark.conf == {"spark.driver.memory": "1g"}


def test_state(folder):
    assert folder.remote_lsn() == Lsn(5)
    assert folder.commits() == 2
    assert folder.last_error() is None
    with closing(folder.catalog()) as catalog:
        catalog.record_error(NAME, "it failed", counter=None, at_lsn=Lsn(5))
    assert folder.last_error() == "it failed"


@pytest.mark.parametrize(("states", "expected"), [("", False), ("d", False), ("fi", False), ("fsr", True)])
def test_when_all_are_copied(tmp_path, states, expected):
    folder = BridgeFolder(tmp_path)
    (tmp_path / "state").mkdir()
    with closing(folder.catalog()) as catalog:
        catalog.register(NAME, enabled=True)
        for state in states:
            catalog.put_rel(NAME, RelRow("public", f"t_{state}", state, Lsn(5), ""))
        assert len(copies(catalog)) == len(states)
        assert is_copied(catalog) is expected


def test_copy_goes_on_in_its_own_tables(folder, tmp_path):
    copy = folder.copied_to(tmp_path / "copy")
    assert copy.paths() == {"t": str(tmp_path / "copy" / "lake" / "public" / "t")}
    assert (copy.remote_lsn(), copy.commits()) == (Lsn(5), 2)
    assert folder.paths() == {"t": str(tmp_path / "start" / "lake" / "public" / "t")}
    copy.remove()
    assert not (tmp_path / "copy").exists()
    assert folder.commits() == 2


def test_a_new_folder_has_no_lsn(tmp_path):
    folder = BridgeFolder(tmp_path / "new")
    folder.configure("dbname=x", "p", slot_name="s")
    assert folder.remote_lsn() is None
    assert folder.paths() == {}
