"""What is set: the user's settings over the defaults, and under what results depend on."""

from __future__ import annotations

from pgbridge.bridge.runtime.warehouse import IMPLEMENTATION
from pgbridge.bridge.spark.settings import DEFAULTS, REQUIRED, all_settings, settings_here


def test_what_results_depend_on_stands_whatever_a_user_sets():
    conf = {"spark.sql.ansi.enabled": False, "spark.ui.enabled": True, "spark.sql.shuffle.partitions": 8, "x": 1.5}
    settings = all_settings(conf)
    assert settings == DEFAULTS | REQUIRED | {
        "spark.ui.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
        "x": "1.5",
    }


def test_what_warehouses_need():
    assert settings_here({}, ["/lake"]) == all_settings({})
    assert settings_here({}, ["catalog:spark_catalog"])[IMPLEMENTATION] == "hive"
    s3 = "spark.hadoop.fs.s3a.retry.limit"
    assert s3 in settings_here({}, ["s3a://bucket/lake"])
    assert s3 in settings_here({"spark.sql.warehouse.dir": "s3a://bucket/lake"}, ["catalog:spark_catalog"])
    assert s3 not in settings_here({"spark.sql.warehouse.dir": "s3a://bucket/lake"}, ["/lake"])


def test_the_folder_of_a_catalog_that_nobody_uses(tmp_path):
    """Not where somebody stands; where tables are, or what is configured, is left."""
    name, own = "spark.sql.warehouse.dir", {"spark.sql.warehouse.dir": "/mine"}
    assert settings_here({}, ["/lake"], tmp_path)[name] == f"file://{tmp_path}/spark-warehouse"
    assert settings_here(own, ["/lake"], tmp_path)[name] == "/mine"
    assert name not in settings_here({}, ["catalog:spark_catalog"], tmp_path)
