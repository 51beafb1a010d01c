"""The end of a run of random faults: the daemon catches up, with its operator's help, and all tables are compared."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import psutil

from tests.faults.lives import remedies_in
from tests.faults.load import TABLES
from tests.oracle.delta import differences
from tests.oracle.native import DatabaseRows

if TYPE_CHECKING:
    from tests.faults.soak import Soak

_CATCH_UP_S = 600.0

_IN_A_ROW = 4
"""So often all is well: the first time, a request that was just made may not have been taken up."""


def has_gone_back(soak: Soak) -> bool:
    """Whether the daemon says that the server lacks what it has applied: nobody but an operator can help."""
    error = soak.daemon.status().get("last_error") or {"message": ""}
    return "went back" in error["message"]


def helped(soak: Soak) -> bool:
    """Run the command that the present error's HINT names; return whether the daemon streams, or was helped."""
    shown = soak.daemon.status()
    error = shown.get("last_error")
    if not error:
        return shown.get("state") == "streaming"
    commands = remedies_in(error["message"].partition("HINT:")[2])
    if not commands:
        return False
    done = soak.daemon.command(*commands[0])
    outcome = "done" if done.returncode == 0 else f"refused: {done.stderr.strip()}"
    soak.counts[f"the HINT's command, {' '.join(commands[0][:1])}"] += 1
    print(f"{error['message'].splitlines()[0]} -> {' '.join(commands[0])}: {outcome}", flush=True)
    return done.returncode == 0


def catch_up(soak: Soak) -> None:
    """End the faults and the load, and wait until everything is applied; transactions that cannot be are skipped.

    Raises:
        TimeoutError: It does not catch up.
    """
    name = soak.name
    soak.load.stop()
    soak.on_proxies("heal")
    soak.place.heal()
    (soak.folder / "filler").unlink(missing_ok=True)
    if not soak.extra:
        soak.refresh()
    soak.daemon.command("enable", name)
    soak.execute("DELETE FROM poison")
    end_s, in_a_row = time.monotonic() + _CATCH_UP_S, 0
    shown: dict[str, Any] = {}
    while time.monotonic() < end_s:
        if not soak.daemon.alive():
            soak.daemon.start()
        soak.daemon.measure()
        shown = soak.daemon.status()
        error = shown.get("last_error")
        if error and error["finish_lsn"] and "infinity" in error["message"]:
            soak.daemon.command("skip", name, "--lsn", error["finish_lsn"])
        elif error and soak.promotions:
            helped(soak)
        states = {table["name"]: table["state"] for table in shown.get("tables", ())}
        ready = {f"public.{table}" for table in TABLES} <= {table for table, state in states.items() if state == "r"}
        done = ready and shown["state"] == "streaming" and shown["lag_bytes"] == 0 and not error
        in_a_row = in_a_row + 1 if done else 0
        if in_a_row == _IN_A_ROW:
            return
        time.sleep(2)
    raise TimeoutError(f"not caught up after {_CATCH_UP_S:.0f} s: {json.dumps(shown, indent=1)}")


def leaks(soak: Soak) -> list[str]:
    """Where the connection's password can be read that should not have it: logs, status, the process list."""
    password = soak.pair.primary.password
    shown = {"status": soak.daemon.command("status", "--json").stdout}
    for file in (soak.folder / "daemon.log", *soak.folder.glob("state/*.log"), *soak.place.folder.glob("*.log")):
        shown[file.name] = file.read_text(errors="replace")
    for process in psutil.process_iter(["cmdline"]):
        shown[f"process {process.pid}"] = " ".join(process.info["cmdline"] or ())
    return [name for name, text in shown.items() if password in text]


def verified(soak: Soak) -> list[str]:
    """What `pgbridge verify` finds that is not equal, beside the daemon if that runs; it must find all tables."""
    done = soak.daemon.command("verify", soak.name, "--json")
    try:
        tables = json.loads(done.stdout)["subscriptions"][0]["tables"]
    except (json.JSONDecodeError, LookupError):
        tables = []
    different = [f"pgbridge verify: {json.dumps(table)}" for table in tables if not table["equal"]]
    equal = {table["relation"] for table in tables if table["equal"]}
    if done.returncode != 0 or not equal >= {f"public.{table}" for table in TABLES}:
        different.append(f"pgbridge verify: exit code {done.returncode}, equal are {sorted(equal)}: {done.stderr}")
    where = ", beside the daemon" if soak.daemon.alive() else ""
    soak.notes.append(f"pgbridge verify{where}: {len(equal)} tables equal, {len(different)} problems")
    return different


def compare(soak: Soak) -> dict[str, tuple[int, list[str]]]:
    """Compare each table with the source: its rows there, and the differences.

    With `promotions` a Delta table may have kept a column that the server has lost; it is not looked at.
    """
    from pgbridge.bridge.spark import session

    settings = {"spark.driver.memory": "2g", **soak.place.reads}
    spark = session.start("local[2]", settings, warehouses=[soak.place.warehouse])
    source = DatabaseRows(soak.pair.primary.conninfo())
    compared = {}
    for table in TABLES:
        name, path = f"public.{table}", soak.place.table(soak.folder, table)
        columns = source.columns(name) if soak.promotions else None
        compared[table] = (len(source.rows(name)), differences(spark, path, source, name, columns))
    session.driver_of(spark).stop(spark)
    return compared
