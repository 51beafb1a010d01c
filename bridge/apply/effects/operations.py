"""What a change is, and which old tuple it has: the columns `op` and `old` of a table of changes.

The values are pgoutput's tags.
"""

from __future__ import annotations

from typing import Final

INSERT, UPDATE, DELETE = b"IUD"
COMMANDS: Final = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}
"""Message types, as PostgreSQL's errors name them."""
NO_OLD, KEY_TUPLE, OLD_TUPLE = 0, ord("K"), ord("O")
