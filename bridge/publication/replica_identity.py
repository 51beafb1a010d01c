"""Whether row filters and column lists for UPDATE and DELETE fit the replica identity (`RelationBuildPublicationDesc`).

If they do not, PostgreSQL accepts the publication and refuses the UPDATE or DELETE (`CheckCmdReplicaIdentity`). For
publications that are re-applied here, the statement has already run: its old tuple lacks columns of the filter, so the
subscription stops at it, with PostgreSQL's error. The replica identity at that time is in the stream's Relation
messages; the catalog's present one serves for a warning.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pgbridge.bridge.publication.routing import Routing, publish_as
from pgbridge.bridge.sqltext import lexer, parser, syntax
from pgbridge.bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from pgbridge.bridge.publication.membership import Membership
    from pgbridge.bridge.publication.published_table import Entry
    from pgbridge.bridge.publication.tables import CatalogRelation, Relations

GENERATED_VERSION = 180000
"""The first version that checks generated columns against the replica identity."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the server would refuse UPDATE or DELETE of a table if the publication were its own.

    Attributes:
        publication: The publication's name.
        place: Where the definitions file names the table: `file:line:column: `, or empty.
        table: The table's name, without its schema, as in PostgreSQL's error.
        qualified_name: The same with its schema.
        commands: UPDATE, DELETE or both.
        detail: PostgreSQL's DETAIL.
        published_as: The partitioned table whose rows the identity does not identify (see `partition_identity`); empty
            for the other refusals.
    """

    publication: str
    place: str
    table: str
    qualified_name: str
    commands: tuple[str, ...]
    detail: str
    published_as: str = ""

    def message(self, command: str) -> str:
        """PostgreSQL's error and detail for one of the commands; the detail of a partitioned table is our own."""
        if self.published_as:
            return (
                f'logical replication target relation "{self.published_as}" has neither REPLICA IDENTITY index nor '
                "PRIMARY KEY column and published relation does not have REPLICA IDENTITY FULL\n"
                f"DETAIL:  {self.detail}"
            )
        what = "update" if command == "UPDATE" else "delete from"
        return f'cannot {what} table "{self.table}"\nDETAIL:  {self.detail}'

    @property
    def hint(self) -> str:
        """The operator's remedy."""
        return (
            f'{self.place}publication "{self.publication}" publishes {" and ".join(self.commands)} of '
            f'"{self.qualified_name}": remove that from `publish`, or run on the server: ALTER TABLE … REPLICA '
            "IDENTITY FULL; or with USING INDEX …. This helps later changes, the present one can be skipped"
        )

    @property
    def warning(self) -> str:
        """The warning at start, before there is such a statement."""
        return (
            f'{self.place}publication "{self.publication}": {" or ".join(self.commands)} of table '
            f'"{self.qualified_name}" will stop the subscription: {self.detail}'
        )


def refusals(routing: Routing) -> list[Refusal]:
    """The statements that would be refused, by the replica identities that the catalog has now.

    Tables without any replica identity are passed over: the server itself refuses their UPDATEs and DELETEs.
    """
    refused: list[Refusal] = []
    for relation in routing.relations.publishable:
        if relation.relkind == "r" and (relation.replica_identity == "f" or relation.identity_columns):
            refused += refusals_of(routing, relation)
    return refused


def refusals_of(
    routing: Routing, relation: CatalogRelation, columns_of: Callable[[str], Collection[str]] | None = None
) -> list[Refusal]:
    """The same for one table whose rows change.

    Args:
        routing: The publications.
        relation: The table, with the replica identity to check.
        columns_of: Returns the names of a row filter's columns; `column_names` by default.
    """
    if routing.entry(relation) is None:
        return []
    by_member = (_refusal(routing, member, relation, columns_of or column_names) for member in routing.memberships)
    return [refusal for refusal in by_member if refusal is not None]


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
        # for a virtual column the server checks the columns of its expression; `coverage` refuses virtual columns
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

    If the parser cannot read the expression, all its words but names of functions: so no column is missing.
    """
    try:
        return frozenset(_names(parser.parse(expression)))
    except (Refused, RecursionError):
        return frozenset(_words(expression))


def _words(expression: str) -> Iterator[str]:
    try:
        expression_tokens = lexer.tokens(expression)
    except Refused:
        return  # the server, or whoever evaluates it, reports the error
    for token, after in pairwise(expression_tokens):
        if token.kind in {lexer.Kind.WORD, lexer.Kind.QUOTED} and not after.is_symbol("("):
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


# --- Whether a partition's replica identity identifies rows of the table that it is published as ----------------------
# An index of a partition is unique within that partition. Only if it has the partition key does each of its keys belong
# to one partition, and so to one row of the whole table. PostgreSQL asks that of the primary key of a partitioned
# table; a partition's own primary key may do without. A publication with publish_via_partition_root sends the root's
# identity, and the subscriber stops at an UPDATE or DELETE if the root has none (`check_relation_updatable` in
# worker.c). A stream of partitions, whose changes definitions publish as those of the root, has the partitions'
# identities instead.


def missing_partition_key(entry: Entry, identity: Collection[str], relations: Relations) -> tuple[str, ...]:
    """The parts of the partition key that an identity lacks; none if it identifies rows of the entry's target.

    Args:
        entry: As which table changes are published, with the table that the stream names as its source.
        identity: Names of the columns in the source's replica identity, as the stream has them.
        relations: The server's tables. Partition keys never change, but their columns may be renamed: a name in the
            identity that the source does not have any more may be one of them.

    Returns:
        Columns, and "(expression)" for an expression, of which no identity can have the value.
    """
    if not entry.via_root:
        return ()
    wanted: dict[str, None] = {}
    for above in relations.ancestors(entry.source):
        wanted.update(dict.fromkeys(above.partition_key))
        if above.relid == entry.target.relid:
            break
    columns = {column.name for column in entry.source.columns}
    missing = tuple(name for name in wanted if name not in identity)
    renamed = [name for name in identity if name not in columns]
    return missing if len(missing) > len(renamed) else ()


def partition_refusal(entry: Entry, identity: Collection[str], relations: Relations) -> Refusal | None:
    """Why UPDATEs and DELETEs of a partition cannot be applied to the table it is published as; None if they can.

    Args:
        entry: See `missing_partition_key`.
        identity: See there.
        relations: See there.
    """
    missing = missing_partition_key(entry, identity, relations)
    commands = tuple(action.upper() for action in ("update", "delete") if action in entry.actions)
    if not missing or not commands:
        return None
    source = entry.source
    return Refusal(
        entry.publications[0],
        "",
        source.name,
        source.qualified_name,
        commands,
        f'Partition "{source.qualified_name}" is published as it, and the partition\'s replica identity lacks the '
        f"partition key ({', '.join(missing)}): it is unique within the partition only.",
        published_as=entry.target.qualified_name,
    )


def partition_refusals(routing: Routing, stream: Routing) -> list[Refusal]:
    """The same for all partitions, by the replica identities that the catalog has now.

    Args:
        routing: The definitions.
        stream: The server's publications, which say under which table's name the changes arrive.
    """
    by_relid: dict[int, Refusal] = {}
    for leaf in routing.relations.publishable:
        entry, sent = routing.entry(leaf), stream.entry(leaf)
        if leaf.relkind != "r" or entry is None or sent is None:
            continue
        arriving = sent.target
        if arriving.replica_identity == "f" or not arriving.identity_columns:
            continue
        refusal = partition_refusal(replace(entry, source=arriving), arriving.identity_columns, routing.relations)
        if refusal is not None:
            by_relid[arriving.relid] = refusal
    return list(by_relid.values())
