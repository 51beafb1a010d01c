"""The examples of docs/new-tables.md, of sequences, and of conflicts, run and print what is shown."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.runtime.errors import ApplyError
from tests.oracle.extension_types import TYPES

DOCS = Path(__file__).parents[1] / "docs"


def code(language: str, page: str = "new-tables.md", section: str = "") -> list[str]:
    """The code blocks of a language, of a page or of a section of it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def printed(shown: str, spark, warehouse: str) -> tuple[str, str]:
    """What the lines of a program print, and what the page says that they do."""
    names = {"spark": spark}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        for line in shown.splitlines():
            if line.startswith(">>> "):
                exec(line.removeprefix(">>> ").replace("/srv/shop/lake", warehouse), names)
    said = "".join(f"{line}\n" for line in shown.splitlines() if not line.startswith(">>> "))
    return output.getvalue().replace("\n\n", "\n"), said


def test_vectors_and_geometries(publisher, spark, pipeline):
    """The types are stand-ins: the extensions are not on the machines that test this."""
    (before,), (shown,) = (code(language, section="Vectors and geometries") for language in ("sql", ""))
    publisher.execute(TYPES)
    publisher.execute(before)
    bridge = pipeline(publications=("shop_pub",), target__vector="array", target__geometry="wkb")
    bridge.catch_up()
    output, said = printed(shown, spark, bridge.subscription.warehouse)
    assert output == said


def test_the_example(publisher, spark, pipeline):
    before, after = code("sql", section="An example")
    (shown,) = code("", section="An example")
    assert not re.search(r"`\.|\(\"\.", shown), "Spark's SQL takes no relative path (B6)"
    ((_, written),) = tomllib.loads(code("toml")[0])["subscription"].items()
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
    output, said = printed(shown, spark, bridge.subscription.warehouse)
    assert output == said
    publisher.execute("INSERT INTO orders VALUES (4, '', 1)")
    with pytest.raises(ApplyError, match="column \"region\": value '' cannot be represented: Delta keeps it as NULL"):
        bridge.catch_up()
    bridge.subscription = bridge.subscription.model_copy(update={"unrepresentable": "null"})
    bridge.catch_up()
    assert [row["region"] for row in bridge.rows("orders") if row["id"] == 4] == [None]


def test_the_example_of_sequences(publisher, spark, pipeline):
    (statements,), (shown,), (text,) = (code(kind, "publications.md", "Sequences") for kind in ("sql", "", "toml"))
    ((_, written),) = tomllib.loads(text)["subscription"].items()
    publisher.execute(statements)
    options = {f"target__{key}": value for key, value in written["target"].items()}
    bridge = pipeline(publications=tuple(written["publications"]), **options)
    bridge.catch_up()
    output, said = printed(shown, spark, bridge.subscription.warehouse)
    assert output == said


def test_the_example_of_conflicts(publisher, spark, pipeline):
    blocks = {kind: code(kind, "monitoring.md", "Conflicts as rows") for kind in ("sql", "", "toml")}
    ((_, written),) = tomllib.loads(blocks["toml"][0])["subscription"].items()
    options = {f"target__{key}": value for key, value in written["target"].items()}
    before, after = blocks["sql"]
    by_hand, shown = blocks[""]
    publisher.execute(before)
    bridge = pipeline(publications=tuple(written["publications"]), **options)
    bridge.catch_up()
    assert printed(by_hand, spark, bridge.subscription.warehouse) == ("", "")
    publisher.execute(after)
    bridge.catch_up()
    output, said = printed(shown, spark, bridge.subscription.warehouse)
    assert output == said


@pytest.mark.skipif(version("pyspark").startswith(("4.0", "4.1")), reason="Spark 4.2 has it first")
def test_what_the_page_says_of_changes(spark, tmp_path):
    """Once Delta has them, the page has to say so."""
    (refusal,) = re.findall(r"refuses them \(`(.*?)`\)", (DOCS / "new-tables.md").read_text(encoding="utf-8"))
    path = str(tmp_path / "t")
    spark.sql(f"CREATE TABLE delta.`{path}` (id int) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    for read in (
        lambda: spark.read.option("startingVersion", "0").changes(f"delta.`{path}`"),
        lambda: spark.sql(f"SELECT * FROM delta.`{path}` CHANGES FROM VERSION 0"),
    ):
        with pytest.raises(AnalysisException, match=refusal):
            read()
