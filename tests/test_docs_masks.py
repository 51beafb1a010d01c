"""The example of docs/masks.md runs, and prints what the page shows."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

from pgbridge.bridge.config.tables import Table
from tests.documented import code_of, printed

PAGE = (Path(__file__).parents[1] / "docs" / "masks.md").read_text(encoding="utf-8")


def test_the_example(publisher, spark, pipeline, tmp_path):
    before, after = code_of(PAGE, "sql")
    command, shown = code_of(PAGE, "")
    ((_, written),) = tomllib.loads(code_of(PAGE, "toml")[0])["subscription"].items()
    subprocess.run(["sh", "-c", command.removeprefix("$ ")], check=True, cwd=tmp_path)
    publisher.execute(before)
    bridge = pipeline(
        publications=tuple(written["publications"]),
        tables={name: Table(**table) for name, table in written["tables"].items()},
        target__mask_salt_file=str(tmp_path / written["target"]["mask_salt_file"]),
    )
    bridge.catch_up()
    publisher.execute(after)
    bridge.catch_up()
    output, said = printed(shown, spark, "./lake", bridge.subscription.warehouse)
    assert output == said
