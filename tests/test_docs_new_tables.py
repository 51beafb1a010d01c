"""The examples of docs/new-tables.md run, and print what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.runtime.errors import ApplyError

PAGE = (Path(__file__).parents[1] / "docs" / "new-tables.md").read_text(encoding="utf-8")


def code(language: str) -> list[str]:
    """The page's code blocks of a language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def test_the_example(publisher, spark, pipeline):
    before, after = code("sql")
    (shown,) = code("")
    assert not re.search(r"`\.|\(\"\.", shown), "Spark's SQL takes no relative path (B6)"
    ((_, written),) = tomllib.loads(code("toml")[0])["subscription"].items()
    tables = {name: Table(**table) for name, table in written["tables"].items()}
    publisher.execute(before)
    bridge = pipeline(
        publications=tuple(written["publications"]), tables=tables, target__jsonb=written["target"]["jsonb"]
    )
    bridge.catch_up()
    publisher.execute(after)
    bridge.catch_up()
    names = {"spark": spark}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        for line in shown.splitlines():
            if line.startswith(">>> "):
                exec(line.removeprefix(">>> ").replace("/srv/shop/lake", bridge.subscription.warehouse), names)
    assert output.getvalue().replace("\n\n", "\n") == "".join(
        f"{line}\n" for line in shown.splitlines() if not line.startswith(">>> ")
    )
    publisher.execute("INSERT INTO orders VALUES (4, '', 1)")
    with pytest.raises(ApplyError, match="column \"region\": value '' cannot be represented: Delta keeps it as NULL"):
        bridge.catch_up()
    bridge.subscription = bridge.subscription.model_copy(update={"unrepresentable": "null"})
    bridge.catch_up()
    assert [row["region"] for row in bridge.rows("orders") if row["id"] == 4] == [None]
