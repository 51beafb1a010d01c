"""The tables that a stream of changes comes to, in plain Python, beside those of the server."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.oracle.workload import KEYS, TABLES


def replayed(changes):
    """Apply changes in order.

    Args:
        changes: Rows of a stream of all tables, as dictionaries.

    Returns:
        By table, its rows as tuples, counted.
    """
    tables: dict[str, dict[Any, Any]] = {table: {} for table in TABLES}
    for change in sorted(changes, key=lambda row: (row["commit_lsn"], row["ordinal"])):
        name = change["table"].removeprefix("public.")
        rows, images = tables[name], change[change["table"]]
        key = KEYS.get(name)
        if change["operation"] == "TRUNCATE":
            rows.clear()
            continue
        old, new = images["old"], images["new"]
        if key is None:
            assert change["operation"] == "INSERT"
            rows[len(rows)] = new
            continue
        before: dict[str, Any] = {}
        if change["operation"] != "INSERT":
            found = old or new
            before = rows.pop(tuple(found[column] for column in key))  # a KeyError is a change that was lost
        if new is not None:
            kept = {column: before[column] for column in images["unchanged"] or ()}
            place = tuple(new[column] for column in key)
            assert place not in rows, "a change came twice"
            rows[place] = {**new, **kept}
    return {name: Counter(tuple(row.values()) for row in rows.values()) for name, rows in tables.items()}


def served(query):
    """The same tables on the server; `query` runs SQL."""
    selects = dict.fromkeys(TABLES, "*")
    selects["labels"] = "code, active, colour, details::text"
    selects["events"] = "serial, happened_at, kind, amount::float8"  # Python has no float of 32 bits
    return {name: Counter(query(f"SELECT {columns} FROM public.{name}")) for name, columns in selects.items()}
