"""What `pgbridge check` says of catalogs; `tests/faults/test_catalog.py` asks a real metastore."""

from types import SimpleNamespace
from typing import Any

import pytest

from bridge.check.catalogs import check_catalogs
from bridge.check.finding import Level
from bridge.config.config import Spark
from bridge.spark import session

URL = "spark.hadoop.javax.jdo.option.ConnectionURL"
SHOP = "catalog:spark_catalog.shop"


@pytest.fixture
def no_spark(monkeypatch):
    """Spark cannot be started."""

    def start(*_: Any, **__: Any) -> None:
        raise OSError("no Java")

    monkeypatch.setattr(session, "start", start)


@pytest.mark.usefixtures("no_spark")
def test_spark_is_started_only_if_it_must_be(tmp_path):
    derby = {URL: f"jdbc:derby:;databaseName={tmp_path}/db;create=true"}
    assert check_catalogs(Spark(), ["/lake", "s3a://b/lake"], running=False) == {}
    running = check_catalogs(Spark(), [SHOP, "/lake"], running=True)
    assert {text: one.level for text, one in running.items()} == {SHOP: Level.PASS}
    unmade = check_catalogs(Spark(conf=derby), [SHOP], running=False)[SHOP]
    assert (unmade.level, f"{tmp_path}/db" in unmade.message) == (Level.PASS, True)
    (tmp_path / "db").mkdir()
    for conf in (derby, {"spark.hadoop.hive.metastore.uris": "thrift://m:9083"}, {URL: "jdbc:postgresql://m/hive"}):
        found = check_catalogs(Spark(conf=conf), [SHOP], running=False)[SHOP]
        assert (found.level, "no Java" in found.message) == (Level.FAILURE, True)
    both = check_catalogs(Spark(conf=derby), [SHOP, "catalog:main"], running=False)
    assert both.keys() == {SHOP, "catalog:main"}


def test_a_derby_that_another_jvm_has(monkeypatch, tmp_path):
    def sql(statement):
        raise RuntimeError("Another instance of Derby may have already booted the database")

    asked = SimpleNamespace(sql=sql, conf=SimpleNamespace(get=lambda *_: "x"), stop=lambda: None)
    monkeypatch.setattr(session, "start", lambda *_, **__: asked)
    (tmp_path / "db").mkdir()
    conf = {URL: f"jdbc:derby:;databaseName={tmp_path}/db;create=true"}
    found = check_catalogs(Spark(conf=conf), [SHOP], running=False)[SHOP]
    assert (found.level, "one JVM at a time" in found.remedy) == (Level.FAILURE, True)
