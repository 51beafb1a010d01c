"""The critical part of `pgbridge check`, beside Spark's start: a wrong host is told at once, not after it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from bridge.check.finding import Level
from bridge.check.others import Known, is_enabled
from bridge.check.subscription import check_subscription

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from bridge.catalog.catalog import Catalog
    from bridge.config.config import Config, Subscription

_AT_ONCE = 8


def preflight(config: Config, catalog: Catalog, log: FilteringBoundLogger) -> threading.Thread:
    """Check all enabled subscriptions in a thread, and log what failed.

    Nothing waits for it: a worker that fails says why, again and again, and the server may be mended meanwhile.
    """
    enabled = [one for one in config.subscription.values() if is_enabled(one, catalog)]
    known = Known(catalog, running=True)

    def check(subscription: Subscription) -> None:
        try:
            for finding in check_subscription(subscription, known):
                if finding.level is Level.FAILURE:
                    log.error(
                        "check failed",
                        subscription=subscription.name,
                        check=finding.subject,
                        error=finding.message,
                        hint=": ".join(filter(None, (finding.remedy, finding.statement))),
                    )
        except Exception as error:  # noqa: BLE001 - the server went away in between, or the daemon ends
            log.debug("the check was cut short", subscription=subscription.name, error=str(error))

    def run() -> None:
        with ThreadPoolExecutor(_AT_ONCE, "check") as pool:
            list(pool.map(check, enabled))

    thread = threading.Thread(target=run, name="check", daemon=True)
    thread.start()
    return thread
