"""What stands for clocks and threads: time passes when somebody looks, and tasks are done one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from random import Random


class VirtualClock:
    """The time, which passes when somebody looks or sleeps."""

    now_s = 1e9

    def __call__(self) -> float:
        """Return it, in seconds."""
        self.now_s += 1e-3
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        """Have time pass."""
        self.now_s += duration_s


class Task:
    """What a thread would do: it is done once somebody waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._is_done = call, False
        self._value: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Do it, unless it is done; a kill ends what waits, too."""
        if not self._is_done:
            self._is_done = True
            try:
                self._value = self._call()
            except Exception as error:  # noqa: BLE001 - as a future keeps it
                self._error = error

    def exception(self) -> Exception | None:
        """The error that ended it."""
        self.run()
        return self._error

    def result(self) -> Any:
        """What it returned."""
        if (error := self.exception()) is not None:
            raise error
        return self._value


class Pool:
    """A pool of threads without threads: tasks are done one after the other, in an order of chance."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._tasks: list[Task] = []

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Task:
        """Plan a task."""
        self._tasks.append(task := Task(lambda: call(*arguments)))
        return task

    def map(self, call: Callable[[Any], Any], arguments: Iterable[Any]) -> Iterator[Any]:
        """What it returns for each, in their order."""
        tasks = [self.submit(call, argument) for argument in arguments]
        self.wait(tasks)
        return (task.result() for task in tasks)

    def wait(self, tasks: list[Task]) -> None:
        """Have tasks done."""
        for task in self._chance.sample(tasks, len(tasks)):
            task.run()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.wait(self._tasks)
