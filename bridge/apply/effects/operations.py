"""The values of `op` and `old` in a table of changes: the operation, and the kind of the old tuple. pgoutput's tags."""

from __future__ import annotations

from typing import Final

INSERT, UPDATE, DELETE = b"IUD"
TRUNCATE = ord("T")
"""Only where every change is kept; else a TRUNCATE voids the changes before it."""
COMMANDS: Final = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE", TRUNCATE: "TRUNCATE"}
"""The operations as PostgreSQL's errors name them."""
NO_OLD, KEY_TUPLE, OLD_TUPLE = 0, ord("K"), ord("O")
