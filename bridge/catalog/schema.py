"""The catalog's tables and triggers, and the migration of a file that an earlier version wrote (sql/state)."""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Final

from pgbridge import sql
from pgbridge.bridge.catalog import manifest
from pgbridge.bridge.runtime.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARTS: Final = re.split(r"^-- version (\d+).*$", sql.load("state/tables"), flags=re.MULTILINE)[1:]

STEPS: Final = {int(version): step for version, step in zip(_PARTS[::2], _PARTS[1::2], strict=True)}
"""What each version has added, by version; the first one is that of the first release."""

SCHEMA_VERSION: Final = max(STEPS)


def statements(script: str) -> Iterator[str]:
    """The statements of a script, each with the comments before it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def is_current(db: sqlite3.Connection) -> bool:
    """Whether the file has all tables of this version."""
    return bool(db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION)


def migrate(db: sqlite3.Connection) -> None:
    """Create the missing tables, within the caller's transaction.

    Raises:
        StateError: The file was written by a later version, or by one before the first release.
    """
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StateError(f"the state catalog was written by a later version of pgbridge (schema {version})")
    if 0 < version < min(STEPS):
        raise StateError(f"the state catalog was written before pgbridge 0.1.0 (schema {version})")
    if version == SCHEMA_VERSION:
        return
    made = "SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view') ORDER BY type"  # a view has triggers
    for kind, name in db.execute(made).fetchall():
        db.execute(f'DROP {kind} "{name}"')
    for since, step in STEPS.items():
        for statement in statements(step) if version < since else ():
            db.execute(statement)
    for statement in (*statements(sql.load("state/triggers")), *manifest.triggers()):
        db.execute(statement)
    db.execute("UPDATE manifest SET changed = changed + 1")  # this version may say more in it
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
