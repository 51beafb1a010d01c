"""The rows on which verdicts are compared, made once for the run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.bridge.rowfilter import compared
from tests.fix_postgres import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.bridge.rowfilter.compared import Rows
    from tests.fix_postgres import Server


@pytest.fixture(scope="session")
def rows(postgresql_server: Server, spark: SparkSession) -> Iterator[Rows]:
    """Random rows of every type, on the server and in Spark."""
    publisher = Publisher(postgresql_server, f"filter_{os.getpid()}")
    try:
        with postgresql_server.connect(publisher.name) as connection:
            yield compared.make(connection, spark, 150, seed=5)
    finally:
        publisher.drop()
