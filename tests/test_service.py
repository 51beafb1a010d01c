"""docs/pgbridge.service is a unit that systemd accepts, that shuts the daemon in, and that names what there is."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import complaint

UNIT = Path(__file__).parents[1] / "docs" / "pgbridge.service"
TEXT = UNIT.read_text(encoding="utf-8")
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")

MOST_EXPOSED = 2.0
"""Of 10, as `systemd-analyze security` counts; a service without any protection has 9.6."""


def analyze(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze on the unit, with a program in it that is there."""
    unit = tmp_path / UNIT.name
    unit.write_text(TEXT.replace("/opt/pgbridge/bin/pgbridge", sys.executable))
    command = [ANALYZE or "", *arguments, str(unit)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def settings(name: str) -> list[str]:
    """The values of a setting."""
    return re.findall(rf"^{name}=(.*)$", TEXT, re.MULTILINE)


@needs_systemd
def test_systemd_accepts_it(tmp_path):
    done = analyze(tmp_path, "verify", "--man=no")
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, complaints) == (0, [])


@needs_systemd
def test_it_is_shut_in(tmp_path):
    done = analyze(tmp_path, "security", "--offline=yes", "--no-pager", f"--threshold={MOST_EXPOSED * 10:.0f}")
    if "offline" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at a unit that is not loaded")
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.parametrize("setting", ["ExecStart", "ExecReload"])
def test_its_commands_are_pgbridges(setting):
    (line,) = settings(setting)
    program, *words = shlex.split(line)
    assert complaint(shlex.join([Path(program).name, *words]), whole=True) == ""


def test_what_the_daemon_relies_on():
    """It notifies; SIGTERM is not for its JVM; another start does not mend a wrong file; the JVM compiles."""
    assert settings("Type") == ["notify"]
    assert settings("KillMode") == ["mixed"]
    assert settings("RestartPreventExitStatus") == ["2"]
    assert settings("Restart") == ["on-failure"]
    assert settings("OOMPolicy") == ["continue"]
    assert settings("WatchdogSec") != []
    assert not settings("MemoryDenyWriteExecute")
    assert not settings("ProcSubset")
