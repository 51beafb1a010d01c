"""The status document: what is said of subscriptions and their tables.

`pgbridge status`, its JSON, the status page, metrics and readiness are all drawn from it. It is made from the catalog,
from what the servers say of the slots, and in the daemon from what its streams have told. It has only JSON's types.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, TypedDict

from pgbridge.bridge.catalog import followed, maintenance, notes, verified
from pgbridge.bridge.catalog.catalog_rows import CopyRow, ErrorRow, RelRow, SubscriptionRow, sync_name
from pgbridge.bridge.receive.slot_status import SlotHealth, concern
from pgbridge.bridge.receive.slot_watch import ServerSlots
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import HINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Config, Subscription
    from pgbridge.bridge.monitor.observations import Observations
    from pgbridge.protocol.lsn import Lsn

_FOLLOWS: Final = frozenset({"streaming", "copying"})
_LAG_TOO_HIGH_S: Final = 300


class Problem(TypedDict):
    """What an operator should know of a subscription or a table.

    Attributes:
        kind: `apply` or `sync` for the last error of applying or copying, `slot`, `synchronous`, `disabled`, `silent`,
            `lag`, `skip` or `empty` (no table is followed); of a table `waits`, `differs`, `maintenance`, `left_out`,
            or a kind of `publication.differences`.
        level: A problem needs somebody; a warning may.
        relation: The table; None for the subscription.
        time: When it was seen, or since when it is so; None for now. All times are ISO 8601, in UTC.
        message: What is the matter.
        hint: What to do; None if there is nothing, or the message says it.
    """

    kind: str
    level: Literal["problem", "warning"]
    relation: str | None
    time: str | None
    message: str
    hint: str | None


class LastError(TypedDict):
    """The last error; until a later transaction was applied."""

    message: str
    finish_lsn: str | None
    relation: str | None
    time: str


class CopyStatus(TypedDict):
    """A copy under way, as `CopyRow` has it."""

    rows: int
    bytes: int
    total_bytes_estimate: int
    rows_per_s: float | None
    seconds_left: float | None


class MaintenanceStatus(TypedDict):
    """When a table was last maintained, how many files it had then, and the last attempt's error."""

    files: int
    optimized: str | None
    vacuumed: str | None
    error: str | None


class TableStatus(TypedDict):
    """A table; `state` is i, d, f, s or r. It has `copy` while it is copied, `maintenance` once it was looked at."""

    name: str
    state: str
    path: str
    copy: NotRequired[CopyStatus]
    maintenance: NotRequired[MaintenanceStatus]


class SlotStatus(TypedDict):
    """The slot on the server, as `SlotHealth` has it."""

    wal_status: str
    safe_wal_size_bytes: int | None
    retained_bytes: int | None
    invalidation_reason: str | None
    seconds_left: float | None
    active: bool
    synchronous: bool


class SubscriptionStatus(TypedDict):
    """A subscription.

    LSNs are text, and None if unknown; `confirmed_flush_lsn`, `lag_bytes` and `slot` are None if the server does not
    answer. `conflicts` has how often each kind of PostgreSQL's conflicts arose. In the daemon `told` has what the
    streams have told since its start (`Observations.as_json`).
    """

    name: str
    enabled: bool
    state: str
    slot_name: str
    received_lsn: str | None
    remote_lsn: str | None
    confirmed_flush_lsn: str | None
    lag_bytes: int | None
    skip_lsn: str | None
    apply_error_count: int
    sync_error_count: int
    last_error: LastError | None
    tables: list[TableStatus]
    conflicts: dict[str, int]
    slot: SlotStatus | None
    commit_interval_s: float
    problems: list[Problem]
    told: NotRequired[dict[str, Any]]


class StatusDocument(TypedDict):
    """The document of `pgbridge status --json`."""

    subscriptions: list[SubscriptionStatus]


def collect(config: Config, catalog: Catalog, *, running: bool, servers: ServerSlots | None = None) -> StatusDocument:
    """Return the status of a configuration's subscriptions.

    Args:
        config: The configuration with the subscriptions to show.
        catalog: Its catalog; a subscription that never ran is shown with the configuration's values.
        running: Whether a daemon holds the state directory.
        servers: Asks the servers; None to wait for each as long as connecting takes.
    """
    subscriptions = list(config.subscription.values())
    slots = (servers or ServerSlots()).of(subscriptions)
    return {
        "subscriptions": [
            subscription_status(each, catalog, slots.get(each.name), running=running) for each in subscriptions
        ]
    }


def subscription_status(
    subscription: Subscription,
    catalog: Catalog,
    slot: SlotHealth | None,
    *,
    running: bool,
    told: Observations | None = None,
) -> SubscriptionStatus:
    """Return a subscription's part of the document.

    Args:
        slot: The slot; None if the server does not answer.
        running: As for `collect`.
        told: What its streams have told; None outside the daemon.
    """
    name = subscription.name
    row, rels = catalog.subscription(name), tables_of(catalog, name)
    enabled = row.enabled if row else subscription.enabled
    state = row.state if row and running else "stopped"
    remote_lsn = catalog.remote_lsn(name)
    errors = {"apply": catalog.last_error(name), "sync": catalog.last_error(sync_name(name))}
    copies = {(copy.namespace, copy.name): copy for copy in copies_of(catalog, name)} if running else {}
    maintained = maintenance.rows(catalog, name)
    status: SubscriptionStatus = {
        "name": name,
        "enabled": enabled,
        "state": state if enabled else "disabled",
        "slot_name": subscription.slot_name,
        "received_lsn": _text(received_lsn(row, remote_lsn)),
        "remote_lsn": _text(remote_lsn),
        "confirmed_flush_lsn": _text(slot.confirmed_flush_lsn if slot else None),
        "lag_bytes": lag_bytes(row, remote_lsn, slot),
        "skip_lsn": _text(catalog.skip_lsn(name) or catalog.skip_lsn(sync_name(name))),
        "apply_error_count": row.apply_error_count if row else 0,
        "sync_error_count": row.sync_error_count if row else 0,
        "last_error": next((_error(kind, error) for kind, error in errors.items() if error), None),
        "tables": [_table(rel, copies.get((rel.namespace, rel.name)), maintained.get(rel.path)) for rel in rels],
        "conflicts": notes.conflicts(catalog, name),
        "slot": None if slot is None else _slot(slot),
        "commit_interval_s": subscription.batch.commit_interval_s,
        "problems": [],
    }
    if told is not None:
        status["told"] = told.as_json()
    said = [
        *(_of_error(status, kind, error) for kind, error in errors.items() if error),
        *_of_subscription(subscription, status, slot),
        *_of_tables(catalog, name, status, rels),
    ]
    status["problems"] = sorted(said, key=lambda problem: problem["level"])
    return status


def lag_bytes(row: SubscriptionRow | None, remote_lsn: Lsn | None, slot: SlotHealth | None) -> int | None:
    """Return how much WAL lies between what is durable and the furthest position known of the server.

    None while the server does not answer: what was received of it says little about what it has written since.
    """
    if remote_lsn is None or slot is None:
        return None
    return max(0, slot.flush_lsn - remote_lsn, *([row.received_lsn - remote_lsn] if row else []))


def received_lsn(row: SubscriptionRow | None, remote_lsn: Lsn | None) -> Lsn | None:
    """Up to where the stream was received: what is durable was, whatever the daemon wrote a second ago."""
    known = [lsn for lsn in (row.received_lsn if row else None, remote_lsn) if lsn]
    return max(known) if row and known else None


def tables_of(catalog: Catalog, name: str) -> list[RelRow]:
    """The subscription's tables; one that follows the tablesync worker's stream is shown as copied (f)."""
    return [
        replace(rel, state="f") if owner != name and rel.state in "sr" else rel
        for owner, rel in catalog.owned_rels(name, sync_name(name))
    ]


def copies_of(catalog: Catalog, name: str) -> list[CopyRow]:
    """A subscription's copies under way, those of its tablesync worker included."""
    return [*notes.copies(catalog, name), *notes.copies(catalog, sync_name(name))]


def not_ready(spark: str, subscriptions: Iterable[SubscriptionStatus]) -> list[dict[str, str]]:
    """Return what keeps a daemon from being ready: nothing if every enabled subscription streams or copies.

    One that streams while a copy of an added table has failed, and does not run again, is not ready either; nor while a
    table waits for its resync.

    Args:
        spark: starting or running.
        subscriptions: Their status.
    """
    if spark != "running":
        return [{"reason": f"Spark is {spark}"}]
    reasons = []
    for status in (status for status in subscriptions if status["enabled"]):
        kinds = {"waits"} if any("copy" in table for table in status["tables"]) else {"waits", "sync"}
        lacks = [problem["message"] for problem in status["problems"] if problem["kind"] in kinds]
        if status["state"] not in _FOLLOWS or lacks:
            error = status["last_error"]
            reason = error["message"] if error else next(iter(lacks), "")
            reasons.append({"subscription": status["name"], "state": status["state"], "reason": reason})
    return reasons


# --- what is said of a subscription and its tables, in one place ------------------------------------------------------


def _of_error(status: SubscriptionStatus, kind: str, error: ErrorRow) -> Problem:
    lsn = _error(kind, error)["finish_lsn"]
    hint = None
    if lsn is not None and lsn != status["skip_lsn"]:
        hint = f"to skip the transaction, run: {remedies.skip(status['name'], lsn)}"
    return _problem(kind, error.message, hint, level="problem", relation=error.relation, time=_time(error.time_s))


def _of_subscription(
    subscription: Subscription, status: SubscriptionStatus, slot: SlotHealth | None
) -> Iterator[Problem]:
    name, begun, error = status["name"], status["remote_lsn"] is not None, status["last_error"]
    again = remedies.start_afresh(name)
    told = error is not None and again.partition(" --config ")[0] in error["message"]
    worry = None if slot is None or not begun or (slot.lost and told) else concern(subscription, slot)
    if worry is not None:
        yield _problem("slot", worry.message, worry.hint, level="problem" if worry.level == "error" else "warning")
    if slot is not None and slot.synchronous:
        waits = "the server's commits wait for the subscription (synchronous_standby_names)"
        yield _problem("synchronous", waits, level="warning" if slot.active else "problem")
    if not status["enabled"]:
        holds = "; its slot goes on holding WAL on the server" if begun else ", and has not begun"
        yield _problem("disabled", f"disabled{holds}", hint=f"to let it run, run: {remedies.enable(name)}")
    if begun and not status["tables"] and subscription.needs_tables:
        yield _problem("empty", "it follows no table", hint=remedies.of_no_table(name))
    if begun and slot is None and status["state"] in _FOLLOWS:
        yield _problem("silent", "the server does not answer")
    lag_s = status["told"]["lag_s"] if "told" in status else None
    if lag_s is not None and lag_s > _LAG_TOO_HIGH_S:
        yield _problem("lag", f"{timedelta(seconds=round(lag_s))} behind (hours:minutes:seconds)")
    if status["skip_lsn"] is not None:
        yield _problem("skip", f"will skip the transaction that finished at {status['skip_lsn']}")


def _of_tables(catalog: Catalog, name: str, status: SubscriptionStatus, rels: Iterable[RelRow]) -> Iterator[Problem]:
    for rel in rels:
        if rel.waits is not None:
            message, _, hint = rel.waits.partition(HINT)
            since = _time_or_none(rel.waits_since_s)
            text = f"{rel.qualified_name} waits for its resync: {message}"
            yield _problem("waits", text, hint, level="problem", relation=rel.qualified_name, time=since)
    for rel, row in verified.rows(catalog, name, rels).items():
        if row.differs is not None:
            text = f"{rel.qualified_name} differs from the published table as of {row.differs_lsn}: {row.differs}"
            of = {"relation": rel.qualified_name, "time": _time(row.tried_s)}
            yield _problem("differs", text, remedies.of_difference(name, rel.qualified_name), level="problem", **of)
    for seen in followed.seen(catalog, name):
        differs, relation = seen.difference, ".".join(seen.difference.relation)
        yield _problem(differs.kind, differs.message, differs.hint, relation=relation, time=_time(seen.since_s))
    for table in status["tables"]:
        if "maintenance" in table and (failed := table["maintenance"]["error"]):
            text = f"maintenance of {table['name']} failed, and is tried again: {failed}"
            yield _problem("maintenance", text, relation=table["name"])
    for (namespace, table_name), reason in notes.left_out(catalog, name).items():
        yield _problem("left_out", f"left out: {reason}", relation=f"{namespace}.{table_name}")


def _problem(
    kind: str,
    message: str,
    hint: str | None = None,
    *,
    level: Literal["problem", "warning"] = "warning",
    relation: str | None = None,
    time: str | None = None,
) -> Problem:
    return {"kind": kind, "level": level, "relation": relation, "time": time, "message": message, "hint": hint}


# --- parts ------------------------------------------------------------------------------------------------------------


def _error(kind: str, error: ErrorRow) -> LastError:
    return {
        "message": error.message,
        "finish_lsn": None if kind == "sync" else _text(error.finish_lsn),  # a copy has no transaction to skip
        "relation": error.relation,
        "time": _time(error.time_s),
    }


def _table(rel: RelRow, copy: CopyRow | None, maintained: maintenance.MaintainedRow | None) -> TableStatus:
    table: TableStatus = {"name": rel.qualified_name, "state": rel.state, "path": rel.path}
    if copy is not None:
        table["copy"] = {
            "rows": copy.rows,
            "bytes": copy.bytes,
            "total_bytes_estimate": copy.total_bytes_estimate,
            "rows_per_s": copy.rows_per_s,
            "seconds_left": copy.seconds_left,
        }
    if maintained is not None:
        table["maintenance"] = {
            "files": maintained.files,
            "optimized": _time_or_none(maintained.optimized_s),
            "vacuumed": _time_or_none(maintained.vacuumed_s),
            "error": maintained.error,
        }
    return table


def _slot(slot: SlotHealth) -> SlotStatus:
    return {
        "wal_status": slot.shown_status,
        "safe_wal_size_bytes": slot.safe_wal_size_bytes,
        "retained_bytes": slot.retained_bytes,
        "invalidation_reason": slot.invalidation_reason,
        "seconds_left": slot.seconds_left,
        "active": slot.active,
        "synchronous": slot.synchronous,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _time_or_none(seconds: float | None) -> str | None:
    return None if seconds is None else _time(seconds)


def _text(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)
