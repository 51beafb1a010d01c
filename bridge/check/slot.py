"""Rules on the subscription's slot, and on what the state directory knows of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.check.finding import Finding, failed, failure, passed, warning
from bridge.receive.slot import check_slot
from bridge.runtime.errors import PublisherError
from bridge.sync.start import foreign_slot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bridge.receive.slot_status import SlotStatus
    from protocol.lsn import Lsn

_SUBJECT = "replication slot"


@dataclass(frozen=True, slots=True)
class Expected:
    """A subscription's expectations of its slot.

    Attributes:
        subscription: The subscription's name.
        create_slot: Whether the subscription creates it.
        durable_lsn: The origin's LSN; None before the first stream.
        being_created: Whether an earlier start was cut short while it created the slot.
        running: Whether the daemon is running, so that the slot is active for it.
    """

    subscription: str
    slot_name: str
    create_slot: bool
    durable_lsn: Lsn | None
    being_created: bool
    running: bool


def check_slot_state(status: SlotStatus | None, expected: Expected, *, database: str) -> Iterator[Finding]:
    """Look at a slot.

    Args:
        status: Its row of pg_replication_slots; None if it does not exist.
        expected: What the subscription expects.
        database: The connection's database.
    """
    slot_name, is_new = expected.slot_name, expected.durable_lsn is None
    if is_new and expected.create_slot:
        if status is None:
            yield passed(_SUBJECT, f'"{slot_name}" is created at the first start')
        elif not expected.being_created:
            yield failed(_SUBJECT, foreign_slot(slot_name))
        return
    try:
        check_slot(
            slot_name,
            status,
            subscription=expected.subscription,
            database=database,
            durable_lsn=expected.durable_lsn,
        )
    except PublisherError as error:
        yield failed(_SUBJECT, error)
        return
    if status is None:
        return
    if status.active and not expected.running:
        yield failure(
            _SUBJECT,
            f'"{slot_name}" is active for process {status.active_pid} on the server, and no daemon runs here',
            remedy="stop the other reader; if it is gone, the server notices that within wal_sender_timeout",
            statement=f"SELECT pg_terminate_backend({status.active_pid});",
        )
    elif status.wal_status == "unreserved":
        yield warning(
            _SUBJECT,
            f'"{slot_name}" has less WAL than max_slot_wal_keep_size keeps: the next checkpoint may remove it',
            remedy="start pgbridge now, or let slots hold more WAL",
            statement="ALTER SYSTEM SET max_slot_wal_keep_size = '…'; SELECT pg_reload_conf();",
        )
    else:
        yield passed(_SUBJECT, f'"{slot_name}" is sound, confirmed up to {status.confirmed_flush_lsn}')
