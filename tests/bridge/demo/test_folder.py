"""The demo's folder is taken only where that harms nobody, and its configuration file is one that loads."""

from __future__ import annotations

import pytest

from bridge.config import config
from bridge.demo.folder import MARKER, DemoFolder
from bridge.runtime.errors import BridgeError

CONNECTION = r"host='/tmp/a \'b\' \\c' port='5432' user='postgres' dbname='\"shop 🐘'"


def test_new_folder_is_made(tmp_path):
    place = DemoFolder(tmp_path / "some" / "folder")
    with place.taken():
        assert (place.directory / MARKER).exists()


def test_empty_folder_is_taken(tmp_path):
    with DemoFolder(tmp_path).taken():
        assert (tmp_path / MARKER).exists()


def test_folder_of_somebody_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "precious").touch()
    with pytest.raises(BridgeError, match=r"is not the folder of an earlier demo\nHINT: .*--directory"):
        DemoFolder(tmp_path).taken().__enter__()
    assert (tmp_path / "lake" / "precious").exists()
    assert not (tmp_path / MARKER).exists()


def test_results_of_an_earlier_demo_are_replaced_and_nothing_else(tmp_path):
    place = DemoFolder(tmp_path)
    with place.taken():
        place.write_config(CONNECTION)
        for path in (place.lake / "shop" / "part.parquet", tmp_path / "state" / "catalog.sqlite", tmp_path / "own.txt"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        place.log.touch()
        place.proof.touch()
    with place.taken():
        assert sorted(path.name for path in tmp_path.iterdir()) == [MARKER, "own.txt"]


def test_two_demos_do_not_share_a_folder(tmp_path):
    with DemoFolder(tmp_path).taken():
        (tmp_path / "lake").mkdir()
        with pytest.raises(BridgeError, match="another demo runs in"):
            DemoFolder(tmp_path).taken().__enter__()
        assert (tmp_path / "lake").exists()


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BridgeError, match="cannot be used"):
        DemoFolder(tmp_path / "file" / "demo").taken().__enter__()


def test_scratch_goes_with_the_demo(tmp_path):
    place = DemoFolder(tmp_path)
    with place.taken():
        (tmp_path / "scratch" / "blockmgr").mkdir(parents=True)
    assert not (tmp_path / "scratch").exists()


def test_configuration_is_valid(tmp_path, monkeypatch):
    """It loads, keeps a connection string as it is, and has both publications; wherever the demo was started."""
    monkeypatch.chdir(tmp_path.parent)
    place = DemoFolder(tmp_path)
    assert DemoFolder(tmp_path.relative_to(tmp_path.parent)).directory == place.directory
    with place.taken():
        place.write_config(CONNECTION)
        settings = config.load(place.config_file)
    published = {name: subscription.publications for name, subscription in settings.subscription.items()}
    assert published == {"shop": ("shop_pub",), "vip": ("vip_pub",)}
    for name, subscription in settings.subscription.items():
        assert subscription.connection == CONNECTION
        assert subscription.warehouse == str(place.lake / name)
    assert settings.spark.master == "local[2]"
    assert settings.spark.conf["spark.local.dir"] == str(place.directory / "scratch")
