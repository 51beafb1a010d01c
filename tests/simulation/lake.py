"""Delta tables in memory: their commits, with transaction versions as Delta keeps them; and a session that writes.

An answer may be lost, of a commit that was made, or that is still to come. What is not flushed is lost with the power.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JNetworkError

from pgbridge.bridge.catalog.manifest import Manifest
from pgbridge.bridge.lake.log.commit_info import Commit
from pgbridge.bridge.lake.log.history import History
from pgbridge.bridge.lake.log.stamp import USER_METADATA
from pgbridge.bridge.recovery.manifest_log import Last

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    from pgbridge.bridge.catalog.manifest import Due

    Change = Callable[[tuple[int, ...]], Sequence[int]]

_APP_ID, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_RESTORE = re.compile(r"RESTORE TABLE delta\.`(.*)` TO VERSION AS OF (\d+)")


@dataclass(frozen=True)
class Version:
    """One version of a table: its commit's info, its rows, and the latest version of each application id."""

    info: dict[str, Any]
    rows: tuple[int, ...]
    versions: dict[str, int]

    def changed(self, rows: tuple[int, ...], before: tuple[int, ...], *, adds: bool) -> tuple[int, ...]:
        """Rows with what it has changed of those before, as its entry lists files: a copy all, also equal ones.

        What a RESTORE adds may be there. Unless it `adds`, the files are lost that it has written.
        """
        was, now = Counter(before), Counter(self.rows)
        mark = self.info.get("userMetadata", "")  # what keeps a late copy out is none
        kept = Counter() if '/copy"' in mark and "given_up" not in mark else was & now
        left, added = Counter(rows) - (was - kept), now - kept if adds else Counter()
        return tuple(sorted((left | added if self.info.get("operation") == "RESTORE" else left + added).elements()))


@dataclass
class MemoryLake:
    """Delta tables, by path.

    Attributes:
        flushed: How many versions of a table are on the disk.
        lost: Versions that are not, although later flushes succeed: the one that should have written them has failed.
        checkpoints: The versions of a table that have a checkpoint. It is on the disk if its version is.
        lost_in: The answer to the n-th commit from now on is lost; 0 for none.
        is_late: That commit is not made before it `arrives`.
        doubled_in: The n-th commit from now on is made twice, as by a task that is tried again; 0 for none.
    """

    tables: dict[str, list[Version]] = field(default_factory=dict)
    manifests: dict[tuple[str, str], str] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    flushed: dict[str, int] = field(default_factory=dict)
    lost: dict[str, set[int]] = field(default_factory=dict)
    checkpoints: dict[str, set[int]] = field(default_factory=dict)
    lost_in: int = 0
    is_late: bool = False
    doubled_in: int = 0
    _under_way: list[Callable[[], object]] = field(default_factory=list)

    def rows(self, path: str) -> list[int]:
        """A table's rows, sorted."""
        return sorted(self.tables[path][-1].rows) if path in self.tables else []

    def commit(
        self,
        path: str,
        change: Change,
        *,
        operation: str = "WRITE",
        app_id: str = "",
        version: int = 0,
        metadata: str = "",
        parameters: dict[str, str] | None = None,
    ) -> bool:
        """Commit, unless the table has the application id's version already; return whether it was committed."""
        log = self.tables.setdefault(path, [Version({"operation": "CREATE TABLE"}, (), {})])
        known = log[-1].versions
        if app_id and known.get(app_id, -1) >= version:
            return False
        info = {"operation": operation, "userMetadata": metadata, "operationParameters": parameters or {}}
        versions = {**known, **({app_id: version} if app_id else {})}
        log.append(Version(info, tuple(change(log[-1].rows)), versions))
        return True

    def restore(self, path: str, version: int, metadata: str = "") -> None:
        """RESTORE TABLE: a commit. The application ids' versions stay as they are, as in Delta."""
        rows = self.tables[path][version].rows
        self.commit(path, lambda _: rows, operation="RESTORE", metadata=metadata, parameters={"version": str(version)})

    def send(self, commit: Callable[[], object]) -> None:
        """Have a commit made by Spark, which may not answer."""
        self.lost_in -= 1
        self.doubled_in -= 1
        if self.doubled_in == 0:
            commit()
        answers = self.lost_in != 0
        if self.is_late and not answers:
            self._under_way.append(commit)
        else:
            commit()
        if not answers:
            raise Py4JNetworkError("Answer from Java side is empty")

    def arrive(self) -> None:
        """Have the commits made that nobody waits for any more."""
        while self._under_way:
            self._under_way.pop(0)()

    def flush(self, paths: Iterable[str]) -> None:
        """Have all versions of tables on the disk."""
        self.flushed |= {path: len(self.tables[path]) for path in paths if path in self.tables}

    def checkpoint(self, path: str) -> None:
        """Commit nothing, and have a checkpoint of that, if there is a table."""
        if path not in self.tables:
            return
        here = History(path, lambda latest: self.commits(path, latest)).standing
        mark = {"origin": "pgbridge/checkpoint", "given_up": True, "stands_on": here}
        self.commit(path, lambda rows: rows, metadata=json.dumps({"pgbridge": mark}))
        self.checkpoints.setdefault(path, set()).add(len(self.tables[path]) - 1)

    def fail_flush(self, paths: Iterable[str]) -> None:
        """Have what is not on the disk never get there: the kernel tells of it once, and writes it no more."""
        for path in paths:
            there = range(self.flushed.get(path, 0), len(self.tables.get(path, ())))
            self.lost.setdefault(path, set()).update(there)

    def cut_power(self, chance: Random) -> None:
        """Lose what is under way, and some of what is not on the disk: a table's last versions, or what one changed."""
        self.forget()
        for path, log in list(self.tables.items()):
            flushed, lost = self.flushed.get(path, 0), self.lost.get(path, set())
            doubtful = {*lost, *range(max(flushed, 1), len(log))} - {0}
            before = rows = log[0].rows
            for number, version in enumerate(log[1:], 1):
                here, before = before, version.rows
                info = version.info
                if number not in doubtful and number in self.checkpoints.get(path, ()):
                    rows = version.rows
                elif number not in lost:  # a power cut takes at most the files that it has written
                    rows = version.changed(rows, here, adds=number not in doubtful or chance.random() < 0.5)
                else:
                    info = {}
                log[number] = replace(version, rows=rows, info=info)
            self.lost.pop(path, None)
            self.shorten(path, chance.randint(flushed, len(log)))

    def forget(self) -> None:
        """End what is under way."""
        self._under_way.clear()

    def shorten(self, path: str, length: int) -> None:
        """Take a table's last versions away; without any it does not exist."""
        del self.tables[path][length:]
        for numbers in (self.lost, self.checkpoints):
            numbers[path] = {number for number in numbers.get(path, ()) if number < length}
        self.flushed[path] = min(self.flushed.get(path, 0), length)
        if not length:
            del self.tables[path]

    def commits(self, path: str, latest: int) -> list[Commit]:
        """The latest commits, the latest first."""
        log = list(enumerate(self.tables.get(path, ())))
        return [Commit.of_log(number, json.loads(json.dumps(version.info))) for number, version in log[::-1][:latest]]


class Manifests:
    """A warehouse's manifests: documents by origin and slot, the last one counts."""

    path = "memory/pgbridge/subscriptions"

    def __init__(self, lake: MemoryLake) -> None:
        self._documents = lake.manifests
        self._generations = lake.generations

    def append(self, _: Any, origin: str, slot_name: str, due: Due) -> Last:
        """Keep a document, unless the origin was claimed since."""
        if self._generations.get(origin, 0) <= due.generation:
            self._documents.pop((origin, slot_name), None)
            self._documents[origin, slot_name] = due.document
        return self.last(None, origin) or Last(0, slot_name)

    def claim(self, _: Any, origin: str, slot_name: str) -> int:
        """Begin another generation."""
        del slot_name
        self._generations[origin] = self._generations.get(origin, 0) + 1
        return self._generations[origin]

    def last(self, _: Any, origin: str) -> Last | None:
        """The last document's slot, and the generation as a number."""
        slots = [slot for of, slot in self._documents if of == origin]
        return Last(self._generations.get(origin, 0) << 32, slots[-1]) if slots else None

    def lock_of(self, _: str) -> Any:
        """No lock: appending takes no time."""
        return nullcontext()

    def latest(self, _: Any, origin: str, slot_name: str) -> Manifest | None:
        """The last document of a subscription."""
        document = self._documents.get((origin, slot_name))
        return None if document is None else Manifest.of(document)


class MemoryConf(dict[str, str]):
    """The settings of a session."""

    def set(self, key: str, value: str) -> None:
        """Set one."""
        self[key] = value

    def unset(self, key: str) -> None:
        """Unset one."""
        self.pop(key, None)


class MemorySession:
    """What stands for a Spark session: it knows settings and RESTORE, and commits rows with its present stamp."""

    def __init__(self, lake: MemoryLake) -> None:
        self.lake = lake
        self.conf = MemoryConf()
        self.sparkContext = SimpleNamespace(master="local[2]")

    def append(self, path: str, rows: Sequence[int]) -> None:
        """Append rows by one commit."""
        app_id, version = self.conf.get(_APP_ID, ""), int(self.conf.get(_VERSION, "0"))
        change, metadata = (lambda before: (*before, *rows)), self.conf.get(USER_METADATA, "")
        self.lake.send(lambda: self.lake.commit(path, change, app_id=app_id, version=version, metadata=metadata))

    def sql(self, statement: str) -> MemorySession:
        """Run a RESTORE."""
        match = _RESTORE.fullmatch(statement)
        assert match is not None, statement
        path, metadata = match[1], self.conf.get(USER_METADATA, "")
        seen = len(self.lake.tables[path])

        def restore() -> None:
            if len(self.lake.tables[path]) == seen:  # Delta commits it as the version after the one that it has read
                self.lake.restore(path, int(match[2]), metadata)

        self.lake.send(restore)
        return self

    def collect(self) -> list[Any]:
        """There is no result."""
        return []
