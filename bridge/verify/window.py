"""Reads from the stream which keys change between the snapshot's LSN and the batch's, and how their rows end.

The comparison is of a snapshot of the source, at one LSN, and of Delta after a batch, at another. Rows whose keys are
touched in between are compared by what the stream says of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pgbridge.bridge.runtime.errors import VerifyError
from pgbridge.protocol.codec import messages as m, pgoutput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pgbridge.protocol.lsn import Lsn

    _Row = m.Insert | m.Update | m.Delete
    _Change = tuple[_Row | m.Truncate, list[m.Relation]]

Texts = tuple["str | None", ...]
"""Values in text form, None for NULL."""

MOST_BYTES: Final = 2 << 30
"""What a window of a subscription that has no daemon may take of memory: two million keys."""

_CHANGE_BYTES: Final = 1 << 10
"""What a change takes, and later its key with its hash, on its way to the server and to Spark."""


@dataclass(slots=True)
class TableWindow:
    """The changes of a table within the window.

    Attributes:
        columns: The names of the columns in the stream, in its order; empty before the first change.
        rows: For each touched key, by its texts: the row that it ends with, None if it has none. A value that the
            stream left out, as unchanged, is `UNCHANGED`. None of each if only keys count.
        base: Where an unchanged value is: the key that the row had at the snapshot.
        inserted: Rows of a table without keys that came.
        removed: Rows of such a table that went.
        unclear: Why the table cannot be compared this time; empty if it can.
    """

    columns: tuple[str, ...] = ()
    rows: dict[Texts, list[object] | None] = field(default_factory=dict)
    base: dict[Texts, Texts] = field(default_factory=dict)
    inserted: list[Texts] = field(default_factory=list)
    removed: list[Texts] = field(default_factory=list)
    unclear: str = ""


UNCHANGED = object()
"""Stands in a row of a window for a value that the stream left out, because it is large and has not changed."""


@dataclass(slots=True)
class Window:
    """Reads messages into the tables' windows.

    Attributes:
        keys: By (namespace, name) of each verified table, its key's columns; empty for a table without keys.
        after_lsn: Transactions that end at or before it do not count.
        end_lsn: Transactions that end after it do not count.
        only_keys: Of tables with keys, only these count; values are not kept.
        most_bytes: How much memory it may take, about.
        tables: What happened to the tables that were touched.
        others: Tables that are not verified were touched, too, or will be just after.
        unclear: Why no table can be compared this time; empty if they can.
    """

    keys: Mapping[tuple[str, str], tuple[str, ...]]
    after_lsn: Lsn
    end_lsn: Lsn
    only_keys: bool = False
    most_bytes: float = math.inf
    tables: dict[tuple[str, str], TableWindow] = field(default_factory=dict)
    others: bool = False
    unclear: str = ""
    _relations: dict[int, m.Relation] = field(default_factory=dict)
    _pending: list[_Change] = field(default_factory=list)
    _prepared: dict[str, list[_Change]] = field(default_factory=dict)  # by gid
    _bytes: int = 0

    def read(self, messages: Iterable[bytes]) -> None:
        """Read the stream's messages, in order.

        Raises:
            VerifyError: They take too much memory.
        """
        for data in messages:
            message = pgoutput.decode(data)
            match message:
                case m.Begin() | m.BeginPrepare():
                    self._pending = []
                case m.Commit():
                    self._commit(self._pending, message.end_lsn)
                    self._pending = []
                case m.Prepare():  # a slot with two-phase commit has what was prepared before the window already sent
                    self._prepared[message.gid], self._pending = self._pending, []
                case m.RollbackPrepared():
                    self._prepared.pop(message.gid, None)
                case m.CommitPrepared():
                    changes = self._prepared.pop(message.gid, None)
                    if changes is not None:
                        self._commit(changes, message.end_lsn)
                    elif self.after_lsn < message.end_lsn <= self.end_lsn:
                        self.unclear = f'the transaction prepared as "{message.gid}" is not applied yet'
                case _:
                    self._keep(message, len(data))

    def _keep(self, message: m.Message, size_bytes: int) -> None:
        match message:
            case m.Relation():  # it also counts for what follows a transaction that is rolled back
                self._relations[message.relation_id] = message
            case m.Truncate():
                self._pending.append((message, [self._relations[number] for number in message.relation_ids]))
            case m.Insert() | m.Update() | m.Delete():
                relation = self._relations[message.relation_id]
                key = self.keys.get((relation.namespace, relation.name))
                if key is not None:
                    if self.only_keys and key:
                        message, size_bytes = _of_key(relation, key, message), 0
                    self._count(_CHANGE_BYTES + size_bytes)
                    self._pending.append((message, [relation]))
                else:  # not kept: a transaction may be large
                    self.others = True
            case _:
                pass

    def _count(self, more_bytes: int) -> None:
        self._bytes += more_bytes
        if self._bytes > self.most_bytes:
            raise VerifyError(
                "too many rows have changed since Delta's last batch",
                hint="run the daemon until it has caught up, and verify again; or verify fewer tables, by --table",
            )

    def _commit(self, changes: Iterable[_Change], end_lsn: Lsn) -> None:
        if not self.after_lsn < end_lsn <= self.end_lsn:
            return
        for message, relations in changes:
            for relation in relations:
                table = self._table(relation)
                if table is None or table.unclear:
                    continue
                if isinstance(message, m.Truncate):
                    table.unclear = "it was truncated meanwhile"
                else:
                    self._change(relation, table, message)

    def _table(self, relation: m.Relation) -> TableWindow | None:
        name = relation.namespace, relation.name
        if name not in self.keys:
            self.others = True
            return None
        table = self.tables.setdefault(name, TableWindow())
        columns = tuple(column.name for column in relation.columns)
        if table.columns and table.columns != columns:
            table.unclear = "its columns changed meanwhile"
        table.columns = columns
        if not set(self.keys[name]) <= set(columns):
            table.unclear = "the stream lacks columns of its key"
        return table

    def _change(self, relation: m.Relation, table: TableWindow, message: m.Insert | m.Update | m.Delete) -> None:
        key = [table.columns.index(name) for name in self.keys[relation.namespace, relation.name]]
        new = None if isinstance(message, m.Delete) else _texts(message.new_tuple)
        whole, part = (None, None) if isinstance(message, m.Insert) else (message.old_tuple, message.key_tuple)
        old = None if whole is part is None else _texts(whole if whole is not None else part or ())
        if not key:
            self._bag(table, message, None if whole is None else old, new)
            return
        if new is not None and old is not None:
            known = range(len(new)) if whole is not None else key
            new = [old[i] if value is UNCHANGED and i in known else value for i, value in enumerate(new)]
        before = _key(old if old is not None else new, key)
        after = None if new is None else _key(new, key)
        if before is None or (new is not None and after is None):
            table.unclear = "the stream left out a key's value"
            return
        if self.only_keys:
            table.rows.update(dict.fromkeys(texts for texts in (before, after) if texts is not None))
            return
        if isinstance(message, m.Insert) or after is None:
            if after is None:
                table.rows[before], _ = None, table.base.pop(before, None)
            else:
                table.rows[after], _ = new, table.base.pop(after, None)
            return
        assert new is not None  # noqa: S101 - there is a key after it
        earlier = table.rows.get(before)
        base = table.base.get(before, before) if earlier is None or before in table.base else None
        if earlier is not None:
            new = [earlier[i] if value is UNCHANGED else value for i, value in enumerate(new)]
        if before != after:
            table.rows[before] = None
            table.base.pop(before, None)
        table.rows[after] = new
        if base is not None and UNCHANGED in new:
            table.base[after] = base
        else:
            table.base.pop(after, None)

    @staticmethod
    def _bag(
        table: TableWindow, message: m.Insert | m.Update | m.Delete, old: list[object] | None, new: list[object] | None
    ) -> None:
        if not isinstance(message, m.Insert) and old is None:
            table.unclear = "the stream lacks old rows of a table without keys"
            return
        if new is not None and old is not None:
            new = [was if value is UNCHANGED else value for value, was in zip(new, old, strict=True)]
        for row, rows in ((old, table.removed), (new, table.inserted)):
            if row is not None:
                if UNCHANGED in row:
                    table.unclear = "the stream left out a value"
                    return
                rows.append(tuple(value if isinstance(value, str) else None for value in row))


_LEFT_OUT: Final = m.VALUES_WITHOUT_DATA[m.ValueKind.UNCHANGED_TOAST.value[0]]


def _of_key(relation: m.Relation, key: Collection[str], message: _Row) -> _Row:
    """Return a change without values that are not of the key: a transaction may be large."""
    kept = [column.name in key for column in relation.columns]
    tuples: dict[str, Any] = {}
    for name in ("new_tuple", "old_tuple", "key_tuple"):
        if (values := getattr(message, name, None)) is not None:
            tuples[name] = tuple(value if of_key else _LEFT_OUT for value, of_key in zip(values, kept, strict=True))
    return replace(message, **tuples)


def _texts(values: m.Tuple) -> list[object]:
    texts: list[object] = []
    for value in values:
        match value.kind:
            case m.ValueKind.NULL:
                texts.append(None)
            case m.ValueKind.UNCHANGED_TOAST:
                texts.append(UNCHANGED)
            case _:
                texts.append(value.data.decode())
    return texts


def _key(row: list[object] | None, key: list[int]) -> Texts | None:
    """A row's key; None if a value was left out."""
    if row is None or any(row[i] is UNCHANGED for i in key):
        return None
    return tuple(value if isinstance(value, str) else None for value in (row[i] for i in key))
