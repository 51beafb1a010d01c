"""The command line, where a library is missing."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

LACKING = "import sys; sys.modules[{library!r}] = None; from pgbridge.__main__ import main; main()"


@pytest.mark.parametrize(("library", "arguments"), [("typer", ["status"]), ("pyspark", ["run", "--config", "c.toml"])])
def test_a_library_that_is_missing_is_named(tmp_path, library, arguments):
    """The one that all commands need; and Spark, which `run` needs, and others do not."""
    text = '[subscription.s]\nconnection = "dbname=x"\npublications = ["p"]\nwarehouse = "./lake"\n'
    (tmp_path / "c.toml").write_text(text)
    command = [sys.executable, "-c", LACKING.format(library=library), *arguments]
    said = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (1, "")
    first, hint = said.stderr.splitlines()
    assert first == f"pgbridge: this needs {library}, which is not installed"
    assert re.match(rf"HINT:  pip install .*'?{library}[>=]=", hint)
    assert "pgbridge[" not in hint  # on an index the name may be a stranger's


def test_a_module_of_its_own_that_is_missing_is_a_fault(tmp_path):
    """Shown with its traceback, as other faults are."""
    command = [sys.executable, "-c", LACKING.format(library="pgbridge.bridge.service.cli_tables"), "status"]
    said = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert "Traceback" in said.stderr
