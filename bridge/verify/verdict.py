"""The results of a verification: what was found of each table, and the document that `--json` prints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bridge.verify.comparison import Difference, Shown
    from protocol.lsn import Lsn


@dataclass(slots=True)
class Verdict:
    """The result for one table.

    Attributes:
        relation: `namespace.name`.
        rows: How many rows the source has, without those that are left out.
        differences: The rows that differ.
        shown: Some of them, for people.
        left_out: How many keys were not compared, because Delta does not have their last changes yet.
        partly: More buckets differ than were looked into: `differences` are not all.
        why: Why the table could not be verified; empty if it was.
        seconds: How long it took.
        repaired: The rows that differed were repaired; with `partly`, those of `differences`.
        unrepaired: Why they were not; empty if they were, or if it was not asked for.
        caveat: Why there may be differences that the configuration wants.
        left_out_columns: Columns that were not compared, because they are VARIANT.
        changelog: It has a changelog, which cannot be verified by its nature; `why` says so.
    """

    relation: str
    path: str
    rows: int = 0
    differences: list[Difference] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    left_out: int = 0
    partly: bool = False
    why: str = ""
    seconds: float = 0.0
    repaired: bool = False
    left_out_columns: tuple[str, ...] = ()
    unrepaired: str = ""
    caveat: str = ""
    changelog: bool = False


def failed_document(name: str, error: str) -> dict[str, Any]:
    """A subscription of which nothing could be verified, as `--json` prints it."""
    return {"subscription": name, "lsn": None, "tables": [], "error": error}


def document_of(name: str, lsn: Lsn, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The result as `--json` prints it."""
    return {
        "subscription": name,
        "lsn": str(lsn),
        "tables": [
            {
                "relation": verdict.relation,
                "path": verdict.path,
                "rows": verdict.rows,
                "equal": None if verdict.why else not verdict.differences and not verdict.partly,
                "could_not": verdict.why or None,
                "changelog": verdict.changelog,
                "left_out": verdict.left_out,
                "left_out_columns": list(verdict.left_out_columns),
                "partly": verdict.partly,
                "repaired": verdict.repaired,
                "unrepaired": verdict.unrepaired or None,
                "caveat": verdict.caveat or None,
                "differences": _counts(verdict.differences),
                "shown": [_shown_document(shown) for shown in verdict.shown],
                "seconds": round(verdict.seconds, 2),
            }
            for verdict in verdicts
        ],
    }


def _counts(differences: Sequence[Difference]) -> Mapping[str, int]:
    counts = Counter[str]()
    for difference in differences:
        counts[difference.outcome] += difference.rows
    return dict(sorted(counts.items()))


def _shown_document(shown: Shown) -> dict[str, Any]:
    columns = {name: {"source": source, "delta": delta} for name, (source, delta) in shown.columns.items()}
    return {"outcome": shown.outcome, "key": dict(shown.key), "columns": columns}
