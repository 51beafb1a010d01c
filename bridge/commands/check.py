"""`pgbridge check`: shows what was found, with the remedy of each problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

_MARKS = {"pass": ("ok", "green"), "warning": ("warning", "yellow"), "failure": ("FAILED", "bold red")}
_INDENT = " " * 9


def render(document: dict[str, Any]) -> RenderableType:
    """Render the document: a line for each finding, its remedy and its statement below, and a summary.

    Print it with `soft_wrap`: a statement is to be copied as it stands.
    """
    text = Text()
    counts = dict.fromkeys(_MARKS, 0)
    groups = [("this machine", document["machine"])]
    groups += [(f"subscription {entry['name']}", entry["findings"]) for entry in document["subscriptions"]]
    for title, findings in groups:
        text.append(f"{title}\n", style="bold")
        for finding in findings:
            counts[finding["level"]] += 1
            mark, style = _MARKS[finding["level"]]
            text.append(f"{mark:<8}", style=style)
            text.append(f" {finding['subject']}: {finding['message']}\n")
            if finding["remedy"]:
                text.append(f"{_INDENT}{finding['remedy']}\n")
            if finding["statement"]:
                text.append(f"{_INDENT}{finding['statement']}\n", style="cyan")
        text.append("\n")
    text.append(f"{counts['pass']} passed, {counts['warning']} warnings, {counts['failure']} failed")
    return text
