"""A warehouse that is another folder on each machine is refused before anything is written to it."""

from __future__ import annotations

from typing import Any

import pytest

from pgbridge.bridge.lake import shared_folder
from pgbridge.bridge.lake.log.local_log import local_folder
from pgbridge.bridge.lake.shared_folder import SharedFolders, check_shared
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.spark.session import driver_for


class Cluster:
    """Stands for a session: so many of the files that its tasks write are on this machine."""

    def __init__(self, here: int) -> None:
        self.here, self.written = here, 0
        self.write = self

    def range(self, start: int, end: int, step: int, tasks: int) -> Cluster:
        """The session's."""
        assert (start, end, step) == (0, tasks, 1)
        return self

    def csv(self, uri: str) -> None:
        """The writer's."""
        folder = local_folder(uri)
        assert folder is not None
        folder.mkdir()
        self.written += 1
        for number in range(self.here):
            (folder / f"part-{number:05}.csv").touch()


@pytest.fixture
def elsewhere(monkeypatch):
    monkeypatch.setattr(shared_folder, "driver_of", lambda _: driver_for("spark://a:7077"))


def check(cluster: Any, warehouse: object) -> None:
    check_shared(cluster, str(warehouse))


def test_all_files_are_here(elsewhere, tmp_path):
    check(Cluster(16), tmp_path / "the lake%20")
    assert list((tmp_path / "the lake%20").iterdir()) == []


@pytest.mark.parametrize("here", [0, 15])
def test_files_are_on_other_machines(elsewhere, tmp_path, here):
    with pytest.raises(TargetError, match=f"of 16 files .* has {here}\n"):
        check(Cluster(here), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_object_store_is_shared(elsewhere):
    cluster = Cluster(0)
    check(cluster, "s3a://lake/shop")
    assert cluster.written == 0


def test_a_catalogs_tables(elsewhere, tmp_path, monkeypatch):
    """They lie where the catalog has put them; tables of one folder are looked at together."""
    places = {"catalog:c.shop.a": f"{tmp_path}/shop.db/a", "catalog:c.shop.b": f"{tmp_path}/shop.db/b"}
    monkeypatch.setattr(shared_folder, "place_of", lambda _, location: places.get(location, "s3a://lake/x/t"))
    shared: Any = Cluster(16)
    folders = SharedFolders(shared)
    for location in (*places, "catalog:c.other.t", f"{tmp_path}/no/catalog"):
        folders.check(location)
    assert shared.written == 1
    apart: Any = Cluster(3)
    folders = SharedFolders(apart)
    for _ in range(2):
        with pytest.raises(TargetError, match=r"shop.db is not the same folder .* of 16 files .* has 3\n"):
            folders.check("catalog:c.shop.a")


def test_spark_on_this_machine_is_not_asked(spark, tmp_path):
    check(spark, tmp_path)
    assert list(tmp_path.iterdir()) == []
