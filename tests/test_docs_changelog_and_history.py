"""The example of docs/changelog-and-history.md runs, and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path

from pgbridge.bridge.config.tables import Table

PAGE = (Path(__file__).parents[1] / "docs" / "changelog-and-history.md").read_text(encoding="utf-8")


def code(language: str) -> list[str]:
    """The page's code blocks of a language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def test_the_example(publisher, spark, pipeline):
    before, after = code("sql")
    shown = next(block for block in code("") if block.startswith(">>> "))
    ((_, written),) = tomllib.loads(code("toml")[0])["subscription"].items()
    tables = {name: Table(**table) for name, table in written["tables"].items()}
    publisher.execute(before)
    bridge = pipeline(publications=tuple(written["publications"]), mode=written["mode"], tables=tables)
    bridge.catch_up()
    for statement in after.splitlines():
        publisher.execute(statement)
    bridge.catch_up()
    names = {"spark": spark}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        for line in shown.splitlines():
            if line.startswith(">>> "):
                exec(line.removeprefix(">>> ").replace("./lake", bridge.subscription.warehouse), names)
    table = "".join(f"{line}\n" for line in shown.splitlines() if not line.startswith(">>> "))
    assert output.getvalue().replace("\n\n", "\n") == table
    as_of_lsn, as_of_time = next(block for block in code("") if block.startswith("valid_from_lsn")).splitlines()
    prices = spark.read.format("delta").load(bridge.path("prices"))
    first = prices.selectExpr("min(valid_from_lsn)").first()[0]
    assert prices.filter(as_of_lsn.replace(":lsn", str(first))).count() == 2
    assert prices.filter(as_of_lsn.replace(":lsn", str(1 << 62))).count() == 1
    assert prices.filter(as_of_time.replace(":time", "timestamp'2020-01-01'")).count() == 2
    assert prices.filter(as_of_time.replace(":time", "now()")).count() == 1
