"""Whether the daemon is alive and whether it is ready. Pure: states and times come in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

TURN_LIMIT_S: Final = 30.0
"""A daemon whose main loop has not turned for so long is not alive. It turns twice a second; starting Spark counts."""

_READY: Final = frozenset({"streaming", "copying"})


def is_alive(turned_s: float, now_s: float) -> bool:
    """Whether the main loop has turned recently, by a clock that does not go back."""
    return now_s - turned_s <= TURN_LIMIT_S


def not_ready(spark: str, subscriptions: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """Return what keeps the daemon from being ready: nothing if every enabled subscription streams or copies.

    One that streams while a copy of an added table has failed, and does not run again, is not ready either; nor while a
    table waits for its resync.

    Args:
        spark: starting or running.
        subscriptions: Entries of `pgbridge status`.
    """
    if spark != "running":
        return [{"reason": f"Spark is {spark}"}]
    return [
        {
            "subscription": shown["name"],
            "state": shown["state"],
            "reason": _reason(shown),
        }
        for shown in subscriptions
        if shown["enabled"] and (shown["state"] not in _READY or _lacks_a_copy(shown))
    ]


def _lacks_a_copy(shown: dict[str, Any]) -> bool:
    failed = "sync_error" in shown and not any("copy" in table for table in shown["tables"])
    return failed or "waiting" in shown


def _reason(shown: dict[str, Any]) -> str:
    waiting = [f"{table['relation']} waits for its resync: {table['message']}" for table in shown.get("waiting", ())]
    error = shown["last_error"] or shown.get("sync_error") or {"message": ""}
    return str(error["message"] or next(iter(waiting), ""))
