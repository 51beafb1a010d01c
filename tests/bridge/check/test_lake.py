"""The protocol of a Delta table is read from its log without Spark, checkpoints included.

What `pgbridge check` says of catalogs; `tests/faults/test_catalog.py` asks a real metastore.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgbridge.bridge.check.finding import Level
from pgbridge.bridge.check.lake import (
    FEATURES,
    check_by_spark,
    check_conf,
    check_target,
    read_metadata,
    read_protocol,
)
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.config.daemon_tables import Spark
from pgbridge.bridge.spark.driver import Driver
from pgbridge.bridge.targets.properties import RETENTION


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


URL = "spark.hadoop.javax.jdo.option.ConnectionURL"
SHOP = "catalog:spark_catalog.shop"


@pytest.fixture
def no_spark(monkeypatch):
    """Spark cannot be started."""

    def start(*_: Any, **__: Any) -> None:
        raise OSError("no Java")

    monkeypatch.setattr(Driver, "start", start)


def looked_at(*warehouses: str, conf: dict[str, Any] | None = None, running: bool = False, properties: Any = None):
    """What is found of warehouses, each of a subscription."""
    subscriptions = [
        Subscription(
            name=f"s{number}",
            connection="",
            publications=("p",),
            warehouse=warehouse,
            target={"properties": properties or {}},
        )
        for number, warehouse in enumerate(warehouses)
    ]
    found = check_by_spark(Spark(conf=conf or {}), subscriptions, running=running)
    return {one.warehouse: found[one.name] for one in subscriptions}


@pytest.mark.usefixtures("no_spark")
def test_spark_is_started_only_if_it_must_be(tmp_path):
    derby = {URL: f"jdbc:derby:;databaseName={tmp_path}/db;create=true"}
    assert looked_at("/lake", "s3a://b/lake") == {"/lake": [], "s3a://b/lake": []}
    running = looked_at(SHOP, "/lake", running=True)
    assert {text: [one.level for one in each] for text, each in running.items()} == {SHOP: [Level.PASS], "/lake": []}
    (unmade,) = looked_at(SHOP, conf=derby)[SHOP]
    assert (unmade.level, f"{tmp_path}/db" in unmade.message) == (Level.PASS, True)
    (tmp_path / "db").mkdir()
    for conf in (derby, {"spark.hadoop.hive.metastore.uris": "thrift://m:9083"}, {URL: "jdbc:postgresql://m/hive"}):
        (found,) = looked_at(SHOP, conf=conf)[SHOP]
        assert (found.level, "no Java" in found.message) == (Level.FAILURE, True)
    both = looked_at(SHOP, "catalog:main", conf=derby)
    assert {text: len(each) for text, each in both.items()} == {SHOP: 1, "catalog:main": 1}
    (properties,) = looked_at("/lake", properties={"delta.enableChangeDataFeed": True})["/lake"]
    assert (properties.subject, properties.level) == ("spark", Level.FAILURE), "it cannot be started"


def test_a_derby_that_another_jvm_has(monkeypatch, tmp_path):
    def sql(statement):
        raise RuntimeError("Another instance of Derby may have already booted the database")

    asked = SimpleNamespace(sql=sql, conf=SimpleNamespace(get=lambda *_: "x"), stop=lambda: None)
    monkeypatch.setattr(Driver, "start", lambda *_, **__: asked)
    (tmp_path / "db").mkdir()
    conf = {URL: f"jdbc:derby:;databaseName={tmp_path}/db;create=true"}
    (found,) = looked_at(SHOP, conf=conf)[SHOP]
    assert (found.level, "one JVM at a time" in found.remedy) == (Level.FAILURE, True)
