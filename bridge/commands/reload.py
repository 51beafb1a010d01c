"""`pgbridge reload`: has a running daemon read the configuration file again, and says what it has made of it.

The daemon takes the request up in `bridge.reload`; requests in the catalog are `bridge.track.reload`.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from bridge.errors import ConfigError
from bridge.track.catalog import Catalog, catalog_path
from bridge.track.lock import is_running
from bridge.track.reload import INVALID, Outcome, ask, take_answer

if TYPE_CHECKING:
    from bridge.config import Config

_PATIENCE_S = 30.0
"""How long to wait for the daemon: it answers within a second, except while it starts Spark."""

_LOOK_INTERVAL_S = 0.1


def reload(config: Config) -> Outcome:
    """Ask the daemon on the configuration's state directory, and wait for its answer.

    Raises:
        ConfigError: The daemon could not use the file.
        StateError: The state directory cannot be used.
    """
    not_running = Outcome(0, (f"no daemon runs on {config.state_dir}: this takes effect at the daemon's next start",))
    if not is_running(config.state_dir):
        return not_running
    with closing(Catalog(catalog_path(config.state_dir))) as catalog:
        number = ask(catalog)
        end_s = time.monotonic() + _PATIENCE_S
        while (outcome := take_answer(catalog, number)) is None:
            if not is_running(config.state_dir):
                return not_running
            if time.monotonic() > end_s:
                line = "the daemon has not answered yet: it takes this up once Spark runs; its log will say it"
                return Outcome(1, (line,))
            time.sleep(_LOOK_INTERVAL_S)
    if outcome.code == INVALID:
        raise ConfigError("\n".join(outcome.lines))
    return outcome
