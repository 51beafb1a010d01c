"""The members of a publication among the server's tables: by name, by inheritance, by schema.

The checks are those of CREATE PUBLICATION when it looks its tables up, in its words (`OpenTableList`,
`TransformPubWhereClauses`, `CheckPubRelationColumnList`, `publication_add_relation`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from pgbridge.bridge.runtime.errors import PublicationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pgbridge.bridge.publication.publication import Publication, PublicationTable
    from pgbridge.bridge.publication.tables import CatalogRelation, Relations

    Name = tuple[str, str]

_SYSTEM_COLUMNS = frozenset({"tableoid", "cmax", "xmax", "cmin", "xmin", "ctid"})
_NO_TABLE = {
    "v": "views",
    "m": "materialized views",
    "f": "foreign tables",
    "S": "sequences",
}


@dataclass(frozen=True, slots=True)
class Membership:
    """A publication with its tables looked up, as in pg_publication_rel and pg_publication_namespace.

    Attributes:
        tables: By relid; also tables that are members because they inherit from one that is named.
        excluded: The relids of those that EXCEPT names, and of tables that inherit from them (`prexcept`).
    """

    publication: Publication
    tables: Mapping[int, PublicationTable]
    excluded: frozenset[int] = frozenset()

    def has(self, relation: CatalogRelation) -> bool:
        """Whether a table is a member, by itself or by its schema."""
        return relation.relid in self.tables or relation.namespace in self.publication.schemas

    def row_filter(self, relation: CatalogRelation) -> str | None:
        """The row filter of a member; FOR ALL TABLES and TABLES IN SCHEMA have none."""
        if self.publication.all_tables or relation.namespace in self.publication.schemas:
            return None
        member = self.tables.get(relation.relid)
        return member.row_filter if member else None

    def column_list(self, relation: CatalogRelation) -> frozenset[str] | None:
        """The column list of a member; None without one."""
        member = self.tables.get(relation.relid)
        return frozenset(member.columns) if member and member.columns is not None else None

    def columns(self, relation: CatalogRelation) -> frozenset[str]:
        """Names of the columns it publishes: the column list's, or all but the generated ones that it leaves out."""
        listed = self.column_list(relation)
        if listed is not None:
            return listed
        generated = {"", "s"} if self.publication.generated_columns == "stored" else {""}
        return frozenset(column.name for column in relation.columns if column.generated in generated)


def resolve(
    publication: Publication, relations: Relations, *, missing_ok: bool = False, followed: Collection[Name] = ()
) -> Membership:
    """Look a publication's tables up.

    Args:
        relations: The server's tables.
        missing_ok: Pass over tables that do not exist, as PostgreSQL does after DROP TABLE.
        followed: (namespace, name) of tables that existed: those of them that do not exist any more are passed over.

    Raises:
        PublicationError: The server would refuse this publication.
    """
    named, excepted = (
        _named(tables, relations, missing_ok=missing_ok, followed=followed)
        for tables in (publication.tables, publication.except_tables)
    )
    for relation, table in named:
        _check_kind(relation, table.place, f'cannot add relation "{relation.name}" to publication')
        _check_table(publication, table, relation)
    for relation, table in excepted:
        message = f'cannot use publication EXCEPT clause for relation "{relation.name}"'
        if relation.is_partition:
            _refuse(table.place, message, "This operation is not supported for individual partitions.")
        _check_kind(relation, table.place, message)
    for schema in publication.schemas:
        if schema in {"pg_catalog", "pg_toast"}:
            detail = "This operation is not supported for system schemas."
            _refuse(publication.place, f'cannot add schema "{schema}" to publication', detail)
        existed = missing_ok or any(schema == namespace for namespace, _ in followed)
        if schema not in relations.schemas and not existed:
            _refuse(publication.place, f'schema "{schema}" does not exist')
    return Membership(publication, _members(named, relations), frozenset(_members(excepted, relations)))


def resolve_all(
    publications: Iterable[Publication],
    relations: Relations,
    *,
    missing_ok: bool = False,
    followed: Collection[Name] = (),
) -> tuple[Membership, ...]:
    """Look several publications' tables up; raises as `resolve` does."""
    return tuple(
        resolve(publication, relations, missing_ok=missing_ok, followed=followed) for publication in publications
    )


def _named(
    tables: Iterable[PublicationTable], relations: Relations, *, missing_ok: bool, followed: Collection[Name]
) -> list[tuple[CatalogRelation, PublicationTable]]:
    named = []
    for table in tables:
        relation = relations.by_name.get((table.namespace, table.name))
        if relation is not None:
            named.append((relation, table))
        elif not missing_ok and (table.namespace, table.name) not in followed:
            _unknown(table, relations)
    return named


def _members(
    named: list[tuple[CatalogRelation, PublicationTable]], relations: Relations
) -> dict[int, PublicationTable]:
    """The named tables and their inheritors, which get the same row filter and column list."""
    members: dict[int, PublicationTable] = {}
    for relation, table in named:
        before = members.get(relation.relid)
        if before is not None:
            _check_twice(table, before, relation)
        else:
            members[relation.relid] = table
        if table.only or relation.relkind == "p":
            continue
        opened = relation  # PostgreSQL's error names the table that it opened last
        for child in relations.inheritors(relation):
            before = members.get(child.relid)
            if before is not None:
                _check_twice(table, before, opened)
            elif child.publishable:
                opened = child
                members[child.relid] = replace(table, namespace=child.namespace, name=child.name)
    return members


def _check_twice(table: PublicationTable, before: PublicationTable, relation: CatalogRelation) -> None:
    if table.row_filter is not None or before.row_filter is not None:
        _refuse(table.place, f'conflicting or redundant WHERE clauses for table "{relation.name}"')
    if table.columns is not None or before.columns is not None:
        _refuse(table.place, f'conflicting or redundant column lists for table "{relation.name}"')


def _check_kind(relation: CatalogRelation, place: str, message: str) -> None:
    if not relation.publishable:
        kind = _NO_TABLE.get(relation.relkind, "unlogged tables" if relation.relpersistence == "u" else "system tables")
        _refuse(place, message, f"This operation is not supported for {kind}.")


def _check_table(publication: Publication, table: PublicationTable, relation: CatalogRelation) -> None:
    if relation.relkind == "p" and not publication.via_root:
        when = "partitioned tables when publish_via_partition_root is false."
        if table.row_filter is not None:
            detail = f"WHERE clause cannot be used for a {when.replace('tables', 'table', 1)}"
            _refuse(table.place, f'cannot use publication WHERE clause for relation "{relation.name}"', detail)
        if table.columns is not None:
            what = f'"{relation.qualified_name}" in publication "{publication.name}"'
            detail = f"Column lists cannot be specified for {when}"
            _refuse(table.place, f"cannot use column list for relation {what}", detail)
    columns = {column.name: column for column in relation.columns}
    for name in table.columns or ():
        if name in _SYSTEM_COLUMNS:
            _refuse(table.place, f'cannot use system column "{name}" in publication column list')
        if name not in columns:
            _refuse(table.place, f'column "{name}" of relation "{relation.name}" does not exist')
        if columns[name].generated == "v":
            _refuse(table.place, f'cannot use virtual generated column "{name}" in publication column list')


def _unknown(table: PublicationTable, relations: Relations) -> NoReturn:
    if table.namespace == "pg_temp" or table.namespace.startswith("pg_temp_"):
        detail = "This operation is not supported for temporary tables."
        _refuse(table.place, f'cannot add relation "{table.name}" to publication', detail)
    if table.namespace not in relations.schemas:
        _refuse(table.place, f'schema "{table.namespace}" does not exist')
    if table.namespace in {"pg_catalog", "pg_toast", "information_schema"}:
        detail = "This operation is not supported for system tables."
        _refuse(table.place, f'cannot add relation "{table.name}" to publication', detail)
    _refuse(table.place, f'relation "{table.qualified_name}" does not exist')


def _refuse(place: str, message: str, detail: str = "") -> NoReturn:
    detail = f"\nDETAIL:  {detail}" if detail else ""
    raise PublicationError(f"{place}{message}{detail}")
