"""Kills a JVM that does not answer: nothing else would ever end what waits for it.

It may be stopped (SIGSTOP), collect garbage without an end, or wait for a disk that is gone. Its death is then handled
like every other one (see `bridge.service.daemon`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from bridge.runtime.threads import Closing, Latest

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from bridge.spark.driver import Driver

_TURN_S: Final = 5.0
_PATIENCE_S: Final = 120.0
"""A collection of a heap of many gigabytes takes some seconds, a machine that swaps a minute. It is counted in turns,
so that a machine which was asleep is not taken for a JVM that is."""


class JvmWatch(Closing):
    """Asks the JVM every few seconds, as long as it is open. A Spark Connect server is not ours to kill.

    Args:
        log: Is told why it is killed.
        driver: Is asked for its heap, which may hang.
        patience_s: How long an answer may take.
        turn_s: How long to wait before it is asked again.
    """

    def __init__(
        self,
        log: FilteringBoundLogger,
        driver: Driver,
        *,
        patience_s: float = _PATIENCE_S,
        turn_s: float = _TURN_S,
    ) -> None:
        self._log, self._driver = log, driver
        self._patience_s, self._turn_s = patience_s, turn_s
        self._answers = 0
        self._latest = Latest(lambda: self._count(driver.heap()), interval_s=turn_s)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jvm watch", daemon=True)
        if driver.process is not None:
            self._latest.start()
            self._thread.start()

    def close(self) -> None:
        """Stop asking."""
        self._stop.set()
        self._latest.close()

    def _count(self, answer: object | None) -> object | None:
        self._answers += answer is not None
        return answer

    def _run(self) -> None:
        silent_s, answers = 0.0, 0
        while not self._stop.wait(self._turn_s):
            silent_s = 0.0 if self._answers != answers or self._driver.lost() is not None else silent_s + self._turn_s
            answers = self._answers
            if silent_s >= self._patience_s:
                self._log.error("Spark's JVM does not answer; it is killed, and started again", silent_s=silent_s)
                self._driver.kill()
                return
