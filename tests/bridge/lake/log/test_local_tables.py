"""What is on disk when the catalog is told: a disk that forgets all that was not flushed stands for a power cut."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.effects.events import INSERT, UPDATE
from pgbridge.bridge.lake.log import local_tables
from pgbridge.bridge.lake.log.local_log import entry_of
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.runtime.errors import ApplyError, StateError
from pgbridge.bridge.targets.target import Target
from pgbridge.protocol.lsn import Lsn
from tests.bridge.apply import made_batches
from tests.bridge.apply.made_batches import batch, settling
from tests.bridge.apply.made_targets import changes, content, empty_target
from tests.oracle.delta import differences

if TYPE_CHECKING:
    from collections.abc import Collection


class Disk:
    """Which files are on disk: a file needs to be flushed itself, and so does its folder once it names the file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents: set[Path] = set()
        self.names: set[Path] = set()
        self.calls: list[Path] = []
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(local_tables, "_flush_file_system", self._syncfs)

    def _fsync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        self.calls.append(path)
        if path.is_dir():
            self.names.update(path.iterdir())
        else:
            self.contents.add(path)

    def _syncfs(self, folder: Path, device: int) -> tuple[int, int]:
        self.calls.append(folder)
        self.names.update(folder.rglob("*"), folder.parents, {folder})
        self.contents.update(folder.rglob("*"))
        return local_tables._failures.get(device, 0), 0

    def after_power_cut(self, lake: Path, copy: Path) -> Path:
        """A copy of a folder, as it would be found after a power cut now."""
        shutil.rmtree(copy, ignore_errors=True)
        for path in lake.rglob("*"):
            named = all(part in self.names for part in (path, *path.parents) if part.is_relative_to(lake))
            if path.is_file() and path in self.contents and named:
                target = copy / path.relative_to(lake)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
        return copy


class FailingDisk(Disk):
    """A disk that loses files when it fails, and tells of that once: the kernel then has their pages as clean.

    Attributes:
        failures: How many of the next flushes fail; each loses all files that are not on disk.
        lost: These files. After a power cut they are empty, or as they were written: the kernel may have come further
            than it said.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lake: Path) -> None:
        super().__init__(monkeypatch)
        self.lake = lake
        self.failures = 0
        self.lost: set[Path] = set()

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            self.lost |= {path for path in self.lake.rglob("*") if path.is_file() and path not in self.contents}
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _fsync(self, descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(self.lake):
            self._fail()
        super()._fsync(descriptor)

    def _syncfs(self, folder: Path, device: int) -> tuple[int, int]:
        self._fail()
        return super()._syncfs(folder, device)

    def lost_log_entries(self) -> list[Path]:
        """The commits among the lost files."""
        return sorted(path for path in self.lost if re.fullmatch(r"\d{20}\.json", path.name))

    def rows_after_power_cut(self, emptied: Collection[Path]) -> list[tuple[Any, ...]]:
        """The table's rows without these of the lost log entries, by the rules of Delta's protocol."""
        log = sorted(self.lake.glob("_delta_log/*.json"))
        assert set(log) <= self.contents | self.lost
        lines = chain.from_iterable(path.read_text().splitlines() for path in log if path not in emptied)
        files: set[str] = set()
        for action in map(json.loads, lines):
            for name, change in (("remove", files.discard), ("add", files.add)):
                if name in action:
                    assert "deletionVector" not in action[name]
                    change(action[name]["path"])
        rows = (row for file in files for row in pq.read_table(self.lake / file).to_pylist())
        return sorted(tuple(row.values()) for row in rows)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.fixture
def failing_disk(monkeypatch, tmp_path):
    return FailingDisk(monkeypatch, tmp_path / "t")


def test_what_the_catalog_calls_durable_survives_a_power_cut(spark, publisher, pipeline, disk, monkeypatch, tmp_path):
    """Of the copy, and of every batch after it: with a new file, with a MERGE, with a column more."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1)")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE t")
    bridge = pipeline(batch__max_rows=1)
    lake, copy = bridge.folder / "lake", tmp_path / "copy"
    seen = []

    def cut(*_args, **_more):
        disk.after_power_cut(lake, copy)
        seen.append(len(spark.read.format("delta").load(str(copy / "public" / "t")).collect()))

    for name in ("put_rel", "finish_batch"):
        method = getattr(Catalog, name)

        def wrapped(self, subscription, what, *args, _method=method, **more):
            if getattr(what, "state", "f") == "f":  # the copy's end, or a batch's
                cut()
            return _method(self, subscription, what, *args, **more)

        monkeypatch.setattr(Catalog, name, wrapped)
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (2, 2)")
    publisher.execute(
        "ALTER TABLE t ADD c int DEFAULT 5; INSERT INTO t VALUES (3, 3, 3); UPDATE t SET n = 4 WHERE id = 1"
    )
    bridge.catch_up()
    assert seen[-1] == 3
    assert sorted(set(seen)) == [1, 2, 3]
    assert differences(spark, str(copy / "public" / "t"), publisher, "t") == []


def test_what_was_taken_back_is_taken_back_on_disk_before_the_catalog_knows(spark, disk, monkeypatch, tmp_path):
    good, bad = empty_target(spark, tmp_path / "good"), empty_target(spark, tmp_path / "bad")
    spark.sql(f"ALTER TABLE delta.`{bad.path}` ADD CONSTRAINT small CHECK (id < 5)").collect()
    catalog = Catalog(catalog_path(tmp_path / "state"))
    catalog.register("sub", enabled=True)
    catalog.create_origin("sub", Lsn(0x10), "inc", [])
    applier = made_batches.applier(spark, catalog)
    found = []

    def drop_batch(_name):
        lake = Path(good.path)
        copy = disk.after_power_cut(lake, tmp_path / "copy")
        found.append(content(spark, Target("public", "copy", str(copy), good.schema)))

    monkeypatch.setattr(catalog, "drop_batch", drop_batch)
    with pytest.raises(ApplyError, match="small"):
        applier.apply(batch(changes(good, (INSERT, None, 1, "a")), changes(bad, (INSERT, None, 9, "b"))))
    assert found == [[]]
    catalog.close()


def life(spark, catalog, batch):
    """Do what a worker does with a batch that an earlier life may have begun."""
    made = made_batches.applier(spark, catalog)
    intent = catalog.batch("sub")
    if intent is not None:
        assert intent.must_be_undone
        settling(spark, catalog).undo()
    made.apply(batch)


@pytest.mark.parametrize(
    ("failures", "commits", "made"),
    [
        (1, 1, 1),
        pytest.param(2, 2, 4, marks=pytest.mark.soak),
        pytest.param(1, 2, 2, marks=pytest.mark.soak),
        pytest.param(3, 2, 7, marks=pytest.mark.soak),
    ],
)
def test_a_flush_that_succeeds_after_one_that_failed_is_not_believed(
    spark, catalog, target, failing_disk, tmp_path, failures, commits, made
):
    """What was lost is written anew, also an undo's RESTOREs. Whatever came to disk: each row is there once.

    Of a batch with two commits, the second removes what the first has written.
    """
    catalog.put_rel("sub", RelRow("public", "t", "r", Lsn(0), target.path))
    kept = replace(batch(changes(target, (INSERT, None, 0, "kept"))), end_lsn=Lsn(0x11), finish_lsn=Lsn(0x10))
    life(spark, catalog, replace(kept, start_lsn=Lsn(0)))
    failing_disk.failures = failures
    parts = [changes(target, (INSERT, None, 1, "a")), changes(target, (UPDATE, None, 1, "b"))][:commits]
    one = replace(batch(*parts), start_lsn=Lsn(0x11))
    for _ in range(failures):
        with pytest.raises(StateError, match="Input/output error"):
            life(spark, catalog, one)
    life(spark, catalog, one)
    rows = [(0, "kept"), (1, "ab"[commits - 1])]
    assert content(spark, target) == rows
    lost = failing_disk.lost_log_entries()
    assert len(lost) == made  # two commits are undone by two RESTOREs, and these with them by three
    for emptied in chain.from_iterable(combinations(lost, number) for number in range(len(lost) + 1)):
        assert failing_disk.rows_after_power_cut(emptied) == rows
    copy = failing_disk.after_power_cut(failing_disk.lake, tmp_path / "copy")
    for path in lost:
        (copy / path.relative_to(failing_disk.lake)).touch()
    assert content(spark, Target("public", "copy", str(copy), target.schema)) == rows


def committed(table, version, *names, **more):
    """Make files of a table, with Hadoop's checksums, and a version that adds them."""
    log = table / "_delta_log"
    actions = [{"commitInfo": {}}, *({"add": {"path": quote(name), **more}} for name in names)]
    entry = f"_delta_log/{version:020}.json"
    for name in (*names, entry, entry.replace(".json", ".crc")):
        path = table / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f".{path.name}.crc").touch()
        path.touch()
    entry_of(log, version).write_text("".join(f"{json.dumps(action, separators=(',', ':'))}\n" for action in actions))


@pytest.fixture
def table(tmp_path):
    """Its name is as those of `table_path`: of a `file:` URI, Hadoop decodes nothing."""
    committed(tmp_path / "a b%2Fc#?", 0)
    return tmp_path / "a b%2Fc#?"


def test_each_file_is_flushed_once_and_its_folders_after_it(disk, table):
    tables = LocalTables()
    tables.flush([str(table)])
    assert disk.calls == [table]
    committed(table, 1, "a.parquet", "p=%20 1/b.parquet")
    (table / "of nobody's commit.parquet").touch()
    disk.calls.clear()
    tables.flush([f"file://{table}"])
    assert set(disk.calls[-3:]) == {table / "p=%20 1", table / "_delta_log", table}
    assert disk.calls[-1] == table
    assert len(disk.calls) == 4 + 4 + 3
    disk.calls.clear()
    tables.flush([str(table)])
    assert disk.calls == []


@pytest.mark.parametrize("prefixes", ["true", "false"])
def test_deletion_vectors_changes_and_checkpoints_are_flushed_too(spark, disk, tmp_path, prefixes):
    """All files that Delta itself makes."""
    path = tmp_path / "t"
    properties = {
        "enableDeletionVectors": "true",
        "enableChangeDataFeed": "true",
        "checkpointInterval": "2",
        "randomizeFilePrefixes": prefixes,
    }
    listed = ", ".join(f"'delta.{key}' = '{value}'" for key, value in properties.items())
    columns = "(id long, p string) USING delta PARTITIONED BY (p)"
    spark.sql(f"CREATE TABLE delta.`{path}` {columns} TBLPROPERTIES ({listed})").collect()
    tables = LocalTables()
    tables.flush([str(path)])
    for number in range(3):
        frame = spark.range(9).selectExpr("id", f"'a /%{number}' AS p").coalesce(1)
        frame.write.format("delta").mode("append").save(str(path))
        spark.sql(f"UPDATE delta.`{path}` SET id = -1 WHERE id = {number}").collect()
        disk.calls.clear()
        tables.flush([str(path)])
        assert path not in disk.calls[:-1]  # not by the whole file system
        files = {file for file in path.rglob("*") if file.is_file() and "_last_checkpoint" not in file.name}
        assert files - disk.contents == set()
        assert {file.parent for file in files} <= disk.names | {path}
    assert any("deletion_vector" in file.name for file in disk.contents)
    assert any(file.name.startswith("cdc-") for file in disk.contents)
    assert any(".checkpoint" in file.name for file in disk.contents)


def test_a_file_that_goes_meanwhile_is_passed_over(disk, table):
    tables = LocalTables()
    tables.flush([str(table)])
    committed(table, 1, "gone")
    (table / "gone").unlink()
    tables.flush([str(table)])
    assert (table / ".gone.crc") in disk.contents


def a_large_entry(table):
    committed(table, 1)
    with entry_of(table / "_delta_log", 1).open("a") as entry:
        entry.write("x" * (1 << 20))


def another_table(table):
    shutil.rmtree(table)
    committed(table, 0)
    committed(table, 1)


def sidecars(table):
    committed(table, 1)
    (table / "_delta_log" / "_sidecars").mkdir()
    (table / "_delta_log" / "_last_checkpoint").write_text('{"version": 1}')


@pytest.mark.parametrize(
    "change",
    [
        lambda table: committed(table, 1, *map(str, range(300))),
        a_large_entry,
        another_table,
        sidecars,
        lambda table: entry_of(table / "_delta_log", 0).rename(entry_of(table / "_delta_log", 5)),
        lambda table: (committed(table, 1), entry_of(table / "_delta_log", 1).write_text('{"add":{}}')),
    ],
    ids=["many files", "a large entry", "another table", "sidecars", "a log that was cut", "an unreadable entry"],
)
def test_the_whole_file_system_is_flushed_where_that_is_quicker_or_the_log_does_not_tell(disk, table, change):
    tables = LocalTables()
    tables.flush([str(table)])
    change(table)
    tables.flush([str(table)])
    assert disk.calls == [table, table]


@pytest.mark.parametrize(
    ("release", "tells"),
    [
        ("6.18.44-generic", True),
        ("5.10.16.3-microsoft-standard-WSL2", True),
        ("5.8.0", True),
        ("5.7.19-generic", False),
        ("4.18.0-553.el8_10.x86_64", False),
        ("unknown", False),
    ],
)
def test_a_kernel_whose_syncfs_tells_of_no_error_flushes_each_file(disk, monkeypatch, tmp_path, release, tells):
    """At the first flush with the folders above, which the table's own is new in; and whatever the number of files."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
    table = tmp_path / "lake" / "t"
    committed(table, 0)
    above = sum(folder.stat().st_dev == table.stat().st_dev for folder in table.parents)
    tables = LocalTables()
    for flush in range(2):
        committed(table, flush + 1, *(f"{flush}-{number}" for number in range(300)))
        disk.calls.clear()
        tables.flush([str(table)])
        assert (disk.calls == [table]) is tells
        assert disk.after_power_cut(tmp_path, tmp_path.with_name("copy")).joinpath("lake/t", f"{flush}-299").exists()
        files = sum(file.is_file() for file in table.rglob("*"))
        assert len(disk.calls) == (1 if tells else 604 + 2 if flush else files + 2 + above)


def test_a_disk_that_does_not_take_it_is_named_with_the_remedy(monkeypatch, table):
    tables = LocalTables()
    tables.flush([str(table)])  # syncfs itself, too
    committed(table, 1, "a.parquet")

    def full(_descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateError, match=r"t/.* cannot be made durable: Input/output error") as caught:
        tables.flush([str(table)])
    assert "--resync TABLE" in caught.value.hint


def test_other_file_systems_and_tables_that_are_not_there_are_passed_over(disk, tmp_path):
    LocalTables().flush(["s3a://bucket/lake/public/t", str(tmp_path / "nothing")])
    assert disk.calls == []


def test_a_failure_that_another_table_was_told_is_told_to_all_that_had_unflushed_files(tmp_path, monkeypatch):
    """The kernel tells it once. Whoever begins afterwards has written nothing that it could have lost."""
    monkeypatch.setattr(local_tables, "_failures", {})
    monkeypatch.setattr(local_tables, "_descriptors", {})
    monkeypatch.setattr(local_tables, "_syncfs_tells", lambda: True)
    answers = iter([errno.EIO, *[0] * 9])
    monkeypatch.setattr(local_tables, "_syncfs", lambda _: next(answers))
    for name in "abc":
        (tmp_path / name / "_delta_log").mkdir(parents=True)
    one, other = LocalTables(), LocalTables()
    for tables, name in ((one, "a"), (one, "b"), (other, "a"), (other, "b")):
        with pytest.raises(StateError, match=f"{name} cannot be made durable: Input/output error"):
            tables.flush([str(tmp_path / name)])
    for tables in (one, other, LocalTables()):
        tables.flush([str(tmp_path / "a")])
    LocalTables().flush([str(tmp_path / "c")])
    assert len(list(answers)) == 2, "each has asked the kernel"


def test_a_table_whose_files_were_flushed_each_is_told_of_no_earlier_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(local_tables, "_failures", {})
    (tmp_path / "a" / "_delta_log").mkdir(parents=True)
    tables = LocalTables()
    local_tables._failures[tmp_path.stat().st_dev] = 1
    monkeypatch.setattr(local_tables, "_syncfs_tells", lambda: False)
    tables.flush([str(tmp_path / "a")])
    monkeypatch.setattr(local_tables, "_syncfs_tells", lambda: True)
    tables.flush([str(tmp_path / "a")])


def test_one_descriptor_of_each_file_system_stays_open(tmp_path, monkeypatch):
    """Another process that is told of an error takes it away from who opens later."""
    monkeypatch.setattr(local_tables, "_descriptors", {})
    (tmp_path / "a").mkdir()
    for _ in range(2):
        LocalTables().flush([str(tmp_path / "a")])
    (descriptor,) = local_tables._descriptors.values()
    assert os.fstat(descriptor).st_dev == tmp_path.stat().st_dev
    os.close(descriptor)
