"""What cannot work is logged while Spark is starting."""

from __future__ import annotations

from contextlib import closing

from structlog.testing import capture_logs

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.check.report import preflight
from pgbridge.bridge.config.config import Config, Subscription
from pgbridge.bridge.runtime import log


def test_failures_of_enabled_subscriptions_are_logged(tmp_path):
    def subscription(name: str) -> Subscription:
        return Subscription(name=name, connection="host=/nonexistent", publications=("p",), warehouse="/lake")

    config = Config(state_dir=tmp_path, subscription={name: subscription(name) for name in ("shop", "off")})
    with closing(Catalog(catalog_path(tmp_path))) as catalog, capture_logs() as events:
        catalog.register("shop", enabled=True)
        catalog.register("off", enabled=False)
        preflight(config, catalog, log.get()).join()
    (event,) = events
    assert (event["event"], event["subscription"], event["check"]) == ("check failed", "shop", "connection")
    assert "cannot connect to the publisher" in event["error"]
