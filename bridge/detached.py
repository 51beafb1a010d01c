"""A call in a thread of its own, which the end of the process does not wait for."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def detached(call: Callable[[], T], name: str) -> Future[T]:
    """Begin a call; the threads of `concurrent.futures` would hold up the end of the process.

    Args:
        call: What to call.
        name: The thread's name.

    Returns:
        What it will return, or raise: every error, also one that ends a process.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the answer is taken
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer
