"""When the daemon verifies which table, and what is kept of a verification.

A table is due again after `workers.verify_every_h`. One whose Delta table has no other version since it was found equal
is read again only after seven times as long: nobody has written to it, and only a change that the stream has lost could
make a difference.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bridge.catalog.verified import Begun, VerifiedRow, rows
from bridge.verify.comparison import counts, said

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.catalog.catalog import Catalog
    from bridge.catalog.catalog_rows import RelRow
    from bridge.config.config import Subscription
    from bridge.verify.comparison import Verdict
    from bridge.verify.part import Part
    from protocol.lsn import Lsn

_UNCHANGED: Final = 7
"""So many times as seldom a table is read that has not changed."""

_AGAIN_S: Final = 3600.0
"""After so long at most, one is tried again that could not be verified."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What was compared, and when.

    Attributes:
        lsn: As of which.
        at_s: What was committed before was compared: seconds since 1970, by the server's clock.
        now_s: By this machine's.
        part: The rows; None for all.
    """

    lsn: Lsn
    at_s: float
    now_s: float
    part: Part | None


def noted(before: VerifiedRow | None, rel: RelRow, verdict: Verdict, compared: Compared) -> VerifiedRow:
    """What the catalog has of a table after a verdict on it, or on its next part."""
    row = before or VerifiedRow(rel.namespace, rel.name, rel.path, compared.now_s)
    row = replace(row, path=rel.path, tried_s=compared.now_s, could_not=None)
    if verdict.why or verdict.version is None:
        return replace(row, could_not=verdict.why or None)
    part, begun = compared.part, row.begun
    if part is None or part.lower is None or begun is None:
        begun = Begun("", "", compared.lsn, compared.at_s, verdict.version, {}, partly=False)
    if _differs(verdict):
        sums = Counter(begun.rows) + Counter(counts(verdict.differences))
        begun = replace(begun, rows=dict(sorted(sums.items())), partly=begun.partly or verdict.partly)
    row = replace(row, begun=None)
    differs = bool(begun.rows) or begun.partly
    if differs:
        text = said(begun.rows, partly=begun.partly)
        row = replace(row, differs=text, differs_lsn=compared.lsn, version=None)
    elif not verdict.is_equal:
        return replace(row, could_not=_caveat(verdict))
    if part is not None and part.upper is not None:
        return replace(row, begun=replace(begun, column=part.column, lower=part.upper))
    if differs:
        return row
    version = None if verdict.repaired else begun.version
    from_lsn = type(compared.lsn)(begun.lsn)
    return replace(row, lsn=from_lsn, at_s=begun.at_s, version=version, differs=None, differs_lsn=None)


def _differs(verdict: Verdict) -> bool:
    """Whether there are differences that nobody wants and nobody has repaired."""
    return bool(verdict.differences or verdict.partly) and not verdict.repaired and not verdict.caveat


def _caveat(verdict: Verdict) -> str:
    """Why a table without differences is not known to be equal."""
    if verdict.left_out_columns:
        return f"columns are not compared: {', '.join(verdict.left_out_columns)}"
    return verdict.caveat or "the last changes of some keys were not applied yet"


def due_s(row: VerifiedRow | None, every_s: float, *, changed: bool) -> float:
    """When a table is due, in seconds since 1970.

    Args:
        row: What is known of it; None for nothing.
        every_s: How often tables are verified.
        changed: Whether its Delta table has another version since it was found equal.
    """
    if row is None:
        return 0.0
    if row.could_not is not None:
        return row.tried_s + min(every_s, _AGAIN_S)
    if row.begun is not None:
        return 0.0
    return row.tried_s + (every_s if changed or row.version is None else _UNCHANGED * every_s)


# --- `pgbridge verify --schedule` -------------------------------------------------------------------------------------


def collect(catalog: Catalog, chosen: Sequence[Subscription]) -> dict[str, Any]:
    """What was found of each table, and when it is due, as `--json` prints it."""
    return {"subscriptions": [_of_subscription(catalog, subscription) for subscription in chosen]}


def _of_subscription(catalog: Catalog, subscription: Subscription) -> dict[str, Any]:
    known = rows(catalog, subscription.name)
    every_s = subscription.workers.verify_every_h * 3600
    tables = []
    for rel in catalog.rels(subscription.name):
        if subscription.mode_of(rel.qualified_name) == "changelog":
            continue
        row = known.get((rel.namespace, rel.name))
        due = due_s(row, every_s, changed=True) if every_s else None
        tables.append(
            {
                "relation": rel.qualified_name,
                "verified_lsn": None if row is None or row.lsn is None else str(row.lsn),
                "verified_until": _time(None if row is None else row.at_s),
                "tried": _time(None if row is None else row.tried_s),
                "differs": None if row is None else row.differing(rel),
                "could_not": None if row is None else row.could_not,
                "under_way": row is not None and row.begun is not None,
                "due": None if due is None else _time(due or None),
            }
        )
    return {"subscription": subscription.name, "every_h": subscription.workers.verify_every_h, "tables": tables}


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds")


def render(document: dict[str, Any]) -> RenderableType:
    """The schedules for a terminal."""
    parts: list[RenderableType] = []
    for entry in document["subscriptions"]:
        every = f"every {entry['every_h']:g} hours" if entry["every_h"] else "by hand only: workers.verify_every_h = 0"
        table = Table(box=None, pad_edge=False)
        for title in ("table", "equal until", "last found", "next"):
            table.add_column(title, overflow="fold")
        for each in entry["tables"]:
            table.add_row(Text(each["relation"]), each["verified_until"] or "", Text(_last(each)), _next(entry, each))
        parts += [Text(f"{entry['subscription']}: {every}"), table]
    return Group(*parts)


def _last(table: dict[str, Any]) -> str:
    if table["differs"]:
        return str(table["differs"])
    if table["could_not"]:
        return f"not verified: {table['could_not']}"
    return "" if table["tried"] is None else "under way" if table["under_way"] else "equal"


def _next(entry: dict[str, Any], table: dict[str, Any]) -> str:
    return "" if not entry["every_h"] else table["due"] or "now"
