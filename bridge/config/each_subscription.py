"""Goes over subscriptions for a command, so that one that cannot be read does not silence it for all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pgbridge.bridge.runtime.errors import BridgeError, SparkLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pgbridge.bridge.config.config import Subscription

T = TypeVar("T")


def each(
    subscriptions: Iterable[Subscription],
    do: Callable[[Subscription], T],
    failed: Callable[[Subscription, BridgeError], T],
) -> list[T]:
    """Return what `do` returns for each subscription, and what `failed` makes of the error of one that has failed.

    Raises:
        BridgeError: There is only one subscription, and it has failed.
        SparkLost: There is no Spark for any of them.
    """
    several = list(subscriptions)
    results = []
    for subscription in several:
        try:
            results.append(do(subscription))
        except SparkLost:
            raise
        except BridgeError as error:
            if len(several) == 1:
                raise
            results.append(failed(subscription, error))
    return results
