"""A document as the daemon's status.json has it: a subscription that streams and copies, and one in error."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

TIME_S = datetime(2026, 11, 22, 21, 58, 12, tzinfo=UTC).timestamp()
SCRIPT = "public.<script>alert(1)</script>"
QUOTED = 'public.a"; drop table x; --'
LONG = "public." + "größe_" * 7 + "größe"
"""A name of 63 bytes, as many as PostgreSQL's names can have."""
ERROR = """\
column "placed": value 'infinity' cannot be represented: the column holds the years 0001 to 9999 only
CONTEXT:  processing remote data for replication origin "pgbridge_billing" during message type "UPDATE" for \
replication target relation "public.invoices" column "placed" in transaction 806, finished at 0/2F52788
HINT:  set unrepresentable = "null" to store NULL for such values"""
SKIP = "to skip the transaction, run: pgbridge skip billing --lsn 0/2F52788"

GAPS = range(120, 138)
"""The observations of `lag_history` without values: the server did not answer for three minutes."""


def document() -> dict[str, Any]:
    """The whole document."""
    return {
        "version": "0.9.0",
        "time": TIME_S,
        "started": TIME_S - 93_784,
        "spark": {"state": "running", "heap_used_bytes": 851_443_712, "heap_max_bytes": 2_147_483_648, "restarts": 0},
        "subscriptions": [_shop(), _billing()],
    }


def starting() -> dict[str, Any]:
    """The document of a daemon that has just started: nothing is known yet."""
    unknown = dict.fromkeys(["received_lsn", "remote_lsn", "confirmed_flush_lsn", "lag_bytes", "skip_lsn", "slot"])
    shop = {
        **_shop(),
        **unknown,
        "state": "starting",
        "tables": [],
        "conflicts": {},
        "problems": [],
        "told": {**_told(0, 0, 0), "lag_s": None, "lag_history": [[TIME_S, None, None]], "batches": []},
    }
    spark = {"state": "starting", "heap_used_bytes": None, "heap_max_bytes": None, "restarts": 0}
    return {**document(), "started": TIME_S, "spark": spark, "subscriptions": [shop]}


def _shop() -> dict[str, Any]:
    return {
        "name": "shop",
        "enabled": True,
        "state": "streaming",
        "slot_name": "shop",
        "received_lsn": "16/B374D848",
        "remote_lsn": "16/B374A1F0",
        "confirmed_flush_lsn": "16/B374A1F0",
        "lag_bytes": 13_912,
        "commit_interval_s": 0.0,
        "skip_lsn": None,
        "apply_error_count": 3,
        "sync_error_count": 0,
        "last_error": None,
        "tables": _tables(),
        "conflicts": {"update_missing": 12},
        "slot": {
            "wal_status": "extended",
            "safe_wal_size_bytes": 3_221_225_472,
            "retained_bytes": 1_288_490_188,
            "invalidation_reason": None,
            "seconds_left": 51_300.0,
            "active": True,
            "synchronous": False,
        },
        "problems": [
            problem("slot", 'at this rate replication slot "shop" is lost in 14:15:00 (hours:minutes:seconds)'),
            problem("maintenance", "maintenance of public.order_items failed, and is tried again: No space left"),
        ],
        "told": {
            **_told(1_204_311, 48_230_117, 9_127),
            "lag_s": 0.42,
            "lag_history": [_lag(index) for index in range(360)],
            "batches": [_batch(index) for index in range(50)],
        },
    }


def problem(kind: str, message: str, level: str = "warning", **keys: Any) -> dict[str, Any]:
    """A problem of the document."""
    return {"kind": kind, "level": level, "relation": None, "time": None, "message": message, "hint": None, **keys}


def _told(transactions: int, rows: int, batches: int) -> dict[str, Any]:
    return {"transactions_total": transactions, "rows_total": rows, "batches_total": batches}


def _billing() -> dict[str, Any]:
    error = {"message": ERROR, "finish_lsn": "0/2F52788", "relation": "public.invoices"}
    return {
        **_shop(),
        "name": "billing",
        "state": "error",
        "slot_name": "billing",
        "received_lsn": "0/2F527B8",
        "remote_lsn": "0/2F526E8",
        "confirmed_flush_lsn": "0/2F526E8",
        "lag_bytes": 48_234_496,
        "commit_interval_s": 15.0,
        "last_error": {**error, "time": "2026-11-22T21:58:03+00:00"},
        "tables": [{"name": "public.invoices", "state": "r", "path": "/srv/billing/lake/public/invoices"}],
        "conflicts": {},
        "slot": {
            "wal_status": "reserved",
            "safe_wal_size_bytes": None,
            "retained_bytes": 48_234_496,
            "invalidation_reason": None,
            "seconds_left": None,
            "active": True,
            "synchronous": False,
        },
        "problems": [
            problem("apply", ERROR, "problem", time="2026-11-22T21:58:03+00:00", hint=SKIP),
            problem("lag", "0:10:12 behind (hours:minutes:seconds)"),
        ],
        "told": {
            **_told(18, 90, 4),
            "lag_s": 612.0,
            "lag_history": [
                [TIME_S - 10 * (359 - index), max(0, index - 298) * 790_000, max(0, index - 298) * 10.0]
                for index in range(360)
            ],
            "batches": [_batch(index, ended_s=TIME_S - 610) for index in range(46, 50)],
        },
    }


def _lag(index: int) -> list[float | None]:
    """Small waves, and a load of ten minutes that is caught up with."""
    lag_s = 0.6 + 0.3 * math.sin(index / 3) + 9 * math.exp(-(((index - 240) / 18) ** 2))
    gap = index in GAPS
    return [TIME_S - 10 * (359 - index), None if gap else round(lag_s * 2_400_000), None if gap else round(lag_s, 2)]


def _batch(index: int, ended_s: float = TIME_S) -> dict[str, Any]:
    wave = 1 + 0.5 * math.sin(index / 2.5) + (1.2 if index in {31, 32, 33} else 0)
    return {
        "finished": ended_s - 4 * (50 - index),
        "end_lsn": f"16/B3{7_000_000 + 5_471 * index:X}",
        "commit_time": ended_s - 4 * (50 - index) - 1.1 * wave,
        "transactions": round(130 * wave),
        "rows": round(5_200 * wave),
        "tables": 3 + index % 4,
        "seconds": {"form": 0.12 * wave, "commit": 0.8 * wave, "flush": 0.11 + 0.02 * (index % 3), "record": 0.02},
    }


def _tables() -> list[dict[str, Any]]:
    """Twelve tables: ready ones, names that must not become markup, two copies under way, one to be copied."""
    plain = ["addresses", "customers", "order_items", "orders", "payments", "prices"]
    tables = [_table(f"public.{name}", "r") for name in plain]
    tables[2]["maintenance"]["error"] = "OPTIMIZE failed: No space left on device"
    tables += [_table(name, "r") for name in (SCRIPT, QUOTED, LONG)]
    events = _table("public.events", "d") | {
        "copy": {
            "rows": 31_204_551,
            "bytes": 4_402_341_478,
            "total_bytes_estimate": 6_979_321_856,
            "rows_per_s": 412_004.2,
            "seconds_left": 44.3,
        }
    }
    clicks = _table("public.clicks", "d") | {
        "copy": {"rows": 1, "bytes": 812, "total_bytes_estimate": None, "rows_per_s": None, "seconds_left": None}
    }
    return [*tables, *map(_without_maintenance, (events, clicks, _table("public.reviews", "i")))]


def _table(name: str, state: str) -> dict[str, Any]:
    kept = {"files": 3 + len(name), "optimized": "2026-11-22T20:14:09+00:00", "vacuumed": None, "error": None}
    return {"name": name, "state": state, "path": f"/srv/shop/lake/{name.replace('.', '/', 1)}", "maintenance": kept}


def _without_maintenance(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "maintenance"}
