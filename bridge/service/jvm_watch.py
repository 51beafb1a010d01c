"""Kills a JVM that does not answer: nothing else would ever end what waits for it.

It may be stopped (SIGSTOP), collect garbage without an end, or wait for a disk that is gone. Its death is then handled
like every other one (see `bridge.service.daemon`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from bridge.runtime.threads import Closing, Latest
from bridge.spark import connect, session

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

_TURN_S: Final = 5.0
_PATIENCE_S: Final = 120.0
"""A collection of a heap of many gigabytes takes some seconds, a machine that swaps a minute. It is counted in turns,
so that a machine which was asleep is not taken for a JVM that is."""


class JvmWatch(Closing):
    """Asks the JVM every few seconds, as long as it is open. A Spark Connect server is not ours to kill.

    Args:
        log: Is told why it is killed.
        ask: Returns something if the JVM answers, and None if it is ending; it may hang.
        patience_s: How long an answer may take.
        turn_s: How long to wait before it is asked again.
    """

    def __init__(
        self,
        log: FilteringBoundLogger,
        *,
        ask: Callable[[], object | None] = session.heap,
        patience_s: float = _PATIENCE_S,
        turn_s: float = _TURN_S,
    ) -> None:
        self._log, self._patience_s, self._turn_s = log, patience_s, turn_s
        self._answers = 0
        self._latest = Latest(lambda: self._count(ask()), interval_s=turn_s)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jvm watch", daemon=True)
        if not connect.is_used():
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
            silent_s = 0.0 if self._answers != answers or session.died() is not None else silent_s + self._turn_s
            answers = self._answers
            if silent_s >= self._patience_s:
                self._log.error("Spark's JVM does not answer; it is killed, and started again", silent_s=silent_s)
                session.kill()
                return
