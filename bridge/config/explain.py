"""Turns pydantic's errors, which speak of Python's types, into messages in the words of the configuration file."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import ErrorDetails

_MAX_LENGTH = 60

MOVED = {
    "adopt": "target.adopt",
    "batch_max_age_s": "batch.max_age_s",
    "batch_max_bytes": "batch.max_bytes",
    "batch_max_rows": "batch.max_rows",
    "catalog_check_s": "workers.catalog_check_s",
    "commit_interval_s": "batch.commit_interval_s",
    "filter_connection": "filter_server",
    "geometry": "target.geometry",
    "jsonb": "target.jsonb",
    "maintenance": "target.maintenance",
    "max_sync_workers": "workers.max_sync_workers",
    "retry_max_s": "workers.retry_max_s",
    "untranslatable_filters": "filter_server",
    "vacuum_retention_h": "target.vacuum_retention_h",
    "vector": "target.vector",
    "wal_receiver_timeout_s": "workers.wal_receiver_timeout_s",
    "warn_retained_bytes": "alerts.retained_bytes",
    "warn_slot_left_s": "alerts.slot_left_s",
}
"""A key that `[subscription.NAME]` had, or may be thought to have -> the table within it, and the key's name there."""

_TYPES = {
    "bool_type": "a boolean (true or false)",
    "dict_type": "a table",
    "float_type": "a number",
    "int_type": "an integer",
    "model_type": "a table",
    "path_type": "a string",
    "string_type": "a string",
}
"""pydantic's name of a type error -> what TOML calls the type."""


def explain(error: ErrorDetails, location: Sequence[str], known_keys: Sequence[str]) -> str:
    """Return one line for one error: the key, its value, and what is allowed.

    Args:
        error: The error.
        location: The tables of the file that lead to the key, and the key.
        known_keys: All keys that the last of these tables may have.
    """
    key = ".".join(location)
    match error["type"]:
        case "missing" | "too_short" if location == ["subscription"]:
            fault = f"at least one table [{key}.NAME] is required"
        case "missing":
            fault = "this key is required"
        case "extra_forbidden" if MOVED.get(location[-1], "").split(".")[0] in known_keys:
            fault = f"unknown key; {_moved(location)}"
        case "extra_forbidden":
            close = difflib.get_close_matches(location[-1], known_keys, 1)
            advice = f'did you mean "{close[0]}"?' if close else f"known keys: {', '.join(known_keys)}"
            fault = f"unknown key; {advice}"
        case "literal_error":
            allowed = str(error["ctx"]["expected"]).replace("'", '"') if "ctx" in error else ""
            fault = f"{toml(error['input'])} is not allowed; allowed values: {allowed}"
        case "value_error":
            fault = error["msg"].removeprefix("Value error, ")
        case name if name in _TYPES:
            is_table = _TYPES[name] == "a table"
            fault = f"must be {_TYPES[name]}, not {_harmless(error['input'], table=is_table)}"
            if is_table and location[0] == "subscription" and not location[2:]:
                fault += "; each subscription is a table [subscription.NAME]"
        case _:
            fault = f"{error['msg'].replace('Input should', 'must')}, not {toml(error['input'])}"
    return f"{key}: {fault}"


def _moved(location: Sequence[str]) -> str:
    """Say where a key of a subscription stands now: in the file, or among the arguments of a Python program."""
    old = location[-1]
    table, _, key = MOVED[old].rpartition(".")
    if not table:
        return (
            f'write {key} = "publisher", or {key} = the connection string of another server, in place of '
            "untranslatable_filters and filter_connection; without the key such filters are refused"
        )
    if len(location) == 1:
        return f'it is now {key} in {table}: {table}={{"{key}": …}}'
    return f"it is now {key} in the table [{'.'.join([*location[:-1], table])}]"


def _harmless(value: object, *, table: bool) -> str:
    """Return a value of a wrong type; only what it is if it may be a connection string, or be around one.

    Args:
        value: The value.
        table: Whether it should have been a table: then a string is that of a key whose table's name is missing.
    """
    match value:
        case dict():
            return "a table"
        case list() if value:
            return "an array"
        case str() if table:
            return "a string"
        case _:
            return toml(value)


def toml(value: object) -> str:
    """Return a value as the file has it, shortened to 60 characters."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 3] + "…"
