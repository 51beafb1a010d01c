"""Changes for the tests of collectors, and a place for those that memory shall not hold."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pgbridge.bridge.batch.collector import ChangeCollector
from pgbridge.bridge.batch.routes import Subscribed
from pgbridge.bridge.effects.divided import Spill
from pgbridge.bridge.effects.events import INSERT, NO_OLD, OLD_TUPLE
from pgbridge.bridge.targets.target import Target, TargetColumn
from pgbridge.protocol.lsn import INVALID
from pgbridge.protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def spill_in(folder: Path, memory_bytes: int = 1 << 20) -> Spill:
    """Writes to a folder; nothing has a name there once it is a table."""

    @contextmanager
    def scratch() -> Iterator[Path]:
        descriptor, name = tempfile.mkstemp(dir=folder)
        os.close(descriptor)
        yield Path(name)
        Path(name).unlink()

    return Spill(scratch, memory_bytes)


def changed(seq: int, op: int, **values: int | None) -> pa.Table:
    """One change with the old values that identify its row."""
    old = NO_OLD if op == INSERT else OLD_TUPLE
    row = {"seq": seq, "op": op, "old": old, **values}
    types = {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16()} | dict.fromkeys(values, pa.int32())
    return pa.Table.from_pylist([row], schema=pa.schema(types))
