"""Every class of error, with the policy that it is to have."""

from __future__ import annotations

from pgbridge.bridge.runtime.errors import (
    AnotherServer,
    ApplyContext,
    ApplyError,
    BridgeError,
    ConfigError,
    EndsSpark,
    InvalidLsn,
    NeedsResync,
    OutcomeUnknown,
    OwnColumnError,
    PublicationError,
    PublisherError,
    PublisherWentBack,
    RangesDiffer,
    SkipError,
    SlotAdvanced,
    SparkLost,
    StateError,
    StoreError,
    StreamError,
    SyncError,
    TableAhead,
    TableAltered,
    TakenOver,
    TargetBusy,
    TargetError,
    VerifyError,
)
from pgbridge.protocol.lsn import Lsn

CONTEXT = ApplyContext("pgbridge_shop", Lsn.parse("0/14C0378"), 725, "public.t1", "INSERT")

POLICY: list[tuple[Exception, bool, bool]] = [
    (BridgeError("x"), True, False),
    (ConfigError("x"), False, False),
    (StateError("x"), False, False),
    (StateError("x", retry=True), False, True),
    (TakenOver("x"), False, False),
    (SparkLost("x"), False, False),
    (PublisherError("x"), False, False),
    (PublisherError("x", retry=True), False, True),
    (SlotAdvanced("x"), False, False),
    (PublisherWentBack("x"), False, False),
    (AnotherServer("x"), False, False),
    (StreamError("x", "22012", Lsn(1)), False, False),
    (SkipError("x"), True, False),
    (InvalidLsn("x"), True, False),
    (PublicationError("x"), True, False),
    (VerifyError("x"), True, False),
    (TargetError("x"), True, False),
    (OwnColumnError("x"), True, False),
    (NeedsResync("x", ("public", "t")), True, False),
    (RangesDiffer("x", ("public", "t")), True, False),
    (StoreError("x"), False, True),
    (TargetBusy("x"), False, True),
    (SyncError("x"), True, True),
    (TableAltered("x"), False, True),
    (TableAhead("x"), False, True),
    (EndsSpark("x"), True, False),
    (ApplyError("x", CONTEXT), True, True),
    (OutcomeUnknown("x", CONTEXT), False, True),
    (RuntimeError("unforeseen"), True, True),
]
"""An error, whether it is the subscription's own, and whether it is soon tried again."""


def name(value: object) -> str | None:
    """The error's name, for a parameter's id."""
    return type(value).__name__ if isinstance(value, Exception) else None
