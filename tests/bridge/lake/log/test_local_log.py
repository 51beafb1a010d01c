"""The log of a local table tells its latest version, and what Delta has written of one; which tables are local."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pgbridge.bridge.lake.log.commit_info import Commit
from pgbridge.bridge.lake.log.local_log import (
    checksum_of,
    entry_of,
    folder_uri,
    has_checkpoint_after,
    info_of,
    last_transaction,
    latest_version,
    local_folder,
    log_of,
    whole_overwrite,
)
from pgbridge.bridge.lake.table import table_version


def touch(folder, *names):
    for name in names:
        Path(folder, name).touch()


def test_tables_of_other_file_systems_have_no_log_here():
    assert log_of("s3a://bucket/t") is None
    assert log_of(None) is None


def test_the_latest_version_is_that_of_the_log(tmp_path):
    assert latest_version(tmp_path) == -1
    touch(tmp_path, *(entry_of(tmp_path, version).name for version in (8, 9, 10)), "00000000000000000011.crc", "x.json")
    assert latest_version(tmp_path) == 10


def test_the_log_is_not_listed_if_it_has_a_checkpoint(spark, tmp_path, monkeypatch):
    path = tmp_path / "t"
    for _ in range(12):
        spark.range(1).write.format("delta").option("delta.checkpointInterval", "5").mode("append").save(str(path))
    log = path / "_delta_log"
    assert (log / "_last_checkpoint").exists()
    with monkeypatch.context() as unlisted:
        unlisted.setattr(Path, "glob", None)
        assert latest_version(log) == 11
    for wrong in ("", "{}", '{"version": "x"}', '{"version": 99}', "[]"):
        (log / "_last_checkpoint").write_text(wrong)
        assert latest_version(log) == 11 == table_version(spark, str(path))


def test_what_is_written_of_a_version_may_be_missing_or_broken(tmp_path):
    assert checksum_of(tmp_path, 3) is None
    for wrong in ("", "[]", "{"):
        (tmp_path / "00000000000000000003.crc").write_text(wrong)
        assert checksum_of(tmp_path, 3) is None
    (tmp_path / "00000000000000000003.crc").write_text('{"numFiles": 1}')
    assert checksum_of(tmp_path, 3) == {"numFiles": 1}


def info(mode="Overwrite", **others):
    return {"commitInfo": {"operation": "WRITE", "operationParameters": {"mode": mode}, "txnId": "t"} | others}


@pytest.mark.parametrize(
    ("entry", "checksum", "whole"),
    [
        ([info(), {"add": {"path": "a"}}, {"remove": {"path": "b"}}], {"txnId": "t", "numFiles": 1}, True),
        ([info(), {"add": {"path": "a", "stats": "\u2028\x85"}}], {"txnId": "t", "numFiles": 1}, True),
        ([info(), {"txn": {"appId": "x", "version": 1}}], {"txnId": "t", "numFiles": 0}, []),
        ([info(mode="Append"), {"add": {"path": "a"}}], {"txnId": "t", "numFiles": 1}, False),
        ([info(operation="MERGE"), {"add": {"path": "a"}}], {"txnId": "t", "numFiles": 1}, False),
        (
            [info(operationParameters={"mode": "Overwrite", "predicate": "id > 1"})],
            {"txnId": "t", "numFiles": 1},
            False,
        ),
        ([info(mode="Append")], {"txnId": "t", "numFiles": 0}, []),
        ([info(mode="Append")], {"txnId": "another", "numFiles": 0}, False),
        ([info(), {"add": {"path": "a"}}], {"txnId": "t", "numFiles": 2}, False),
        ([info(), {"add": {"path": "a"}}], {"txnId": "another", "numFiles": 1}, False),
        ([info(), {"add": {"path": "a"}}], {}, False),
        ([info(), {"add": {"path": "a"}}], None, False),
        ([info(), {"add": {"path": "a" * (1 << 20)}}], {"txnId": "t", "numFiles": 1}, False),
        ([info(txnId=None), {"add": {"path": "a"}}], {"txnId": None, "numFiles": 1}, False),
        ([{"add": {"path": "a"}}], {"txnId": "t", "numFiles": 1}, False),
        ([{"commitInfo": {}}], {"txnId": "t", "numFiles": 0}, False),
        (None, {"txnId": "t", "numFiles": 0}, False),
        (["not an action"], {"txnId": "t", "numFiles": 0}, False),
        ([[1]], {"txnId": "t", "numFiles": 0}, False),
    ],
)
def test_whether_a_commit_has_replaced_all_files(tmp_path, entry, checksum, whole):
    """A checksum that does not say, or is another commit's, an entry that is gone, large, or of another form: no."""
    if entry is not None:
        lines = (json.dumps(action, ensure_ascii=False) for action in entry)
        entry_of(tmp_path, 3).write_text("\n".join(lines) + "\n", encoding="utf-8")
    if checksum is not None:
        (tmp_path / f"{3:020}.crc").write_text(json.dumps(checksum))
    assert whole_overwrite(tmp_path, 3) == ({True: entry, False: None}[whole] if isinstance(whole, bool) else whole)


@pytest.mark.parametrize("line", ['{"txn":{"appId":"app","version":7}}', '{ "txn": {"version": 7, "appId": "app"} }'])
def test_transactions_of_other_writers_are_read(tmp_path, line):
    entry_of(tmp_path, 0).write_text(f'{{"commitInfo":{{"note":"\\"txn\\""}}}}\n{line}\n', encoding="utf-8")
    assert last_transaction(tmp_path, 0, "app") == 7
    assert last_transaction(tmp_path, 0, "other") == -1


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/lake/public/t", "/lake/public/t"),
        ("file:/lake/public/t", "/lake/public/t"),
        ("file:///lake/a b/t", "/lake/a b/t"),
        ("file:///lake/a%20b/%2E%2e/ü", "/lake/a%20b/%2E%2e/ü"),
        ("file:///lake/a?b#c:d;e+f&g[h]\ni", "/lake/a?b#c:d;e+f&g[h]\ni"),
        ("file://host/lake", "/lake"),
        ("s3a://bucket/lake/public/t", None),
        ("hdfs://host/lake", None),
        ("hdfs:/lake", None),
    ],
)
def test_a_local_folder_is_the_one_that_hadoop_takes_a_path_for(spark, path, folder):
    uri = spark._jvm.org.apache.hadoop.fs.Path(path).toUri()
    assert (uri.getPath() if uri.getScheme() in {None, "file"} else None) == folder
    assert local_folder(path) == (None if folder is None else Path(folder))
    assert folder is None or local_folder(folder_uri(Path(folder))) == Path(folder)


@pytest.mark.parametrize("left", [b"", b"\0" * 300, b'{"commitInfo":{"operation":"WRI', b'\xff{"commitInfo":\xfe'])
def test_what_a_power_cut_leaves_of_an_entry_says_nothing(tmp_path, left):
    entry = tmp_path / "00000000000000000003.json"
    entry.write_bytes(left)
    assert info_of(entry) == {}
    assert Commit.of_log(3, info_of(entry)).operation == ""


@pytest.mark.parametrize("says", ['{"add":{"path":"p"}}', '{"commitInfo":{"timestamp":7}}', '{"txn":{}}\n{"add":{}}'])
def test_a_commit_that_says_nothing_of_itself_is_another_writers(tmp_path, says):
    """Delta's protocol lets it."""
    entry = tmp_path / "00000000000000000003.json"
    entry.write_text(says + "\n")
    commit = Commit.of_log(3, info_of(entry))
    assert commit.changes_rows
    assert commit.operation == "UNKNOWN"


@pytest.mark.parametrize(
    ("names", "there"),
    [
        ((), False),
        (("00000000000000000007.checkpoint.parquet",), False),
        (("00000000000000000008.checkpoint.parquet",), True),
        (("00000000000000000009.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json",), True),
        (("00000000000000000009.checkpoint.0000000001.0000000002.parquet",), False),  # a part of one
    ],
)
def test_a_checkpoint_that_is_later(tmp_path, names, there):
    """Also without the hint, which Delta may not have been able to keep."""
    for name in names:
        (tmp_path / name).touch()
    assert has_checkpoint_after(tmp_path, 7) is there
    (tmp_path / "_last_checkpoint").write_text(json.dumps({"version": 8}))
    assert has_checkpoint_after(tmp_path, 7)
    assert not has_checkpoint_after(tmp_path, 9)
