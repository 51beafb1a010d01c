"""The catalog's part of `pgbridge reload`: requests to read the configuration file again, and the daemon's answers."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.track.catalog import Catalog

_KEPT_S = 600.0
"""How long an answer is kept for a command that has given up waiting, or was killed."""


APPLIED, REFUSED, INVALID = 0, 1, 2
"""Exit codes of `pgbridge reload`: all is applied; something cannot change now; the file cannot be used."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request.

    Attributes:
        code: The command's exit code.
        lines: What to print.
    """

    code: int
    lines: tuple[str, ...]


def ask(catalog: Catalog) -> int:
    """Record a request; return its number."""
    with catalog.transaction() as db:
        number = db.execute("INSERT INTO reload (outcome) VALUES (NULL)").lastrowid
    return int(number or 0)


def asked(catalog: Catalog) -> int | None:
    """The number of the last request that is not answered; None if there is none."""
    ((number,),) = catalog.rows("SELECT max(id) FROM reload WHERE outcome IS NULL")
    return None if number is None else int(number)


def answer(catalog: Catalog, up_to: int, outcome: Outcome, *, now_s: Callable[[], float] = time.time) -> None:
    """Answer all requests up to this number."""
    text = json.dumps({"code": outcome.code, "lines": outcome.lines})
    with catalog.transaction() as db:
        db.execute("DELETE FROM reload WHERE answered < ?", (now_s() - _KEPT_S,))
        db.execute(
            "UPDATE reload SET outcome = ?, answered = ? WHERE id <= ? AND outcome IS NULL", (text, now_s(), up_to)
        )


def take_answer(catalog: Catalog, number: int) -> Outcome | None:
    """Return the answer to a request, and delete both; None before it is answered."""
    rows = catalog.rows("SELECT outcome FROM reload WHERE id = ? AND outcome IS NOT NULL", number)
    if not rows:
        return None
    with catalog.transaction() as db:
        db.execute("DELETE FROM reload WHERE id = ?", (number,))
    found = json.loads(rows[0][0])
    return Outcome(found["code"], tuple(found["lines"]))
