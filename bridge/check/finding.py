"""A check's finding: a pass, a warning or a failure, with its remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pgbridge.bridge.runtime.errors import BridgeError


class Level(StrEnum):
    """How much a finding matters."""

    PASS = "pass"  # noqa: S105 - no password
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a check.

    Attributes:
        subject: What was looked at, as the server's setting, the table or the file is named.
        level: How much it matters.
        message: What was found, one sentence.
        remedy: What to do about it; empty for a pass.
        statement: The SQL statement or shell command that does it; empty if there is none to copy.
    """

    subject: str
    level: Level
    message: str
    remedy: str = ""
    statement: str = ""


def passed(subject: str, message: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(subject, Level.PASS, message)


def warning(subject: str, message: str, *, remedy: str, statement: str = "") -> Finding:
    """Return a finding that pgbridge can work with, but an operator should know of."""
    return Finding(subject, Level.WARNING, message, remedy, statement)


def failure(subject: str, message: str, *, remedy: str, statement: str = "") -> Finding:
    """Return a finding that pgbridge cannot work with."""
    return Finding(subject, Level.FAILURE, message, remedy, statement)


def failed(subject: str, error: BridgeError) -> Finding:
    """Return the failure that `pgbridge run` would log as this error, in its words."""
    return Finding(subject, Level.FAILURE, error.message, error.hint)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 if all passed, 1 if there are warnings, 2 if something failed."""
    levels = {finding.level for finding in findings}
    return 2 if Level.FAILURE in levels else 1 if Level.WARNING in levels else 0


# --- Servers that a provider runs: nobody there can run ALTER SYSTEM --------------------------------------------------

_PAGE: Final = "docs/managed-servers.md"
_ALTER_SYSTEM: Final = re.compile(r"ALTER SYSTEM SET (\w+) = ('[^']*'|[^;\s]+);?")


@dataclass(frozen=True, slots=True)
class Provider:
    """Who runs a server.

    Attributes:
        name: As its users know it.
        setting: Where its users change a setting.
        wal_level: How they turn logical decoding on.
    """

    name: str
    setting: str
    wal_level: str

    def told(self, finding: Finding) -> Finding:
        """A finding with what can be done there, in place of ALTER SYSTEM."""
        wanted = _ALTER_SYSTEM.search(f"{finding.remedy} {finding.statement}")
        if wanted is None:
            return finding
        subject, value = wanted[1], wanted[2].strip("'")
        done = self.wal_level if subject == "wal_level" else f"set {subject} to {value} in {self.setting}"
        remedy = finding.remedy if finding.statement and not finding.remedy.startswith("run on") else ""
        here = f"on {self.name}, {done} ({_PAGE})"
        return replace(finding, remedy=f"{remedy}; {here}" if remedy else here, statement="")


_AMAZON: Final = "set rds.logical_replication to 1 in the parameter group, and restart the server"
_GOOGLE: Final = "set the flag cloudsql.logical_decoding to on; the server restarts"
_AZURE: Final = "set the server parameter wal_level to logical, and restart the server"

PROVIDERS: Final = {
    "rds.extensions": Provider("Amazon RDS or Aurora", "the parameter group", _AMAZON),
    "cloudsql.logical_decoding": Provider("Google Cloud SQL", "the instance's flags", _GOOGLE),
    "azure.extensions": Provider("Azure", "the server parameters", _AZURE),
    "neon.timeline_id": Provider("Neon", "the project", "turn on logical replication in the project's settings"),
    "supautils.privileged_extensions": Provider(
        "Supabase", "the configuration (supabase postgres-config update)", "ask its support for wal_level = logical"
    ),
}
"""Providers by a setting that only their servers have."""
