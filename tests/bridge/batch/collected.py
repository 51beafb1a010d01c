"""Changes for the tests of collectors, and a stage in Arrow."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bridge.batch.batch import Staged, TableChanges, renamed
from bridge.batch.collector import ChangeCollector
from bridge.batch.routes import Subscribed
from bridge.effects.events import INSERT, NO_OLD, OLD_TUPLE
from bridge.targets.target import Target, TargetColumn
from protocol.lsn import INVALID
from protocol.values.types import resolve

TARGET = Target("public", "t", "/lake/public/t", ())


def columns(*names: str) -> tuple[TargetColumn, ...]:
    return tuple(TargetColumn(name, resolve(23, -1, {})) for name in names)


def table(seq: int, op: int = INSERT, **values) -> pa.Table:
    """One change."""
    row = {"seq": seq, "op": op, "old": NO_OLD, **values}
    types = {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16()}
    kinds = {name: pa.bool_() if name.startswith("unchanged") else pa.int32() for name in values}
    return pa.Table.from_pylist([row], schema=pa.schema(types | kinds))


def collector(definition: tuple[TargetColumn, ...], *tables: pa.Table) -> ChangeCollector:
    made = ChangeCollector(Subscribed(TARGET, INVALID, ()))
    made.columns, made.key = definition, (0,)
    for item in tables:
        made.add(item)
    return made


class ArrowStage:
    """Does in Arrow what `SparkStage` does."""

    def __init__(self) -> None:
        self.put_rows: list[int] = []

    def put(self, table: pa.Table) -> pa.Table:
        self.put_rows.append(len(table))
        return table

    def union(self, pieces) -> pa.Table:
        tables = [renamed(table, names) for table, names in pieces]
        together = pa.concat_tables(tables, promote_options="default")
        marks = [name for name in together.column_names if name.startswith("unchanged_")]
        for name in marks:
            values = pc.fill_null(together[name], fill_value=False)
            together = together.set_column(together.column_names.index(name), name, values)
        return together


def changed(seq: int, op: int, **values: int | None) -> pa.Table:
    """One change with the old values that identify its row."""
    old = NO_OLD if op == INSERT else OLD_TUPLE
    row = {"seq": seq, "op": op, "old": old, **values}
    types = {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16()} | dict.fromkeys(values, pa.int32())
    return pa.Table.from_pylist([row], schema=pa.schema(types))


def rows_of(part: TableChanges) -> pa.Table:
    """The changes of a part, in memory."""
    assert not isinstance(part.changes, Staged)
    return part.changes
