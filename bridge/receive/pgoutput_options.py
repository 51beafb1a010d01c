"""The pgoutput options of START_REPLICATION: the subscription's, as far as the publisher's version has them.

An option with pgoutput's default value is not sent, because older versions do not know it.

Source: `libpqrcv_startstreaming` in PostgreSQL's libpqwalreceiver.c, `parse_output_parameters` in pgoutput.c.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from bridge.errors import PublisherError

if TYPE_CHECKING:
    from bridge.config import Subscription
    from protocol.walsender import PgoutputOptions

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

    proto_version is the lowest that suffices: 3 with two_phase, 2 with streaming, else 1.

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
    if subscription.streaming != "off" and _has(subscription, "streaming", version):
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
