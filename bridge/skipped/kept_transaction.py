"""A skipped transaction is kept as one spool file: its messages as they came, and how they were to be read then.

Beside the messages, which have the definitions of their tables, the file has what a replay cannot ask the server for
later: to which table each definition's rows went, under which key and column list; which tables a TRUNCATE emptied; and
what each row has become by the row filters. So the transaction is decoded again as the stream does it. A transaction
that cannot be replayed has the reason instead.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.batch.routes import Followed, Routes, Subscribed, Then, name_of
from pgbridge.bridge.effects.events import TRUNCATE
from pgbridge.bridge.evolution.alterations import AddColumn, RenameColumn, fills
from pgbridge.bridge.publication.shape import Mask, Shape, masks_of
from pgbridge.bridge.runtime import errors, process
from pgbridge.bridge.targets.target import Mode, Target
from pgbridge.bridge.track.spool import SpoolFile
from pgbridge.protocol.bulk.message_array import ChunkedMessages
from pgbridge.protocol.codec import messages, pgoutput
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.stream.transactions import Item, Transaction, TransactionRun

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from pgbridge.bridge.batch.batch import Batch
    from pgbridge.bridge.catalog.catalog_rows import RelRow

    Name = tuple[str, str]

FILE: Final = "transaction"


class TableThen(NamedTuple):
    """A table that the transaction changed, as it was subscribed then; what `Subscribed` has, too, is as there.

    Attributes:
        relid: The published table's oid then; None if it was not known.
        filtered: Whether row filters left rows out, or a copy that had some of them already, by ranges of its key.
        masked: The columns whose values are texts, because they are masked.
        names: The names of columns in the Delta table that are others than the published columns'.
        shape: What the masks were, as `Shape.description`; "" if that was not kept.
        lsn: Where it had joined (`RelRow.lsn`); 0 if that was not kept. A later copy has another one.
    """

    namespace: str
    table: str
    relid: int | None
    mode: Mode
    actions: list[str]
    primary_key: list[str]
    columns: list[str] | None
    cut_identity: list[str]
    within_partition: bool
    filtered: bool
    masked: Sequence[str] = ()
    names: Mapping[str, str] = MappingProxyType({})
    lsn: int = INVALID
    shape: str = ""

    @classmethod
    def of(cls, table: Subscribed, finish_lsn: Lsn, rels: Mapping[Name, RelRow]) -> TableThen:
        """The table as it is subscribed; it takes no TRUNCATE that its copy has already."""
        copied, name = table.lsn > finish_lsn, (table.target.namespace, table.target.name)
        rel = rels.get(name)
        return cls(
            *name,
            rel.relid if rel is not None else None,
            table.target.mode,
            sorted(table.actions - {"truncate"} if copied else table.actions),
            list(table.primary_key),
            None if table.columns is None else sorted(table.columns),
            sorted(table.cut_identity),
            table.within_partition,
            bool(table.filters or table.server_filters or table.cut),
            sorted(name for name in table.shape.masks if table.shape.mask(name) is not None),
            dict(table.shape.names),
            rel.lsn if rel is not None else INVALID,
            table.shape.description,
        )

    @property
    def name(self) -> Name:
        """(namespace, name) of the published table."""
        return self.namespace, self.table

    def subscribed(self, target: Target | None, then: Then | None = None) -> Subscribed:
        """The table for a target as it is now; one that takes nothing for None."""
        return Subscribed(
            target or Target(*self.name, "", (), self.mode),
            INVALID,
            tuple(self.primary_key),
            frozenset(self.actions if target is not None else ()),
            None if self.columns is None else frozenset(self.columns),
            cut_identity=frozenset(self.cut_identity),
            within_partition=self.within_partition,
            then=then,
            # the messages have masked values already
            shape=Shape(dict.fromkeys(self.masked, Mask("null")), self.names),
        )


@dataclass(frozen=True, slots=True)
class KeptTransaction:
    """What is kept of a skipped transaction.

    Attributes:
        origin: Delta's application id of the subscription's commits (`SubscriptionRow.txn_app_id`): the server, the
            subscription and its incarnation.
        refused: Why it cannot be replayed; None if it can be.
        followed: The table that the rows under each definition went to, and the columns that the transaction has added.
        emptied: The tables that each TRUNCATE was routed to.
    """

    transaction: Transaction
    origin: str
    refused: str | None
    followed: dict[messages.Relation, tuple[TableThen, tuple[AddColumn, ...]]]
    emptied: list[list[TableThen]]

    @property
    def file(self) -> SpoolFile:
        """The file with its messages."""
        assert isinstance(self.transaction.spooled, SpoolFile)  # noqa: S101 - `read` has it from there
        return self.transaction.spooled

    def masked_otherwise(self, table: Name, shape: Shape) -> str | None:
        """A column of a table that is masked by now, and whose values are not, or otherwise; None if there is none."""
        columns = (
            column.name
            for relation, (then, _) in self.followed.items()
            if then.name == table
            for column in relation.columns
        )
        then = self.tables[table]
        now = masks_of(shape.description)
        was = masks_of(then.shape) if then.shape else {name: now.get(name, "") for name in then.masked}
        return next((name for name in columns if name in now and was.get(name) != now[name]), None)

    @property
    def tables(self) -> dict[Name, TableThen]:
        """The tables that it changed, by (namespace, name)."""
        emptied = [table for tables in self.emptied for table in tables if "truncate" in table.actions]
        return {table.name: table for table in (*emptied, *(table for table, _ in self.followed.values()))}


class KeptRoutes(Routes):
    """Routes the changes of a skipped transaction as they were routed then, to targets as they are now.

    Changes of tables that are not among `targets` are left out.
    """

    def __init__(self, kept: KeptTransaction, targets: Mapping[Name, Target]) -> None:
        super().__init__({name: Subscribed(target, INVALID) for name, target in targets.items()})
        operations = kept.file.operations
        self._by_definition = {
            relation: table.subscribed(targets[table.name], Then(operations if table.filtered else None, added))
            for relation, (table, added) in kept.followed.items()
            if table.name in targets
        }
        self._emptied = iter(
            [[table.subscribed(targets.get(table.name)) for table in tables] for tables in kept.emptied]
        )

    def route(self, relation: messages.Relation) -> Subscribed | None:
        """As `Routes.route`."""
        return self._by_definition.get(relation)

    def truncated(self, relations: Sequence[messages.Relation]) -> list[Subscribed]:
        """As `Routes.truncated`: of the next TRUNCATE."""
        del relations
        return next(self._emptied)


def folder_of(skipped: Path, subscription: str, finish_lsn: str) -> Path:
    """The folder of a skipped transaction; the LSN's slash becomes a hyphen."""
    return skipped / finish_lsn.replace("/", "-") / subscription


def write(
    batch: Batch,
    skipped: Path,
    subscription: str,
    *,
    origin: str,
    rels: Mapping[Name, RelRow],
) -> Path:
    """Write a transaction to its file, in place of that of an earlier attempt.

    Args:
        batch: The transaction alone.
        skipped: Where skipped transactions are kept.
        origin: As in `KeptTransaction`.
        rels: The subscription's tables.

    Returns:
        The transaction's folder, which is durable.

    Raises:
        StateError: The file system reports an error.
    """
    path = folder_of(skipped, subscription, str(batch.finish_lsn))
    transaction = _copy_of(batch.items[0], batch.relations_before)
    try:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700, parents=True)  # it has rows
        file = SpoolFile(path / FILE)
        if isinstance(spooled := transaction.spooled, SpoolFile):
            shutil.copyfile(spooled.path, file.path)
            file.rows, file.relation_ids = spooled.rows, {*spooled.relation_ids, *_ids(transaction.relations)}
        file.noted, file.operations = _noted(batch, origin, rels)
        file.keep(transaction)
        for folder in (path, path.parent, path.parent.parent):
            process.fsync(folder)
    except OSError as error:
        raise errors.StateError(f"cannot write the skipped transaction to {path}: {error}", retry=True) from error
    return path


def read(folder: Path) -> KeptTransaction:
    """Read what was kept of a skipped transaction.

    Raises:
        SkipError: An earlier version of pgbridge has kept it, in another form.
        StateError: The file is damaged, or cannot be read.
    """
    if not (folder / FILE).exists():
        raise errors.SkipError(
            f"{folder} has no file {FILE}: an earlier version of pgbridge has kept the transaction, in another form",
            hint="its Parquet files show the changes; apply them by hand in Spark, or copy the tables again",
        )
    transaction = SpoolFile.load(folder / FILE)
    assert isinstance(transaction.spooled, SpoolFile)  # noqa: S101 - as `load` makes it
    noted = transaction.spooled.noted
    return KeptTransaction(
        transaction,
        noted["origin"],
        noted["refused"],
        {
            _relation_of(definition): (TableThen(*table), _added_of(added))
            for definition, table, added in noted["followed"]
        },
        [[TableThen(*table) for table in tables] for tables in noted["emptied"]],
    )


def _copy_of(item: Item, before: Sequence[messages.Relation]) -> Transaction:
    """The transaction, whose messages can be taken, with the definitions that were announced before it."""
    rows = ChunkedMessages()
    rows.extend(item.rows if isinstance(item, TransactionRun) else item.rows.part())
    if isinstance(item, Transaction):
        own = _ids(item.relations)
        relations = (*(relation for relation in before if relation.relation_id not in own), *item.relations)
        return replace(item, rows=rows, events=list(item.events), relations=relations)
    xid, commit_lsn, end_lsn = int(item.xids[0]), Lsn(int(item.commit_lsns[0])), Lsn(int(item.end_lsns[0]))
    return Transaction(xid, commit_lsn, int(item.commit_times_us[0]), end_lsn, rows, relations=tuple(before))


def _ids(relations: Sequence[messages.Relation]) -> set[int]:
    return {relation.relation_id for relation in relations}


def _noted(batch: Batch, origin: str, rels: Mapping[Name, RelRow]) -> tuple[dict[str, Any], np.ndarray | None]:
    """What is kept beside the messages: notes, and what each row has become by the row filters."""

    def then(table: Subscribed) -> TableThen:
        return TableThen.of(table, batch.finish_lsn, rels)

    refused, followed = _refusal(batch), list[tuple[str, TableThen, str]]()
    for entries in batch.followed.values():
        by_definition: dict[str, list[Followed]] = {}
        for entry in entries:
            by_definition.setdefault(pgoutput.encode(entry.relation).hex(), []).append(entry)
        for definition, same in by_definition.items():
            tables = [then(entry.subscribed) for entry in same if entry.subscribed is not None]
            if not tables:
                continue
            first = tables[0]
            if refused is None and (len(tables) < len(same) or any(table != first for table in tables)):
                name = ".".join(first.name)
                refused = f'rows of one definition have gone to several tables, or to none, as of "{name}"'
            followed.append((definition, first, _added_text(same)))
    filtered = {table.name for _, table, _ in followed if table.filtered}
    operations = _operations(batch, filtered) if refused is None and filtered else None
    emptied = [[then(table) for table in tables] for tables in batch.emptied]
    return {"origin": origin, "refused": refused, "followed": followed, "emptied": emptied}, operations


def _refusal(batch: Batch) -> str | None:
    """Why the transaction cannot be replayed; None if it can be."""
    if batch.error is not None:
        return f"it could not be decoded: {batch.error.message}"
    for entry in (entry for entries in batch.followed.values() for entry in entries):
        if any(isinstance(alteration, RenameColumn) for alteration in entry.alterations):
            # what is read again is read by the columns' names of now
            return f'it renames a column of table "{".".join(name_of(entry.relation))}", or puts another in its place'
    for changes in batch.tables:
        if changes.target.mode == "handler":
            return "a function gets the changes, which is not called out of turn"
        if changes.target.versioned:
            name = changes.target.qualified_name
            return f'the rows of table "{name}" have versions, and those of later transactions are there already'
    return None


def _operations(batch: Batch, filtered: Collection[Name]) -> np.ndarray:
    """What each row of tables that left rows out has become: the operation that is applied, 0 for none."""
    operations = np.zeros(batch.rows, np.uint8)
    for changes in batch.tables:
        if (changes.target.namespace, changes.target.name) not in filtered:
            continue
        rows = changes.changes.select(["seq", "op"])
        rows = rows.filter(pc.not_equal(rows["op"], TRUNCATE))
        operations[rows["seq"].to_numpy()] = rows["op"].to_numpy()
    return operations


def _relation_of(text: str) -> messages.Relation:
    relation = pgoutput.decode(bytes.fromhex(text))
    assert isinstance(relation, messages.Relation)  # noqa: S101 - as `write` has written it
    return relation


def _added_text(entries: Sequence[Followed]) -> str:
    """The constants of columns that the transaction has added, as Arrow has them."""
    values = fills([alteration for entry in entries for alteration in entry.alterations])
    table = pa.table({name: pa.array([value.as_py()], value.type) for name, value in values.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes().hex() if values else ""


def _added_of(text: str) -> tuple[AddColumn, ...]:
    if not text:
        return ()
    table = pa.ipc.open_stream(bytes.fromhex(text)).read_all()
    return tuple(AddColumn(name, table[name].type, table[name][0]) for name in table.column_names)
