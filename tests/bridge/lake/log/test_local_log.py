"""The log of a local table tells its latest version, and what Delta has written of a version."""

from pathlib import Path

from bridge.lake.log.local_log import checksum_of, entry_of, latest_version, log_of
from bridge.lake.table import table_version


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
