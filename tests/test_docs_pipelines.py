"""docs/spark-pipelines.md: its programs, run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "spark-pipelines.md").read_text(encoding="utf-8")
PIPELINE, AUTO_CDC, FOLLOW, AIRFLOW, DAGSTER = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
TABLE = """
    CREATE TABLE orders (id int PRIMARY KEY, customer text, total numeric(9, 2));
    CREATE PUBLICATION shop FOR TABLE orders;
    INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)"""


@pytest.mark.parametrize("code", [AUTO_CDC, AIRFLOW, DAGSTER])
def test_what_is_not_run_here_is_python(code):
    """Airflow and Dagster are not installed; AUTO CDC is refused by Delta, as the page says."""
    compile(code, "spark-pipelines.md", "exec")


def test_a_job_that_runs_every_few_minutes(spark, publisher, tmp_path, monkeypatch):
    publisher.execute(TABLE)
    slot = f"orders_{publisher.name}"[:63].lower()
    code = (
        FOLLOW.replace("orders_query", slot)
        .replace("/lake", str(tmp_path))
        .replace('"service=shop"', repr(publisher.conninfo))
    )
    monkeypatch.setattr("pgbridge.session.start", lambda: spark)
    names: dict[str, object] = {}
    exec(compile(code, "spark-pipelines.md", "exec"), names)
    names["follow_orders"]()  # type: ignore[operator]
    publisher.execute("UPDATE orders SET total = 3 WHERE id = 1; DELETE FROM orders WHERE id = 2")
    names["follow_orders"]()  # type: ignore[operator]
    rows = spark.read.format("delta").load(f"{tmp_path}/orders").collect()
    assert [(row.id, float(row.total)) for row in rows] == [(1, 3.0)]


@pytest.mark.soak
def test_a_pipeline_appends_every_change(spark, publisher, tmp_path):
    """By Spark's own command, which starts a server of its own: a minute."""
    publisher.execute(TABLE)
    slot = f"pipeline_{publisher.name}"[:63].lower()
    publisher.query(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    publisher.execute("UPDATE orders SET id = 9 WHERE id = 2; DELETE FROM orders WHERE id = 1")
    code = PIPELINE.replace('"pipeline"', repr(slot)).replace('"service=shop"', repr(publisher.conninfo))
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations/orders.py").write_text(code)
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: shop\nstorage: file://{tmp_path}/storage\nlibraries:\n  - glob:\n      include: transformations/**\n"
    )
    jars = spark.sparkContext._jvm.System.getProperty("java.class.path").split(":")
    beside = [jar for jar in jars if jar.endswith(".jar") and "/pyspark/jars/" not in jar]  # Delta, and what it needs
    command = [
        str(Path(sys.executable).with_name("spark-pipelines")), "run",
        "--conf", f"spark.driver.extraClassPath={':'.join(beside)}",
        "--conf", "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
        "--conf", "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "--conf", "spark.sql.shuffle.partitions=2",
    ]  # fmt: skip
    home, python = Path(pyspark.__file__).parent, Path(sys.executable)
    path = f"{python.parent}:{os.environ['PATH']}"
    environment = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
    environment |= {"PYSPARK_PYTHON": str(python), "SPARK_HOME": str(home), "PATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "Run is COMPLETED" in done.stdout, done.stdout[-3000:]
    changes = DeltaTable(str(tmp_path / "spark-warehouse/orders_changes")).to_pyarrow_table().to_pylist()
    assert sorted((row["_operation"], row["id"]) for row in changes) == [("DELETE", 1), ("DELETE", 2), ("UPDATE", 9)]
