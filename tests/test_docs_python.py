"""The examples of docs/python.md run, and print what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from tests.documented import code_of

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_example(publisher, spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, after = code_of(PAGE, "sql")
    (program,) = code_of(PAGE, "python")
    (shown,) = (block for block in code_of(PAGE, "") if block.startswith(">>> "))
    commands = [line.removeprefix(">>> ") for line in shown.splitlines() if line.startswith(">>> ")]
    table = "".join(f"{line}\n" for line in shown.splitlines() if not line.startswith(">>> "))
    connection = "host=primary dbname=shop user=replicator"
    assert connection in program
    program = program.replace(connection, publisher.conninfo).replace("./", f"{tmp_path}/")
    publisher.execute(before)
    exec(compile(program, "docs/python.md", "exec"), {"spark": spark})
    for statement in after.splitlines():
        publisher.execute(statement)
    names = {"spark": spark}
    exec(compile(program, "docs/python.md", "exec"), names)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        for command in commands:
            exec(command.replace("./", f"{tmp_path}/"), names)
    assert output.getvalue().rstrip("\n") == table.rstrip("\n")
    expression = re.findall(r"`(concat\(hex.*?)`", PAGE)[0]
    lsn = 0x16_B374D848
    assert spark.sql(f"SELECT {expression} FROM (SELECT {lsn} AS commit_lsn)").first()[0] == "16/B374D848"
