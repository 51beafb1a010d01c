"""Whether what is published of UPDATE and DELETE goes with the replica identity (`RelationBuildPublicationDesc`).

PostgreSQL refuses the statement on the publisher (`CheckCmdReplicaIdentity`). Where publications are re-applied here,
the statement has long happened: they are refused at start, in the same words.
"""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import PublicationError
from bridge.filter import syntax
from bridge.filter.parser import parse
from bridge.filter.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from bridge.filter.membership import Membership
    from bridge.filter.routing import Routing
    from bridge.receive.relations import CatalogRelation

GENERATED_VERSION = 180000
"""The first version that holds generated columns against the replica identity."""

_WORDS: Final = re.compile(r'"((?:[^"]|"")+)"|([^\W\d][\w$]*)')


def check_identity(routing: Routing, version: int, columns_of: Callable[[str], Collection[str]] | None = None) -> None:
    """Refuse publications by which UPDATE or DELETE could not be told rightly.

    A table without any replica identity is passed over: the server itself refuses its UPDATEs and DELETEs.

    Args:
        routing: The publications on their tables.
        version: The server's server_version_num.
        columns_of: The names of the columns that a filter uses.

    Raises:
        PublicationError: PostgreSQL's error and detail, with the publication and its place.
    """
    for relation in routing.relations.publishable:
        identified = relation.replica_identity == "f" or relation.identity_columns
        if relation.relkind != "r" or not identified or routing.entry(relation) is None:
            continue
        for member in routing.memberships:
            _check(routing, member, relation, version, columns_of or column_names)


def _check(
    routing: Routing,
    member: Membership,
    relation: CatalogRelation,
    version: int,
    columns_of: Callable[[str], Collection[str]],
) -> None:
    publication = member.publication
    published_as = member.publish_as(relation, routing.relations)
    actions = [action for action in ("update", "delete") if action in publication.actions]
    if published_as is None or not actions:
        return
    target = published_as[0]
    detail = ""
    text = member.row_filter(target)
    if text is not None and relation.replica_identity != "f":
        # the server holds the columns against it that a virtual one is made from; `coverage` refuses those
        known = {column.name for column in target.columns if column.generated != "v"}
        if not known.intersection(columns_of(text)) <= relation.identity_columns:
            detail = "Column used in the publication WHERE expression is not part of the replica identity."
    listed = member.column_list(target)
    if listed is not None and (relation.replica_identity == "f" or not relation.identity_columns <= listed):
        detail = detail or "Column list used by the publication does not cover the replica identity."
    if not detail and version >= GENERATED_VERSION and _unpublished_generated(member, relation, listed):
        detail = "Replica identity must not contain unpublished generated columns."
    if detail:
        what = "update" if actions[0] == "update" else "delete from"
        place = next((table.place for table in (member.tables.get(target.relid),) if table), publication.place)
        raise PublicationError(
            f'{place}cannot {what} table "{relation.name}"\nDETAIL:  {detail}',
            hint=f'publication "{publication.name}" publishes {" and ".join(action.upper() for action in actions)} of '
            f'"{relation.qualified_name}": leave that out, or run on the server: '
            f"ALTER TABLE … REPLICA IDENTITY USING INDEX … (or FULL);",
        )


def _unpublished_generated(member: Membership, relation: CatalogRelation, listed: Collection[str] | None) -> bool:
    if listed is not None and relation.replica_identity != "f":
        return False
    unpublished = {"v"} if member.publication.generated_columns == "stored" else {"s", "v"}
    return any(column.in_replica_identity and column.generated in unpublished for column in relation.columns)


@cache
def column_names(expression: str) -> frozenset[str]:
    """Names in an expression that may be columns.

    Of one that is not read here, each of its words: no column is missing, whoever is to compute it.
    """
    try:
        return frozenset(_names(parse(expression)))
    except (Refused, RecursionError):
        return frozenset(quoted.replace('""', '"') or word.lower() for quoted, word in _WORDS.findall(expression))


def _names(expression: syntax.Node) -> Iterator[str]:
    waiting: list[Any] = [expression]
    while waiting:
        part = waiting.pop()
        if isinstance(part, syntax.ColumnName):
            yield part.parts[-1]
        elif isinstance(part, tuple):
            waiting += part
        elif isinstance(part, syntax.Node):
            waiting += (getattr(part, field.name) for field in fields(part))
