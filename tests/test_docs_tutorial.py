"""docs/tutorial.md, typed as it is printed, in an empty folder."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests import documented

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
INSTALL, SERVER, CONNECTION, *STEPS = BLOCKS
PATIENCE_S = 240


def typed(block):
    """The commands of a block, each with the lines that it is to print."""
    commands: list[tuple[str, list[str]]] = []
    for line in block.replace("\\\n", "\\\n\0").splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif line.startswith("\0"):
            command, printed = commands[-1]
            commands[-1] = (f"{command}\n{line[1:]}", printed)
        else:
            commands[-1][1].append(line)
    return commands


def test_the_page_installs_what_it_needs():
    """The step that is not typed here: a virtual environment, the package from its folder, Spark's jars."""
    assert [shlex.split(command)[0] for command, _ in typed(INSTALL)] == ["python3", "pip", "pgbridge"]
    assert typed(CONNECTION)[0][0].startswith('DB="')
    assert len(STEPS) == 6


@pytest.mark.soak
def test_every_step_prints_what_the_page_shows(starts_server, tmp_path):
    ((command, printed),) = typed(SERVER)
    assert shlex.split(command) == list(documented.SERVER)
    with documented.shop_server(tmp_path) as said:
        for line, expected in zip(said, printed, strict=True):
            assert re.fullmatch(re.escape(expected).replace("…", ".+").replace(r"18\.6", r"[\d.]+"), line)
        environment = {**documented.environment(), "DB": said[-1]}
        for block in STEPS:
            for step, lines in typed(block):
                done = subprocess.run(
                    ["bash", "-c", step], cwd=tmp_path, env=environment, check=False,
                    capture_output=True, text=True, timeout=PATIENCE_S,
                )  # fmt: skip
                assert done.returncode in {0, 1 if step == "pgbridge check" else 0}, (step, done.stderr[-2000:])
                missing = [line for line in lines if not shown(line, done.stdout)]
                assert missing == [], (step, done.stdout)


def shown(line, output):
    """Whether a line is there, with any spaces between its words."""
    return re.search(r"\s+".join(map(re.escape, line.split())), output) is not None
