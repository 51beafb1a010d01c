"""The protocol of a Delta table is read from its log without Spark, checkpoints included."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge.check.delta_protocol import FEATURES, RETENTION, check_conf, check_target, read_metadata, read_protocol
from bridge.check.finding import Level


@pytest.fixture
def log(tmp_path):
    folder = tmp_path / "_delta_log"
    folder.mkdir()
    return folder


def commit(log, version: int, *actions: dict[str, object]) -> None:
    (log / f"{version:020}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def protocol(reader: int, writer: int, *features: str) -> dict[str, object]:
    return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, "writerFeatures": list(features)}}


def look(log, **options):
    defaults = {"is_new": False, "adopt": False, "copy_data": True}
    return check_target("public.t", log.parent, **{**defaults, **options})


def test_no_table(tmp_path):
    assert check_target("public.t", tmp_path, is_new=True, adopt=False, copy_data=True) is None


def test_the_latest_protocol_counts(log):
    commit(log, 0, {"metaData": {}}, protocol(1, 2))
    commit(log, 1, protocol(3, 7, "appendOnly"))
    commit(log, 2, {"add": {}})
    found = read_protocol(log)
    assert found is not None
    assert (found.reader, found.writer, found.features) == (3, 7, frozenset({"appendonly"}))


def test_the_protocol_of_a_checkpoint(log):
    """The commits before it may be gone; one after it may change the protocol."""
    struct = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
    rows = pa.array([None, {"minReaderVersion": 1, "minWriterVersion": 2}], struct)
    pq.write_table(pa.table({"protocol": rows}), log / f"{10:020}.checkpoint.parquet")
    commit(log, 11, {"add": {}})
    found = read_protocol(log)
    assert found is not None
    assert (found.reader, found.writer) == (1, 2)
    commit(log, 12, protocol(3, 7))
    found = read_protocol(log)
    assert found is not None
    assert found.reader == 3


def test_findings(log):
    commit(log, 0, protocol(3, 7, "deletionVectors"))
    assert look(log).level is Level.PASS
    assert look(log, is_new=True).level is Level.WARNING
    assert look(log, is_new=True, adopt=True).level is Level.PASS
    assert look(log, is_new=True, copy_data=False).level is Level.PASS
    commit(log, 1, protocol(3, 7, "timeMachine"))
    found = look(log)
    assert (found.level, "the feature timemachine" in found.message) == (Level.FAILURE, True)
    commit(log, 1, protocol(4, 7))
    assert "protocol 4/7" in look(log).message


@pytest.mark.parametrize(
    ("retention", "short"),
    [
        (None, False),
        ("interval 20 seconds", True),
        ("INTERVAL 23 HOURS", True),
        ("interval 23 hours 59 minutes", True),
        ("interval 1 day", False),
        ("interval 24 hours", False),
        ("interval 1 week", False),
    ],
)
def test_a_table_that_forgets_its_commits_too_soon(log, retention, short):
    """So does one that is made with such a default."""
    properties = {RETENTION: retention} if retention else {}
    commit(log, 0, protocol(3, 7), {"metaData": {"configuration": properties}})
    commit(log, 1, protocol(3, 7), {"add": {}})
    found = look(log)
    assert found.level is (Level.WARNING if short else Level.PASS)
    assert found.statement == (
        f"ALTER TABLE delta.`{log.parent}` UNSET TBLPROPERTIES ('{RETENTION}');" if short else ""
    )
    default = {"spark.databricks.delta.properties.defaults.setTransactionRetentionDuration": retention}
    assert [one.level for one in check_conf(default if retention else {})] == [Level.WARNING] * short


@pytest.mark.parametrize("content", ["{", '{"protocol": {}}'])
def test_a_broken_log(log, content):
    (log / f"{0:020}.json").write_text(content)
    assert (look(log).level, "cannot be read" in look(log).message) == (Level.FAILURE, True)


def test_a_log_without_a_protocol(log):
    commit(log, 0, {"add": {}})
    assert "no protocol" in look(log).message


def test_the_features_are_those_of_this_delta(spark, tmp_path):
    """Pinned: Delta's own list, and a table that it has written."""
    found = spark._jvm.org.apache.spark.sql.delta.TableFeature.allSupportedFeaturesMap().keysIterator()
    names = set()
    while found.hasNext():
        names.add(found.next())
    assert names == FEATURES
    path = tmp_path / "t"
    spark.range(3).write.format("delta").option("delta.enableDeletionVectors", "true").save(str(path))
    written = read_protocol(path / "_delta_log")
    assert written is not None
    assert "deletionvectors" in written.features


def test_a_statement_that_removes_the_property(spark, tmp_path):
    """From a table of Delta's own, whose properties are in a checkpoint."""
    path = tmp_path / "t"
    spark.range(3).write.format("delta").option(RETENTION, "interval 1 hour").save(str(path))
    log = path / "_delta_log"
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(path)).checkpoint()
    entry = (log / f"{0:020}.json").rename(log / "aside")
    found = look(log)
    assert found.level is Level.WARNING
    entry.rename(log / f"{0:020}.json")
    spark.sql(found.statement.removesuffix(";")).collect()
    assert RETENTION not in read_metadata(log)[1]
    assert look(log).level is Level.PASS
