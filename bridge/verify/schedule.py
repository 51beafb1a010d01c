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
from rich.text import Text

from pgbridge.bridge.catalog.verified import Begun, VerifiedRow, rows
from pgbridge.bridge.runtime.listing import Listing
from pgbridge.bridge.verify.comparison import counts, said
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.catalog.catalog_rows import RelRow
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.verify.comparison import Verdict
    from pgbridge.bridge.verify.part import Part

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


def takes_part(subscription: Subscription, rel: RelRow) -> bool:
    """Whether a table can be verified now: it follows the stream, and has the published rows."""
    return rel.follows and subscription.mode_of(rel.qualified_name) != "changelog"


def noted(before: VerifiedRow | None, rel: RelRow, verdict: Verdict, compared: Compared) -> VerifiedRow:
    """What the catalog has of a table after a verdict on it, or on a part of it.

    Args:
        before: What it has of the table, which was not copied since; None for nothing. If a later verdict is in it, or
            the part is not the next one, nothing changes.
    """
    row = before or VerifiedRow(rel.namespace, rel.name, rel.path, rel.lsn, 0.0)
    part, begun = compared.part, row.begun
    first = part is None or part.lower is None
    next_one = part is not None and begun is not None and (begun.column, begun.lower) == (part.column, part.lower)
    if not (first or next_one) or compared.lsn < max(row.lsn or INVALID, row.differs_lsn or INVALID):
        return row
    row = replace(row, path=rel.path, tried_s=compared.now_s, could_not=None)
    if verdict.why or verdict.version is None:
        return replace(row, could_not=verdict.why)
    if first or begun is None:
        begun = Begun("", "", compared.lsn, compared.at_s, verdict.version)
    begun = _with_verdict(begun, verdict)
    if differs := bool(begun.rows) or begun.partly:
        text = said(begun.rows, partly=begun.partly)
        row = replace(row, differs=text, differs_lsn=compared.lsn, version=None)
    if part is not None and part.upper is not None:
        return replace(row, begun=replace(begun, column=part.column, lower=part.upper))
    row = replace(row, begun=None, caveat=begun.caveat)
    if differs:
        return row
    if begun.left_out:
        return replace(row, could_not="the last changes of some keys were not applied yet")
    version = None if verdict.repaired else begun.version
    row = replace(row, version=version, differs=None, differs_lsn=None)
    return row if begun.caveat else replace(row, lsn=Lsn(begun.lsn), at_s=begun.at_s)


def _with_verdict(begun: Begun, verdict: Verdict) -> Begun:
    if verdict.caveat:  # differences may be meant
        return replace(begun, caveat=verdict.caveat)
    rows = Counter(begun.rows) + Counter({} if verdict.repaired else counts(verdict.differences))
    left_out_columns = ", ".join(verdict.left_out_columns)
    return replace(
        begun,
        rows=dict(sorted(rows.items())),
        partly=begun.partly or verdict.partly,
        left_out=begun.left_out or verdict.left_out > 0,
        caveat=f"columns are not compared: {left_out_columns}" if left_out_columns else begun.caveat,
    )


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
        return row.tried_s
    return row.tried_s + (every_s if changed or row.version is None else _UNCHANGED * every_s)


# --- `pgbridge verify --schedule` -------------------------------------------------------------------------------------


def collect(catalog: Catalog, chosen: Sequence[Subscription]) -> dict[str, Any]:
    """What was found of each table, and when it is due, as `--json` prints it."""
    return {"subscriptions": [_of_subscription(catalog, subscription) for subscription in chosen]}


def _of_subscription(catalog: Catalog, subscription: Subscription) -> dict[str, Any]:
    rels = [rel for rel in catalog.rels(subscription.name) if takes_part(subscription, rel)]
    known = rows(catalog, subscription.name, rels)
    every_s = subscription.workers.verify_every_h * 3600
    return {
        "subscription": subscription.name,
        "every_h": subscription.workers.verify_every_h,
        "tables": [_of_table(rel, known.get(rel), every_s) for rel in rels],
    }


def _of_table(rel: RelRow, row: VerifiedRow | None, every_s: float) -> dict[str, Any]:
    due, latest = (due_s(row, every_s, changed=changed) if every_s else None for changed in (True, False))
    return {
        "relation": rel.qualified_name,
        "verified_lsn": None if row is None or row.lsn is None else str(row.lsn),
        "verified_until": _time(None if row is None else row.at_s),
        "tried": _time(None if row is None else row.tried_s),
        "differs": None if row is None else row.differs,
        "could_not": None if row is None else row.could_not,
        "caveat": None if row is None else row.caveat,
        "under_way": row is not None and row.begun is not None,
        "due": None if due is None else _time(due or None),
        "due_unchanged": None if latest is None else _time(latest or None),
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds")


def render(document: dict[str, Any]) -> RenderableType:
    """The schedules for a terminal."""
    parts: list[RenderableType] = []
    for entry in document["subscriptions"]:
        every = f"every {entry['every_h']:g} hours" if entry["every_h"] else "by hand only: workers.verify_every_h = 0"
        table = Listing("table", "equal until", "last found", "next")
        for each in entry["tables"]:
            table.add_row(Text(each["relation"]), each["verified_until"] or "", Text(_last(each)), _next(entry, each))
        parts += [Text(f"{entry['subscription']}: {every}"), table]
    return Group(*parts)


def _last(table: dict[str, Any]) -> str:
    if table["differs"]:
        return str(table["differs"])
    if table["could_not"]:
        return f"not verified: {table['could_not']}"
    if table["under_way"] or table["tried"] is None:
        return "under way" if table["under_way"] else ""
    return f"equal, but {table['caveat']}" if table["caveat"] else "equal"


def _next(entry: dict[str, Any], table: dict[str, Any]) -> str:
    if not entry["every_h"] or table["due"] is None:
        return "now" if entry["every_h"] else ""
    unchanged = table["due_unchanged"]
    return str(table["due"]) if unchanged == table["due"] else f"{table['due']}, if unchanged {unchanged}"
