"""A transaction that the walsender cannot send: which one it is.

The server decodes a transaction at its commit. If that raises an error (a value that UTF-8 does not have, a row filter
that divides by zero, an output function that fails), it does so at every try: the change is in the WAL. It leaves out
transactions that commit before the LSN at which a stream begins without a look at them (`SnapBuildXactNeedsSkip` in
snapbuild.c), so a stream that begins just behind the start of its commit record passes this one, and no other.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import psycopg

from pgbridge.bridge.catalog.catalog_rows import owner_of
from pgbridge.bridge.receive.connection import connect, follow_encoding, translated
from pgbridge.bridge.runtime import errors, remedies
from pgbridge.protocol.codec.walsender import PgoutputOptions, option_texts
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription

_ALIGNMENT: Final = 8  # of records in the WAL; none is shorter than three times that
_FIRST_STEP_BYTES: Final = 1 << 16
_PAGE_HEADER_BYTES: Final = 24
_SEGMENT_HEADER_BYTES: Final = 40  # of a segment's first page


def behind(finish_lsn: Lsn) -> Lsn:
    """An LSN at which a stream begins that passes the transaction and has all that commit later."""
    return Lsn(finish_lsn + _ALIGNMENT)


def passes(
    error: errors.StreamError,
    subscription: Subscription,
    options: PgoutputOptions,
    catalog: Catalog,
    log: FilteringBoundLogger,
) -> bool:
    """Have a subscription's origin pass the transaction that the server could not send, if that is the one to skip.

    The transactions before it must be durable: else the next stream has them again, and comes here once more.
    """
    name = subscription.name
    skip_lsn, remote_lsn = catalog.skip_lsn(name), catalog.remote_lsn(name)
    if skip_lsn is None or remote_lsn is None or remote_lsn < error.after:
        return False
    if skip_lsn != _culprit(error, subscription, options, log) or not catalog.advance_origin(name, behind(skip_lsn)):
        return False
    catalog.set_skip_lsn(name, None)
    log.warning(
        "logical replication skipped a transaction that the publisher could not send",
        finish_lsn=str(skip_lsn),
        reason=error.message,
    )
    return True


def name_culprit(
    error: errors.StreamError,
    subscription: Subscription,
    options: PgoutputOptions | None,
    catalog: Catalog,
    log: FilteringBoundLogger,
) -> None:
    """Give an error the finish LSN of the transaction that the server could not send, and a hint how to go on."""
    name, last = subscription.name, catalog.last_error(subscription.name)
    owner = owner_of(name)
    if owner != name:
        error.finish_lsn = None  # `skip` is of the subscription's own stream
        error.hint = f"the added tables are copied anew, behind the change; at once with: {remedies.refresh(owner)}"
        return
    known = last.finish_lsn if last is not None and error.message in last.message else None
    if known is not None and known >= max(error.after, catalog.remote_lsn(name) or error.after):
        error.finish_lsn = known  # it failed before, and nothing has moved since
    elif options is not None:
        error.finish_lsn = _culprit(error, subscription, options, log)
    if error.finish_lsn is not None:
        error.hint = (
            f"the change is in the WAL; to skip its transaction, run: {remedies.skip(name, error.finish_lsn)}; nothing "
            f"of it is kept: to have its other changes, copy the tables again: {remedies.resync(name, 'TABLE')}"
        )
    else:
        error.hint = (
            "the change is in the WAL, and its transaction is not known; to copy all tables again, run: "
            f"{remedies.start_afresh(name)}"
        )


def _culprit(
    error: errors.StreamError, subscription: Subscription, options: PgoutputOptions, log: FilteringBoundLogger
) -> Lsn | None:
    """The finish LSN of the transaction that the server could not send; None if it is not known.

    It is the transaction whose Begin was sent. Without one, the server must have failed at a commit record: with
    `streaming` or `two_phase` it may have been at an earlier record of a transaction that ends later.
    """
    if error.finish_lsn is not None or options.get("streaming", "off") != "off":
        return error.finish_lsn
    try:
        return find(
            *(subscription.connection, subscription.slot_name, options, error.after, error.sqlstate),
            application_name=subscription.name,
        )
    except errors.PublisherError as failure:
        log.warning("the transaction that the publisher could not send is not known", reason=str(failure))
        return None


def find(
    conninfo: str, slot_name: str, options: PgoutputOptions, after: Lsn, sqlstate: str, *, application_name: str
) -> Lsn | None:
    """Find the finish LSN of the first transaction that cannot be decoded.

    Each of some dozen tries decodes from a temporary copy of the slot up to another LSN. Nobody streams from it.

    Args:
        options: pgoutput's; without what streams or prepares.
        after: All transactions that commit before it can be decoded.
        sqlstate: Of the error.
        application_name: For pg_stat_activity.

    Raises:
        PublisherError: The server cannot be asked: for example, it has no slot left for the copy.

    Returns:
        The LSN of the record at which decoding fails; None if it does not, or if the slot has two_phase, which its
        copies do not have.
    """
    with connect(conninfo, application_name=application_name) as connection:
        try:
            follow_encoding(connection)
            tries = _Tries(connection, slot_name, options, after, sqlstate)
            return tries.first_failing(Lsn(after // _ALIGNMENT * _ALIGNMENT))
        except psycopg.Error as error:
            raise translated(error, "cannot look for the transaction that the publisher could not send") from error


class _Tries:
    """Tries to decode; the server drops a temporary slot at an error, so each try has its own."""

    def __init__(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        slot_name: str,
        options: PgoutputOptions,
        after: Lsn,
        sqlstate: str,
    ) -> None:
        self._connection, self._sqlstate = connection, sqlstate
        self._slot_name, self._copy = slot_name, f"pgbridge_find_{uuid.uuid4().hex[:12]}"
        texts = option_texts({**options, "proto_version": 1})
        kept = {option: text for option, text in texts.items() if option not in {"streaming", "two_phase"}}
        self._options = [text for pair in kept.items() for text in pair]
        self._after = after

    def first_failing(self, works: Lsn) -> Lsn | None:
        """The begin of the first record at which decoding fails; up to `works` it does not."""
        (flush, page_bytes, segment_bytes, two_phase) = self._row(
            "SELECT ((CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)"
            " - '0/0')::int8, current_setting('wal_block_size')::int8,"
            " pg_size_bytes(current_setting('wal_segment_size')),"
            " (SELECT two_phase FROM pg_replication_slots WHERE slot_name = %s)",
            self._slot_name,
        )
        if two_phase:
            return None
        end, step = Lsn(flush), _FIRST_STEP_BYTES
        fails = min(Lsn(works + step), end)
        while not self._fails(fails):
            if fails >= end:
                return None
            works, step = fails, 2 * step
            fails = min(Lsn(works + step), end)
        while fails - works > _ALIGNMENT:
            middle = Lsn((works + fails) // (2 * _ALIGNMENT) * _ALIGNMENT)
            works, fails = (works, middle) if self._fails(middle) else (middle, fails)
        # the record before ends at `works`; at the begin of a page the next one stands behind the page's header
        at_page, at_segment = works % page_bytes == 0, works % segment_bytes == 0
        return Lsn(works + (_SEGMENT_HEADER_BYTES if at_segment else _PAGE_HEADER_BYTES if at_page else 0))

    def _fails(self, up_to: Lsn) -> bool:
        """Whether decoding fails at a record that begins before an LSN."""
        try:
            self._row("SELECT pg_copy_logical_replication_slot(%s, %s, true)", self._slot_name, self._copy)
            self._row(
                "SELECT pg_replication_slot_advance(slot_name, greatest(confirmed_flush_lsn, %s::pg_lsn))"
                " FROM pg_replication_slots WHERE slot_name = %s",
                *(str(self._after), self._copy),
            )
            self._row(
                "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, %s, NULL, VARIADIC %s)",
                *(self._copy, str(up_to), self._options),
            )
        except psycopg.Error as error:
            if error.sqlstate != self._sqlstate:
                raise
            return True
        self._row("SELECT pg_drop_replication_slot(%s)", self._copy)
        return False

    def _row(self, statement: str, *parameters: object) -> tuple[Any, ...]:
        return self._connection.execute(statement.encode(), parameters or None).fetchone() or ()
