"""Namespaces are found, created, and refused with the catalog's own words."""

import uuid

import pytest
from pyspark.errors import AnalysisException

from bridge.apply.delta.namespace import create_namespace, find_namespace
from bridge.errors import StoreError, TargetError


def test_a_namespace_is_created_once(spark):
    name = f"ns_{uuid.uuid4().hex}"
    assert find_namespace(spark, "spark_catalog", None)
    assert not find_namespace(spark, "spark_catalog", name)
    create_namespace(spark, "spark_catalog", name)
    create_namespace(spark, "spark_catalog", name)
    assert find_namespace(spark, "spark_catalog", name)
    spark.sql(f"DROP NAMESPACE {name}")


def test_a_catalog_that_refuses_is_told_with_the_remedy(spark):
    with pytest.raises(TargetError, match='Spark knows no catalog "nowhere"'):
        find_namespace(spark, "nowhere", None)
    with pytest.raises(StoreError, match="cannot be created") as raised:
        create_namespace(spark, "spark_catalog", "not-allowed")
    assert "CREATE NAMESPACE `spark_catalog`.`not-allowed`; or grant" in str(raised.value)
    assert isinstance(raised.value.__cause__, AnalysisException)
