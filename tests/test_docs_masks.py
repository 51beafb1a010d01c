"""The example of docs/masks.md runs, and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import tomllib
from pathlib import Path

from pgbridge.bridge.config.tables import Table

PAGE = (Path(__file__).parents[1] / "docs" / "masks.md").read_text(encoding="utf-8")


def code(language: str) -> list[str]:
    """The page's code blocks of a language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def test_the_example(publisher, spark, pipeline, tmp_path):
    before, after = code("sql")
    command, shown = code("")
    ((_, written),) = tomllib.loads(code("toml")[0])["subscription"].items()
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
    names = {"spark": spark}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        for line in shown.splitlines():
            if line.startswith(">>> "):
                exec(line.removeprefix(">>> ").replace("./lake", bridge.subscription.warehouse), names)
    table = "".join(f"{line}\n" for line in shown.splitlines() if not line.startswith(">>> "))
    assert output.getvalue().replace("\n\n", "\n") == table
