"""The LSN of the transaction to skip, as ALTER SUBSCRIPTION … SKIP accepts it. Pure.

Source: `parse_subscription_options` and `AlterSubscription` in PostgreSQL's subscriptioncmds.c;
`maybe_start_skipping_changes` and `clear_subscription_skip_lsn` in worker.c.
"""

from __future__ import annotations

from bridge.runtime.errors import InvalidLsn, SkipError
from protocol.lsn import INVALID, Lsn

NONE = "none"


def given_lsn(text: str) -> Lsn:
    """Read an LSN that an operator gave.

    Raises:
        InvalidLsn: It is none, or the invalid one, 0/0.
    """
    try:
        lsn = Lsn.parse(text.strip())
    except ValueError as error:
        raise InvalidLsn(f"invalid WAL location (LSN): {text}") from error
    if lsn == INVALID:
        raise InvalidLsn(f"invalid WAL location (LSN): {text}")
    return lsn


def parse(text: str, remote_lsn: Lsn | None) -> Lsn | None:
    """Read the finish LSN to skip; None for "none", which resets it.

    Args:
        text: The LSN as an error shows it, or "none".
        remote_lsn: The origin's LSN; None before the subscription's start.

    Raises:
        InvalidLsn: The text is not an LSN.
        SkipError: The transaction that finishes there is already applied.
    """
    if text.strip().lower() == NONE:
        return None
    lsn = given_lsn(text)
    if remote_lsn is not None and lsn < remote_lsn:
        raise SkipError(f"skip WAL location (LSN {lsn}) must be greater than origin LSN {remote_lsn}")
    return lsn
