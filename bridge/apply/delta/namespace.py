"""Namespaces of Spark's catalogs, which other systems call schemas or databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException

from bridge.apply.delta.location import knows_catalog
from bridge.apply.delta.spark_errors import summary
from bridge.apply.delta.store_errors import catalog_hint
from bridge.apply.target.location import quoted
from bridge.errors import StoreError, TargetError
from bridge.spark_outcome import SPARK_ERRORS, is_lost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MISSING: Final = "SCHEMA_NOT_FOUND"
"""Spark's condition for a statement in a namespace that does not exist."""


def find_namespace(spark: SparkSession, catalog: str, namespace: str | None) -> bool:
    """Whether a catalog has a namespace; with None, whether it can be listed.

    Raises:
        TargetError: Spark does not know the catalog.
        StoreError: The catalog does not answer, or refuses.
    """
    if not knows_catalog(spark, catalog):
        raise TargetError(
            f'Spark knows no catalog "{catalog}"',
            hint=f'set "spark.sql.catalog.{catalog}" in [spark.conf], or correct warehouse',
        )
    try:
        if namespace is None:
            spark.sql(f"SHOW NAMESPACES IN {quoted(catalog)}").collect()
        else:
            spark.sql(f"DESCRIBE NAMESPACE {_name(catalog, namespace)}").collect()
    except Exception as error:  # a catalog's own, too, of any class
        if is_lost(error):
            raise
        if namespace is not None and isinstance(error, AnalysisException) and error.getCondition() == MISSING:
            return False
        raise StoreError(f'catalog "{catalog}" cannot be used: {summary(error)}', hint=catalog_hint(error)) from error
    return True


def create_namespace(spark: SparkSession, catalog: str, namespace: str) -> None:
    """Create a namespace, if it does not exist.

    Raises:
        StoreError: The catalog refuses.
    """
    name = _name(catalog, namespace)
    try:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name}").collect()
    except SPARK_ERRORS as error:
        if is_lost(error):
            raise
        raise StoreError(
            f'namespace "{namespace}" of catalog "{catalog}" does not exist, and cannot be created: {summary(error)}',
            hint=f"create it in Spark: CREATE NAMESPACE {name}; or grant pgbridge's user the right to",
        ) from error


def _name(catalog: str, namespace: str) -> str:
    return f"{quoted(catalog)}.{quoted(namespace)}"
