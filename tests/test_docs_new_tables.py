"""The examples of docs/new-tables.md, of sequences, and of conflicts, run and print what is shown."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.runtime.errors import ApplyError
from tests.documented import code_of, printed
from tests.oracle.extension_types import TYPES

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PUBLICATIONS, MONITORING = (
    (DOCS / page).read_text(encoding="utf-8") for page in ("new-tables.md", "publications.md", "monitoring.md")
)
LAKE = "/srv/shop/lake"


def test_vectors_and_geometries(publisher, spark, pipeline):
    """The types are stand-ins: the extensions are not on the machines that test this."""
    (before,), (shown,) = (code_of(PAGE, language, "Vectors and geometries") for language in ("sql", ""))
    publisher.execute(TYPES)
    publisher.execute(before)
    bridge = pipeline(publications=("shop_pub",), target__vector="array", target__geometry="wkb")
    bridge.catch_up()
    output, said = printed(shown, spark, LAKE, bridge.subscription.warehouse)
    assert output == said


def test_the_example(publisher, spark, pipeline):
    before, after = code_of(PAGE, "sql", "An example")
    (shown,) = code_of(PAGE, "", "An example")
    assert not re.search(r"`\.|\(\"\.", shown), "Spark's SQL takes no relative path (B6)"
    ((_, written),) = tomllib.loads(code_of(PAGE, "toml")[0])["subscription"].items()
    tables = {name: Table(**table) for name, table in written["tables"].items()}
    publisher.execute(before)
    bridge = pipeline(
        publications=tuple(written["publications"]),
        tables=tables,
        **{f"target__{key}": value for key, value in written["target"].items()},
    )
    bridge.catch_up()
    publisher.execute(after)
    bridge.catch_up()
    output, said = printed(shown, spark, LAKE, bridge.subscription.warehouse)
    assert output == said
    publisher.execute("INSERT INTO orders VALUES (4, '', 1)")
    with pytest.raises(ApplyError, match="column \"region\": value '' cannot be represented: Delta keeps it as NULL"):
        bridge.catch_up()
    bridge.subscription = bridge.subscription.model_copy(update={"unrepresentable": "null"})
    bridge.catch_up()
    assert [row["region"] for row in bridge.rows("orders") if row["id"] == 4] == [None]


def test_the_example_of_sequences(publisher, spark, pipeline):
    (statements,), (shown,), (text,) = (code_of(PUBLICATIONS, kind, "Sequences") for kind in ("sql", "", "toml"))
    ((_, written),) = tomllib.loads(text)["subscription"].items()
    publisher.execute(statements)
    options = {f"target__{key}": value for key, value in written["target"].items()}
    bridge = pipeline(publications=tuple(written["publications"]), **options)
    bridge.catch_up()
    output, said = printed(shown, spark, LAKE, bridge.subscription.warehouse)
    assert output == said


def test_the_example_of_conflicts(publisher, spark, pipeline):
    blocks = {kind: code_of(MONITORING, kind, "Conflicts as rows") for kind in ("sql", "", "toml")}
    ((_, written),) = tomllib.loads(blocks["toml"][0])["subscription"].items()
    options = {f"target__{key}": value for key, value in written["target"].items()}
    before, after = blocks["sql"]
    by_hand, shown = blocks[""]
    publisher.execute(before)
    bridge = pipeline(publications=tuple(written["publications"]), **options)
    bridge.catch_up()
    assert printed(by_hand, spark, LAKE, bridge.subscription.warehouse) == ("", "")
    publisher.execute(after)
    bridge.catch_up()
    output, said = printed(shown, spark, LAKE, bridge.subscription.warehouse)
    assert output == said


@pytest.mark.skipif(version("pyspark").startswith(("4.0", "4.1")), reason="Spark 4.2 has it first")
def test_what_the_page_says_of_changes(spark, tmp_path):
    """Once Delta has them, the page has to say so."""
    (refusal,) = re.findall(r"refuses them \(`(.*?)`\)", PAGE)
    path = str(tmp_path / "t")
    spark.sql(f"CREATE TABLE delta.`{path}` (id int) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    for read in (
        lambda: spark.read.option("startingVersion", "0").changes(f"delta.`{path}`"),
        lambda: spark.sql(f"SELECT * FROM delta.`{path}` CHANGES FROM VERSION 0"),
    ):
        with pytest.raises(AnalysisException, match=refusal):
            read()
