"""`pgbridge publications`: shows what is published of each table, or writes the publications as definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from pgbridge.bridge.config.each_subscription import each
from pgbridge.bridge.publication import published_table, reapply
from pgbridge.bridge.publication.definitions import load_optional
from pgbridge.bridge.publication.publication import ACTIONS, DML, Publication, render as statements
from pgbridge.bridge.receive.publications import apply_publications, read_publications
from pgbridge.bridge.receive.publisher import Publisher, missing_message
from pgbridge.bridge.runtime.errors import BridgeError, PublisherError
from pgbridge.bridge.runtime.listing import Listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.publication.routing import Routing


def collect(subscriptions: Iterable[Subscription]) -> dict[str, Any]:
    """Return the document of `--json`.

    Returns:
        `{"subscriptions": [{"name", "publications", "definitions", "refused", "warnings", "notes", "targets"}]}`.
        `definitions` is the definitions file; null if the document shows the server's own publications. `refused`
        says why the definitions cannot be re-applied, or is null. `warnings` names the UPDATEs and DELETEs that will
        stop the subscription. `notes` names what the stream lacks for the definitions, publications FOR ALL
        SEQUENCES, and the tables left out.
        A target has `name`, `publications` (those with the filters and column lists that apply), `actions`,
        `filters` (one expression for each action, null if every row passes), `copy_filter`, `columns`, `root` (its
        own name if it is published instead of its partitions, else null) and `leaves` (those partitions). Of several
        subscriptions, one whose server does not answer, or whose publications cannot be resolved on its tables, has
        `error`, and no targets.

    Raises:
        BridgeError: The only subscription has such an error.
    """
    return {"subscriptions": each(subscriptions, _one, _failed)}


def _failed(subscription: Subscription, error: BridgeError) -> dict[str, Any]:
    names = {"name": subscription.name, "publications": list(subscription.publications)}
    nothing: dict[str, Any] = {"refused": None, "warnings": [], "notes": [], "targets": []}
    return {**names, "definitions": subscription.publication_definitions, **nothing, "error": str(error)}


def _one(subscription: Subscription) -> dict[str, Any]:
    definitions = load_optional(subscription.publication_definitions)
    with _publisher(subscription) as publisher, publisher.snapshot():
        missing = publisher.missing(subscription.publications)
        notes = [missing_message(missing)] if missing else []
        applied = apply_publications(publisher, subscription.publications, definitions)
    names = subscription.publications if definitions is None else [item.name for item in definitions]
    return {
        "name": subscription.name,
        "publications": list(names),
        "definitions": subscription.publication_definitions,
        "refused": _refused(applied),
        "warnings": [refusal.warning for refusal in applied.refusals],
        "notes": [
            *notes,
            *(gap.message for gap in applied.gaps if not gap.fatal),
            *applied.sequences,
            *_left_out(applied, subscription),
        ],
        "targets": [_target(applied.routing, entry) for entry in applied.routing.targets.values()],
    }


def _refused(applied: reapply.Applied) -> str | None:
    return "\n".join(gap.message for gap in applied.gaps if gap.fatal) or None


def _left_out(applied: reapply.Applied, subscription: Subscription) -> Iterator[str]:
    for entry in applied.routing.targets.values():
        namespace, name = entry.target.namespace, entry.target.name
        why = published_table.unsupported(namespace, name, entry.column_names, subscription.place_of)
        if why is not None:
            yield f"{why.reason}: it is left out, unless it is already subscribed"


def _target(routing: Routing, entry: published_table.Entry) -> dict[str, Any]:
    partitioned = entry.target.relkind == "p"
    leaves = [source.qualified_name for source in routing.sources(entry.target)] if partitioned else []
    return {
        "name": entry.target.qualified_name,
        "publications": list(entry.publications),
        "actions": [action for action in ACTIONS if action in entry.actions],
        "filters": {action: _combined(entry.filters[action]) for action in DML if action in entry.filters},
        "copy_filter": _combined(entry.copy_filters),
        "columns": list(entry.column_names),
        "root": entry.target.qualified_name if partitioned else None,
        "leaves": leaves,
    }


def _combined(filters: tuple[str, ...]) -> str | None:
    if not filters:
        return None
    return filters[0] if len(filters) == 1 else " OR ".join(f"({text})" for text in filters)


def is_refused(document: dict[str, Any]) -> bool:
    """Whether the document has a subscription whose definitions cannot be re-applied, or that could not be read."""
    return any(item["refused"] or "error" in item for item in document["subscriptions"])


def dump(subscriptions: Iterable[Subscription]) -> tuple[str, list[str]]:
    """Return the subscriptions' publications as the server has them, as statements for a definitions file; and errors.

    A publication that several subscriptions name is written once.

    Raises:
        BridgeError: The server of the only subscription does not answer, or a publication does not exist.
    """
    texts: dict[tuple[str, Publication], str] = {}

    def read(subscription: Subscription) -> None:
        with _publisher(subscription) as publisher, publisher.snapshot():
            if missing := publisher.missing(subscription.publications):
                raise PublisherError(missing_message(missing))
            for publication in read_publications(publisher, subscription.publications):
                texts.setdefault((subscription.connection, publication), statements([publication]))

    errors = each(subscriptions, read, lambda subscription, error: f'subscription "{subscription.name}": {error}')
    return "\n".join(texts.values()), [error for error in errors if error is not None]


def _publisher(subscription: Subscription) -> Publisher:
    return Publisher(subscription.connection, application_name=f"{subscription.name}_publications")


def render(document: dict[str, Any]) -> RenderableType:
    """Render the document: a table of targets, then errors, warnings and notes."""
    table = Listing("table", "publications", "actions", "row filter", "columns", "partitions")
    problems = Text()
    for item in document["subscriptions"]:
        for target in item["targets"]:
            cells = (
                f"{item['name']}: {target['name']}",
                ", ".join(target["publications"]),
                _actions_text(target["actions"]),
                _filters_text(target),
                ", ".join(target["columns"]),
                ", ".join(target["leaves"]) if target["root"] else "-",
            )
            table.add_row(*map(Text, cells))
        if "error" in item:
            problems.append(f"\n{item['name']}, cannot be read:\n", style="bold red")
            problems.append(item["error"] + "\n")
        if item["refused"]:
            problems.append(f"\n{item['name']}, refused:\n", style="bold red")
            problems.append(item["refused"] + "\n")
        for warning in item["warnings"]:
            problems.append(f"\n{item['name']}, warning: {warning}\n", style="yellow")
        for note in item["notes"]:
            problems.append(f"\n{item['name']}: {note}\n")
    return Group(table, problems)


def _actions_text(actions: list[str]) -> str:
    return "all" if set(actions) == set(ACTIONS) else ", ".join(actions) or "none"


def _filters_text(target: dict[str, Any]) -> str:
    """One expression if all actions and the copy have the same, else one line for each."""
    filters = {**target["filters"], "copy": target["copy_filter"]}
    if len(set(filters.values())) == 1:
        return target["copy_filter"] or "-"
    return "\n".join(f"{action}: {text or 'every row'}" for action, text in filters.items())
