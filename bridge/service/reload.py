"""Reads the configuration file again while the daemon runs, when SIGHUP or `pgbridge reload` asks for it.

`bridge.service.reload_plan` decides what can change; the daemon then stops and starts workers by the plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bridge.catalog.notes import APPLIED, INVALID, REFUSED, Outcome, answer, asked
from bridge.runtime import log
from bridge.runtime.errors import ConfigError
from bridge.service.reload_plan import plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.catalog.catalog import Catalog
    from bridge.config.config import Config
    from bridge.service.reload_plan import ReloadPlan


_ONCE = "a daemon with --until-caught-up does not read the configuration file again: it takes effect at the next start"


class Reload:
    """Takes up requests to read the configuration file again.

    Args:
        read: Reads the file; None for a daemon that does not read it again, because it ends by itself.
        hangups: How many SIGHUPs have come.
        config: What was read at the start.
    """

    def __init__(self, read: Callable[[], Config] | None, hangups: Callable[[], int], config: Config) -> None:
        self._read = read
        self._hangups = hangups
        self._taken_up = 0
        self._definitions = _definitions(config)
        self._log = log.get()

    def asked(self, catalog: Catalog) -> bool:
        """Whether there is a request to read the file.

        Raises:
            StateError: The catalog cannot be used now.
        """
        return self._hangups() != self._taken_up or asked(catalog) is not None

    def take_up(self, config: Config, catalog: Catalog) -> ReloadPlan | None:
        """Read the file, register its subscriptions, and answer.

        The request is taken up again after an error, because nothing has changed in the daemon before the answer is
        written.

        Args:
            config: The configuration that the daemon runs.
            catalog: The process's catalog.

        Returns:
            What the daemon must do; None if the file cannot be used.

        Raises:
            StateError: The catalog cannot be used now.
        """
        hangups, number = self._hangups(), asked(catalog)
        if self._read is None:
            if number is not None:
                answer(catalog, number, Outcome(REFUSED, (_ONCE,)))
            self._taken_up = hangups
            self._log.warning(_ONCE)
            return None
        try:
            new = self._read()
        except ConfigError as error:
            if number is not None:
                answer(catalog, number, Outcome(INVALID, tuple(str(error).splitlines())))
            self._taken_up = hangups
            self._log.error(
                "the configuration file cannot be used; the daemon goes on with what it has read before",
                error=str(error),
            )
            return None
        definitions = _definitions(new)
        planned = plan(
            config,
            new,
            begun=[name for name in config.subscription if catalog.remote_lsn(name) is not None],
            rewritten=[name for name, text in definitions.items() if self._definitions.get(name) != text],
        )
        for subscription in planned.config.subscription.values():
            catalog.register(subscription.name, enabled=subscription.enabled)
        if number is not None:
            answer(catalog, number, Outcome(REFUSED if planned.refused else APPLIED, tuple(planned.lines())))
        self._taken_up, self._definitions = hangups, definitions
        self._tell(planned)
        return planned

    def _tell(self, planned: ReloadPlan) -> None:
        for key, refusal in planned.refused.items():
            self._log.warning(
                "a key of the configuration cannot change while the daemon runs",
                key=key,
                reason=refusal.reason,
                hint=refusal.remedy,
            )
        self._log.info(
            "the configuration file was read again",
            settings=list(planned.settings),
            added=list(planned.added),
            changed={name: list(keys) for name, keys in planned.changed.items()},
            removed=[subscription.name for subscription in planned.removed],
        )


def _definitions(config: Config) -> dict[str, bytes | None]:
    """Return what each subscription's file of publication definitions holds: its name stays when that changes."""
    paths = {name: subscription.publication_definitions for name, subscription in config.subscription.items()}
    return {name: None if path is None else _content(Path(path)) for name, path in paths.items()}


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:  # the stream that needs it says why
        return None
