"""What is asked of pgoutput: the subscription's options, as far as the publisher's version has them.

Source: `start_replication` of PostgreSQL's libpqwalreceiver.c and `parse_output_parameters` of pgoutput.c. An
option at pgoutput's own default is not sent, so that every version can be spoken to.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from bridge.errors import PublisherError

if TYPE_CHECKING:
    from bridge.config import Subscription
    from protocol.walsender import PgoutputOptions

SINCE: Final[dict[str, int]] = {"binary": 14, "streaming": 14, "two_phase": 15, "origin": 16, "messages": 14}
"""Option -> the first version of PostgreSQL whose pgoutput has it."""

_OFF: Final[dict[str, str | bool]] = {
    "binary": False,
    "streaming": "off",
    "two_phase": False,
    "origin": "any",
    "messages": "off",
}
"""Option -> the value that asks for nothing."""


def pgoutput_options(subscription: Subscription, version: int, *, binary_readable: bool) -> PgoutputOptions:
    """What START_REPLICATION asks for.

    The protocol is the lowest that has what is asked for: 3 with two_phase, 2 with streaming, else 1.

    `binary` and `messages` are on by default. A server that lacks one is not asked for it as long as the
    configuration file does not name the key; what is written there is wanted, and refused.

    Args:
        subscription: Its configuration.
        version: The publisher's server_version_num.
        binary_readable: Whether all published columns' types are read in binary form; text is asked for otherwise.

    Raises:
        PublisherError: The server lacks an option; names it, the server's version, and the one that has it.
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
    return options


def _has(subscription: Subscription, key: str, version: int) -> bool:
    """Whether the server has an option that is on; False only for one that is on by default.

    Raises:
        PublisherError: It has not, and the option was asked for.
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
