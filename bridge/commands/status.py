"""`pgbridge status`: what the catalog knows of each subscription, and the server's positions if it answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from bridge.catalog import followed, maintenance, notes
from bridge.catalog.catalog_rows import CopyRow, sync_name
from bridge.catalog.notes import left_out
from bridge.commands.state import Position, ServerPositions
from bridge.receive.slot_health import LOST
from bridge.runtime import remedies
from bridge.runtime.errors import HINT
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from bridge.catalog.catalog import Catalog
    from bridge.catalog.catalog_rows import ErrorRow, RelRow
    from bridge.catalog.maintenance import MaintainedRow
    from bridge.config.config import Config, Subscription

STATES = {
    "i": "to be copied",
    "d": "being copied",
    "f": "copied",
    "s": "following",
    "r": "ready",
}
"""A word for each of a table's states."""

_TWO_LINES = {"confirmed_flush_lsn": "confirmed_\nflush_lsn"}


def collect(
    config: Config, catalog: Catalog, *, running: bool, servers: ServerPositions | None = None
) -> dict[str, Any]:
    """Return the document of `--json`.

    Args:
        config: The configuration with the subscriptions to show.
        catalog: Its catalog; a subscription that never ran is shown with the configuration's values.
        running: Whether a daemon holds the state directory.
        servers: Asks the servers; None to wait for each as long as connecting takes.

    Returns:
        `{"subscriptions": [...]}`. LSNs are text, or null if unknown. `confirmed_flush_lsn` and `lag_bytes` (WAL
        between `remote_lsn` and the server's flush position) are null if the server does not answer. A table that is
        being copied has `copy`, the progress (`CopyRow`). A subscription has `conflicts` once there were any: how
        often each kind of PostgreSQL's conflicts arose; `sync_error`, in the form of `last_error`, if the copy of an
        added table has failed. It has `left_out` if Delta cannot hold some published tables: the `name` of each, and
        the `reason`; `differences` between what is followed and what is published, each with its `kind`, `relation`,
        `since`, `message` and `hint`; `waiting`, the tables that wait for their resync, each with its `relation`,
        `since`, `message` and `hint`; and `slot_wal_status`, `lost` or `missing`, if changes are lost. A table has
        `maintenance` once it was looked at: the number of its data `files` then, when it was last `optimized` and
        `vacuumed`, and the last attempt's `error`, each null for none.
    """
    subscriptions = list(config.subscription.values())
    positions = (servers or ServerPositions()).of(subscriptions)
    return {
        "subscriptions": [
            entry(subscription, catalog, position, running=running)
            for subscription, position in zip(subscriptions, positions, strict=True)
        ]
    }


def entry(subscription: Subscription, catalog: Catalog, position: Position, *, running: bool) -> dict[str, Any]:
    """Return a subscription's part of the document.

    Args:
        subscription: The subscription.
        catalog: Its catalog.
        position: What its server says.
        running: As for `collect`.
    """
    name = subscription.name
    row = catalog.subscription(name)
    remote, flush = catalog.remote_lsn(name), position.flush_lsn
    sync_error = _sync_error(catalog, name)
    error = catalog.last_error(name) or sync_error
    enabled = row.enabled if row else subscription.enabled
    copies = {(copy.namespace, copy.name): copy for copy in copies_of(catalog, name)} if running else {}
    state = row.state if row and running else "stopped"
    conflicts = notes.conflicts(catalog, name)
    maintained = maintenance.rows(catalog, name)
    slot_lost = remote is not None and position.slot_wal_status in LOST  # before the first start there need not be one
    without = [{"name": ".".join(table), "reason": reason} for table, reason in left_out(catalog, name).items()]
    differing = [
        {
            "kind": one.difference.kind,
            "relation": ".".join(one.difference.relation),
            "since": _time(one.since_s),
            "message": one.difference.message,
            "hint": one.difference.hint,
        }
        for one in followed.seen(catalog, name)
    ]
    rels = _rels(catalog, name)
    waiting = [_waiting(rel) for rel in rels if rel.waits is not None]
    return {
        "name": name,
        "enabled": enabled,
        "state": state if enabled else "disabled",
        "slot_name": subscription.slot_name,
        "received_lsn": str(max(row.received_lsn, remote or Lsn(0))) if row and (row.received_lsn or remote) else None,
        "remote_lsn": _text(remote),
        "confirmed_flush_lsn": _text(position.confirmed_flush_lsn),
        "lag_bytes": max(0, flush - remote) if flush is not None and remote is not None else None,
        "skip_lsn": _text(catalog.skip_lsn(name) or catalog.skip_lsn(sync_name(name))),
        "apply_error_count": row.apply_error_count if row else 0,
        "sync_error_count": row.sync_error_count if row else 0,
        "last_error": error and _error(error),
        "tables": [
            {
                "name": rel.qualified_name,
                "state": rel.state,
                "path": rel.path,
                **_copy(copies.get((rel.namespace, rel.name))),
                **_maintained(maintained.get(rel.path)),
            }
            for rel in rels
        ],
        **({"sync_error": _error(sync_error)} if sync_error else {}),
        **({"left_out": without} if without else {}),
        **({"differences": differing} if differing else {}),
        **({"waiting": waiting} if waiting else {}),
        **({"conflicts": conflicts} if conflicts else {}),
        **({"slot_wal_status": position.slot_wal_status} if slot_lost else {}),
    }


def _error(error: ErrorRow) -> dict[str, Any]:
    return {
        "message": error.message,
        "finish_lsn": _text(error.finish_lsn),
        "relation": error.relation,
        "time": _time(error.time_s),
    }


def _waiting(rel: RelRow) -> dict[str, Any]:
    message, _, hint = (rel.waits or "").partition(HINT)
    return {"relation": rel.qualified_name, "since": _time(rel.waits_since_s), "message": message, "hint": hint}


def _copy(copy: CopyRow | None) -> dict[str, Any]:
    if copy is None:
        return {}
    return {
        "copy": {
            "rows": copy.rows,
            "bytes": copy.bytes,
            "total_bytes_estimate": copy.total_bytes_estimate,
            "rows_per_s": copy.rows_per_s,
            "seconds_left": copy.seconds_left,
        }
    }


def _maintained(row: MaintainedRow | None) -> dict[str, Any]:
    if row is None:
        return {}
    return {
        "maintenance": {
            "files": row.files,
            "optimized": _time(row.optimized_s),
            "vacuumed": _time(row.vacuumed_s),
            "error": row.error,
        }
    }


def _rels(catalog: Catalog, name: str) -> list[RelRow]:
    """The subscription's tables; one that follows the tablesync worker's stream is shown as copied (f)."""
    added = [replace(rel, state="f" if rel.state in "sr" else rel.state) for rel in catalog.rels(sync_name(name))]
    return sorted(catalog.rels(name) + added, key=lambda rel: (rel.namespace, rel.name))


def copies_of(catalog: Catalog, name: str) -> list[CopyRow]:
    """A subscription's copies under way, those of its tablesync worker included."""
    return [*notes.copies(catalog, name), *notes.copies(catalog, sync_name(name))]


def _sync_error(catalog: Catalog, name: str) -> ErrorRow | None:
    """The last error of the tablesync worker; without a finish LSN, because a copy has no transaction to skip."""
    error = catalog.last_error(sync_name(name))
    return replace(error, finish_lsn=None) if error else None


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _text(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)


def render(document: dict[str, Any]) -> RenderableType:
    """Render a printable document: a table of subscriptions, a table of their Delta tables, then problems."""
    tables = Table(box=None, pad_edge=False)
    for heading in ("table", "state", "Delta table"):
        tables.add_column(heading, overflow="fold")
    for entry in document["subscriptions"]:
        differing = {difference["relation"] for difference in entry.get("differences", ())}
        waiting = {table["relation"] for table in entry.get("waiting", ())}
        for table in entry["tables"]:
            words = [
                "waits for its resync" if table["name"] in waiting else STATES[table["state"]],
                *(["differs"] if table["name"] in differing else []),
            ]
            state = f"{table['state']} ({', '.join(words)})"
            if "copy" in table:
                state += f"\n{copy_text(copy_of(table))}"
            if kept := table.get("maintenance"):
                state += f"\n{kept['files']} files"
                state += f", optimized {kept['optimized']}" if kept["optimized"] else ""
            tables.add_row(cell(f"{entry['name']}: {table['name']}"), state, cell(table["path"]))
    return Group(
        overview(document, ("remote_lsn", "received_lsn", "confirmed_flush_lsn")), Text(), tables, problems(document)
    )


def overview(document: dict[str, Any], lsns: Sequence[str], *, rates: bool = False) -> Table:
    """Render the subscriptions with some of their LSNs; with `rates`, also how much WAL each applies in a second."""
    table = Table(box=None, pad_edge=False)
    # On a narrow screen names wrap, LSNs do not; 80 columns hold usual ones.
    table.add_column("\nsubscription", min_width=8, overflow="fold")
    for heading in ("state", *lsns):
        table.add_column(_TWO_LINES.get(heading, f"\n{heading}"), no_wrap=True)
    for heading in ("lag", *(["applied"] if rates else []), "errors"):
        table.add_column(f"\n{heading}", no_wrap=True, justify="right")
    for entry in document["subscriptions"]:
        rate = entry.get("applied_bytes_per_s")
        applied = ["-" if rate is None else f"{size_text(rate)}/s"] if rates else []
        errors = str(entry["apply_error_count"] + entry["sync_error_count"])
        positions = [entry[key] or "-" for key in lsns]
        cells = (entry["name"], entry["state"], *positions, size_text(entry["lag_bytes"]), *applied, errors)
        table.add_row(*map(cell, cells))
    return table


def problems(document: dict[str, Any]) -> Text:
    """Render what an operator should know of the subscriptions: tables left out, conflicts, and the last error."""
    found = Text()
    for entry in document["subscriptions"]:
        _append_problems(found, entry)
    return found


def cell(text: str) -> Text:
    """A name for a table's cell: rich would read markup in a plain string."""
    return Text(text)


def _append_problems(problems: Text, entry: dict[str, Any]) -> None:
    name = entry["name"]
    for table in entry.get("left_out", ()):
        problems.append(f"\n{name}, left out: {table['reason']}\n")
    for table in entry.get("waiting", ()):
        what = f"{table['relation']} waits for its resync since {table['since']}"
        problems.append(f"\n{name}, {what}: ", style="bold red")
        problems.append(f"{table['message']}\nHINT:  {table['hint']}\n")
    for difference in entry.get("differences", ()):
        problems.append(f"\n{name}, since {difference['since']}: ", style="bold yellow")
        problems.append(f"{difference['message']}\nHINT:  {difference['hint']}\n")
    for table in entry["tables"]:
        if failed := table.get("maintenance", {}).get("error"):
            what = f"maintenance of {table['name']} failed, and is tried again"
            problems.append(f"\n{name}, {what}: {failed}\n")
    if entry.get("conflicts"):
        counts = ", ".join(f"{conflict} {count}" for conflict, count in entry["conflicts"].items())
        problems.append(f"\n{name}, conflicts: {counts}\n")
    error = entry["last_error"]
    again = remedies.start_afresh(entry["name"])
    slot = entry.get("slot_wal_status")
    if slot and not (error and again in error["message"]):
        problems.append(f"\n{name}: ", style="bold red")
        problems.append(f"replication slot {entry['slot_name']} is {slot}; ")
        problems.append(f"changes are lost\nTo copy all tables again:  {again}\n")
    if error:
        problems.append(f"\n{name}, {error['time']}:\n", style="bold red")
        problems.append(error["message"] + "\n")
        if error["finish_lsn"] and entry["skip_lsn"] != error["finish_lsn"]:
            command = remedies.skip(entry["name"], error["finish_lsn"])
            problems.append(f"To skip this transaction:  {command}\n")


def copy_of(table: dict[str, Any]) -> CopyRow:
    """The copy under way of a table of the document."""
    return CopyRow(table["name"], "", **table["copy"])


def copy_text(copy: CopyRow) -> str:
    """A copy's progress: percentage, rows, size, rate and time left, as far as known."""
    parts = [f"{copy.rows:,} rows".replace(",", " "), size_text(copy.bytes)]
    if copy.total_bytes_estimate:
        parts.insert(0, f"{copy.bytes / copy.total_bytes_estimate:.0%}")
    if copy.rows_per_s is not None:
        parts.append(f"{copy.rows_per_s:,.0f} rows/s".replace(",", " "))
    if copy.seconds_left is not None:
        parts.append(f"{timedelta(seconds=round(copy.seconds_left))} left")
    return ", ".join(parts)


def size_text(size_bytes: int | None) -> str:
    """A number of bytes in PostgreSQL's units, as pg_size_pretty writes it."""
    if size_bytes is None:
        return "-"
    size = float(size_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 10240:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.0f} TB"
