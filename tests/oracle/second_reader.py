"""Delta tables as readers have them that share no code with Spark: delta-rs, and DuckDB, by Delta's Rust kernel.

delta-rs reads tables whose protocol asks nothing of a reader; DuckDB those with deletion vectors and column mapping.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import duckdb
import duckdb_extension_delta
import pyarrow as pa
from deltalake import DeltaTable

_KERNEL_READS: Final = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"}
)
"""Features that DuckDB's reader has; a VARIANT, for one, it has not."""

_EXTENSION: Final = next(Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension"))
_local: Final = threading.local()


def needs_nothing(path: str) -> bool:
    """Whether the protocol of the table at a path asks nothing of a reader."""
    return bool(DeltaTable(path).protocol().min_reader_version == 1)


def by_delta_rs(path: str) -> pa.Table:
    """A table's rows, as delta-rs has them, if the table needs nothing."""
    return pa.table(DeltaTable(path).to_pyarrow_table())


def by_duckdb(path: str) -> pa.Table | None:
    """A table's rows, as DuckDB has them; None if it lacks a feature of the table."""
    protocol = DeltaTable(path).protocol()
    if not {*(protocol.reader_features or ())} <= _KERNEL_READS:
        return None
    if not hasattr(_local, "connection"):
        _local.connection = duckdb.connect()
        _local.connection.execute(f"LOAD '{_EXTENSION}'")
        _local.connection.execute("SET TimeZone = 'UTC'")
    return _local.connection.execute("SELECT * FROM delta_scan(?)", [path]).to_arrow_table()
