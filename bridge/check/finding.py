"""A check's finding: a pass, a warning or a failure, with its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bridge.runtime.errors import BridgeError


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
