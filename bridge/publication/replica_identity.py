"""Whether what is published of UPDATE and DELETE goes with the replica identity (`RelationBuildPublicationDesc`).

PostgreSQL takes such a publication, and refuses the statement on the publisher (`CheckCmdReplicaIdentity`). Where
publications are re-applied here, the statement has long happened: its old tuple lacks what a filter looks at, so the
subscription stops at it, in the same words. Which identity it had then is in the stream's Relation messages; what the
catalog has now is good for a warning.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bridge.publication.partition_root import publish_as
from bridge.sqltext import syntax
from bridge.sqltext.lexer import Kind, tokens
from bridge.sqltext.parser import parse
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from bridge.publication.membership import Membership
    from bridge.publication.routing import Routing
    from bridge.publication.tables import CatalogRelation

GENERATED_VERSION = 180000
"""The first version that holds generated columns against the replica identity."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the server would refuse a statement, were the publication its own.

    Attributes:
        publication: Its name.
        place: Where the publication's file has it.
        table: The table's name, without its schema, as in PostgreSQL's error.
        qualified_name: With it.
        commands: UPDATE, DELETE or both.
        detail: PostgreSQL's.
    """

    publication: str
    place: str
    table: str
    qualified_name: str
    commands: tuple[str, ...]
    detail: str

    def message(self, command: str) -> str:
        """PostgreSQL's error and detail for one of the commands."""
        what = "update" if command == "UPDATE" else "delete from"
        return f'cannot {what} table "{self.table}"\nDETAIL:  {self.detail}'

    @property
    def hint(self) -> str:
        """What can be done about it."""
        return (
            f'{self.place}publication "{self.publication}" publishes {" and ".join(self.commands)} of '
            f'"{self.qualified_name}": leave that out, or run on the server: ALTER TABLE … REPLICA IDENTITY USING '
            "INDEX … (or FULL); which is for changes that come after it, one that has come can be skipped"
        )

    @property
    def warning(self) -> str:
        """The same, before there is such a statement."""
        return (
            f'{self.place}publication "{self.publication}": {" or ".join(self.commands)} of table '
            f'"{self.qualified_name}" will stop the subscription: {self.detail}'
        )


def refusals(routing: Routing) -> list[Refusal]:
    """What of the publications does not go with the tables as the catalog has them.

    A table without any replica identity is passed over: the server itself refuses its UPDATEs and DELETEs.
    """
    found: list[Refusal] = []
    for relation in routing.relations.publishable:
        if relation.relkind == "r" and (relation.replica_identity == "f" or relation.identity_columns):
            found += refusals_of(routing, relation)
    return found


def refusals_of(
    routing: Routing, relation: CatalogRelation, columns_of: Callable[[str], Collection[str]] | None = None
) -> list[Refusal]:
    """The same for one table whose rows change; `columns_of` gives the names of the columns that a filter looks at."""
    if routing.entry(relation) is None:
        return []
    found = (_refusal(routing, member, relation, columns_of or column_names) for member in routing.memberships)
    return [refusal for refusal in found if refusal is not None]


def _refusal(
    routing: Routing, member: Membership, relation: CatalogRelation, columns_of: Callable[[str], Collection[str]]
) -> Refusal | None:
    publication = member.publication
    published_as = publish_as(member, relation, routing.relations)
    commands = tuple(action.upper() for action in ("update", "delete") if action in publication.actions)
    if published_as is None or not commands:
        return None
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
    version = routing.relations.version
    if not detail and version >= GENERATED_VERSION and _unpublished_generated(member, relation, listed):
        detail = "Replica identity must not contain unpublished generated columns."
    if not detail:
        return None
    named = member.tables.get(target.relid)
    place = named.place if named else publication.place
    return Refusal(publication.name, place, relation.name, relation.qualified_name, commands, detail)


def _unpublished_generated(member: Membership, relation: CatalogRelation, listed: Collection[str] | None) -> bool:
    if listed is not None and relation.replica_identity != "f":
        return False
    unpublished = {"v"} if member.publication.generated_columns == "stored" else {"s", "v"}
    return any(column.in_replica_identity and column.generated in unpublished for column in relation.columns)


@cache
def column_names(expression: str) -> frozenset[str]:
    """Names in an expression that may be columns.

    Of one that is not read here, each of its words but functions' names: no column is missing, whoever is to compute
    it.
    """
    try:
        return frozenset(_names(parse(expression)))
    except (Refused, RecursionError):
        return frozenset(_words(expression))


def _words(expression: str) -> Iterator[str]:
    try:
        found = tokens(expression)
    except Refused:
        return  # what it is read for tells
    for token, after in pairwise(found):
        if token.kind in {Kind.WORD, Kind.QUOTED} and not after.is_symbol("("):
            yield token.value


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
