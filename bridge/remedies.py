"""The pgbridge commands that messages, hints and `pgbridge status` name as the way on, as typed in a shell."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from protocol.lsn import Lsn

INIT: Final = "pgbridge init --connection … --publication … --warehouse …"
"""Writes a configuration file."""


def run(config_file: Path) -> str:
    """Start the daemon."""
    return f"pgbridge run --config {shlex.quote(str(config_file))}"


def drop_slot(slot_name: str) -> str:
    """Drop a replication slot, in SQL on the server. The name has no quotes in it."""
    return f"SELECT pg_drop_replication_slot('{slot_name}');"


def refresh(subscription: str) -> str:
    """Add tables that are published now, and remove those that are not."""
    return f"pgbridge refresh {shlex.quote(subscription)}"


def resync(subscription: str, *tables: str) -> str:
    """Copy tables, each `namespace.name`, afresh."""
    return refresh(subscription) + "".join(f" --resync {shlex.quote(table)}" for table in tables)


def enable(subscription: str) -> str:
    """Enable a subscription."""
    return f"pgbridge enable {shlex.quote(subscription)}"


def disable(subscription: str) -> str:
    """Disable a subscription."""
    return f"pgbridge disable {shlex.quote(subscription)}"


def start_afresh(subscription: str) -> str:
    """Copy all tables afresh, with another slot."""
    return f"pgbridge resync {shlex.quote(subscription)}"


def skip(subscription: str, finish_lsn: Lsn | str) -> str:
    """Skip the transaction that finished at an LSN."""
    return f"pgbridge skip {shlex.quote(subscription)} --lsn {finish_lsn}"


def replay(subscription: str, finish_lsn: Lsn | str) -> str:
    """Apply a transaction that was skipped."""
    return f"pgbridge replay {shlex.quote(subscription)} --lsn {finish_lsn}"
