"""The example of docs/changelog-and-history.md runs, and prints what the page shows."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pgbridge.bridge.config.tables import Table
from tests.documented import code_of, printed

PAGE = (Path(__file__).parents[1] / "docs" / "changelog-and-history.md").read_text(encoding="utf-8")


def test_the_example(publisher, spark, pipeline):
    before, after = code_of(PAGE, "sql")
    shown = next(block for block in code_of(PAGE, "") if block.startswith(">>> "))
    ((_, written),) = tomllib.loads(code_of(PAGE, "toml")[0])["subscription"].items()
    tables = {name: Table(**table) for name, table in written["tables"].items()}
    publisher.execute(before)
    bridge = pipeline(publications=tuple(written["publications"]), mode=written["mode"], tables=tables)
    bridge.catch_up()
    for statement in after.splitlines():
        publisher.execute(statement)
    bridge.catch_up()
    output, said = printed(shown, spark, "./lake", bridge.subscription.warehouse)
    assert output == said
    as_of_lsn, as_of_time = next(
        block for block in code_of(PAGE, "") if block.startswith("valid_from_lsn")
    ).splitlines()
    prices = spark.read.format("delta").load(bridge.path("prices"))
    first = prices.selectExpr("min(valid_from_lsn)").first()[0]
    assert prices.filter(as_of_lsn.replace(":lsn", str(first))).count() == 2
    assert prices.filter(as_of_lsn.replace(":lsn", str(1 << 62))).count() == 1
    assert prices.filter(as_of_time.replace(":time", "timestamp'2020-01-01'")).count() == 2
    assert prices.filter(as_of_time.replace(":time", "now()")).count() == 1
