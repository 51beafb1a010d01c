"""The pgoutput options of START_REPLICATION: the subscription's, as far as the publisher's version has them.

An option with pgoutput's default value is not sent, because older versions do not know it.

Source: `libpqrcv_startstreaming` in PostgreSQL's libpqwalreceiver.c, `parse_output_parameters` in pgoutput.c.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.runtime.errors import PublisherError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbridge.bridge.config.config import Subscription
    from pgbridge.protocol.codec.walsender import PgoutputOptions
    from pgbridge.protocol.lsn import Lsn

SINCE: Final[dict[str, int]] = {
    "binary": 14,
    "streaming": 14,
    "two_phase": 15,
    "origin": 16,
    "messages": 14,
    "failover": 17,  # the slot's, not pgoutput's
}
"""Option -> the first version of PostgreSQL that has it."""

_OFF: Final[dict[str, str | bool]] = {
    "binary": False,
    "streaming": "off",
    "two_phase": False,
    "origin": "any",
    "messages": "off",
    "failover": False,
}
"""Option -> the value that turns it off."""


def pgoutput_options(subscription: Subscription, version: int, *, binary_readable: bool) -> PgoutputOptions:
    """The options to send with START_REPLICATION.

    proto_version is the lowest that suffices: 3 with two_phase, 2 with streaming, else 1. With `messages = "table"`
    there is no streaming.

    `binary` and `messages` are on by default. If the server lacks one and the configuration file does not name the
    key, the option is not sent; if the file names it, the subscription is refused.

    Args:
        subscription: Its configuration.
        version: The publisher's server_version_num.
        binary_readable: Whether all published columns' types can be read in binary form; else text is requested.

    Raises:
        PublisherError: The server lacks an option; the message has both versions.
    """
    options: PgoutputOptions = {"proto_version": 1, "publication_names": subscription.publications}
    if subscription.binary and _has(subscription, "binary", version) and binary_readable:
        options["binary"] = True
    if subscription.messages != "off" and _has(subscription, "messages", version):
        options["messages"] = True
    if subscription.streams and _has(subscription, "streaming", version):
        options["proto_version"] = 2
        options["streaming"] = subscription.streaming
    if subscription.two_phase and _has(subscription, "two_phase", version):
        options["proto_version"] = 3
        options["two_phase"] = True
    if subscription.origin != "any" and _has(subscription, "origin", version):
        options["origin"] = subscription.origin
    if subscription.failover:
        _has(subscription, "failover", version)
    return options


def _has(subscription: Subscription, key: str, version: int) -> bool:
    """Whether the server has an option that is on; False only if it is on by default.

    Raises:
        PublisherError: The server lacks it, and the configuration file names it.
    """
    if version >= SINCE[key] * 10_000:
        return True
    if key not in subscription.model_fields_set:
        return False
    wanted, instead = (json.dumps(value) for value in (getattr(subscription, key), _OFF[key]))  # as in TOML
    raise PublisherError(
        f"{key} = {wanted} needs PostgreSQL {SINCE[key]} on the publisher, which is {version // 10_000}",
        hint=f"set {key} = {instead}",
    )


# --- Streams that cannot get past a position as they were asked for: one without `streaming`, or in text, can ---------
# The server decodes a transaction in progress by what its catalog says at that time, and that can fail: "could not map
# filenumber … to relation OID", where a subtransaction altered a table before it was rolled back. Decoded at its
# commit, the same transaction is whole.
#
# And a stream in binary form cannot be read where a column has a type that is read from text only. The catalog says so
# before the stream begins, unless the column was dropped since. Pure: no I/O, no clock.

REPEATS: Final = 3
"""An error that came this often at one position does not go away by itself."""


class StreamingFallback:
    """Decides from a subscription's errors whether its next stream does without `streaming`, or without `binary`."""

    def __init__(self) -> None:
        self._last: tuple[str, Lsn] | None = None
        self._count = 0
        self._until_lsn: Lsn | None = None
        self._text_until_lsn: Lsn | None = None

    def needs_text(self, flush_lsn: Callable[[], Lsn]) -> bool:
        """Have the next streams be in text, because one in binary form cannot be read; False if they are already.

        Args:
            flush_lsn: How much WAL the server has. The fallback lasts until that is applied.
        """
        if self.text:
            return False
        self._text_until_lsn = flush_lsn()
        return True

    @property
    def text(self) -> bool:
        """Whether the next stream is in text."""
        return self._text_until_lsn is not None

    def failed(self, message: str, remote_lsn: Lsn, *, lasting: bool = False) -> None:
        """Count a stream that the server ended with an error, the origin at `remote_lsn`; a lasting one suffices."""
        if self._until_lsn is not None:  # streaming was not the reason
            self._reset()
            lasting = False
        self._count = REPEATS if lasting else self._count + 1 if self._last == (message, remote_lsn) else 1
        self._last = (message, remote_lsn)

    def begins(self, flush_lsn: Callable[[], Lsn]) -> bool:
        """Whether the fallback begins with the next stream: the same error came REPEATS times.

        Args:
            flush_lsn: How much WAL the server has. The fallback lasts until that is applied: the error is about WAL
                before it.
        """
        if self._until_lsn is not None or self._count < REPEATS:
            return False
        self._until_lsn = flush_lsn()
        return True

    def ends(self, durable_lsn: Lsn) -> bool:
        """Whether a fallback ends now: all WAL that the server had when it began is applied."""
        if self._text_until_lsn is not None and durable_lsn >= self._text_until_lsn:
            self._text_until_lsn = None
            return True
        if self._until_lsn is None or durable_lsn < self._until_lsn:
            return False
        self._reset()
        return True

    @property
    def active(self) -> bool:
        """Whether the next stream does without `streaming`."""
        return self._until_lsn is not None

    def _reset(self) -> None:
        self._until_lsn, self._count, self._last = None, 0, None
