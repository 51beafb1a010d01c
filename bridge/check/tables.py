"""Rules on the published tables: readable, with a key, and such that Delta can hold them. Pure.

Source: the documentation's "Logical Replication Publication" and "Logical Replication Security".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgbridge.bridge.check.finding import Finding, failure, passed, warning
from pgbridge.bridge.publication.published_table import PublishedTable, unsupported_table
from pgbridge.bridge.receive import publisher, server_facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pgbridge.bridge.publication.published_table import PlaceOf

_SHOWN = 10


def check_tables(
    tables: Sequence[PublishedTable],
    privileges: Mapping[int, server_facts.Privileges],
    as_text: Mapping[str, Sequence[str]],
    *,
    role: str,
    sent: Sequence[PublishedTable],
    copied: bool = True,
    place_of: PlaceOf | None = None,
) -> Iterator[Finding]:
    """Look at the tables that a subscription gets.

    Args:
        tables: They.
        privileges: What the role may read, by relid.
        as_text: By qualified name, the columns whose type Delta lacks; they become strings.
        role: The connection's role.
        sent: The tables as the server itself publishes them, those of whose UPDATEs or DELETEs it does.
        copied: Whether the rows are copied (`copy_data`); else only a resync and a verification read them.
        place_of: Where its Delta table would be.
    """
    of_server = {table.relid: table for table in sent}
    for table in tables:
        findings = [
            *_readable(table, privileges.get(table.relid), role, copied=copied),
            *_columns(table, place_of),
            *(_identity(of_server[table.relid]) if table.relid in of_server else ()),
        ]
        yield from findings
        if not findings:
            columns = as_text.get(table.qualified_name, ())
            kept = f"; as strings: {_list(columns)}" if columns else ""
            yield passed(table.qualified_name, f"{len(table.columns)} columns{kept}")


def check_sequences(sequences: Sequence[Mapping[str, Any]], role: str) -> Iterator[Finding]:
    """Look at the sequences whose values are written, as `sql/sequences.sql` has them."""
    for row in sequences:
        name = publisher.quoted_table(row["namespace"], row["name"])
        if not row["readable"]:
            yield warning(
                f"sequence {name}",
                f'role "{role}" lacks SELECT: its value is not written',
                remedy="run on the server",
                statement=f"GRANT SELECT ON SEQUENCE {name} TO {publisher.quoted_name(role)};",
            )
    if all(row["readable"] for row in sequences):
        yield passed("sequences", f"{len(sequences)} can be read")


def _readable(
    table: PublishedTable, privileges: server_facts.Privileges | None, role: str, *, copied: bool
) -> Iterator[Finding]:
    if privileges is None:
        return  # dropped meanwhile
    finding = failure if copied else warning
    needs = "the table cannot be copied" if copied else "without copy_data only a resync and a verification need it"
    readers = "the copy" if copied else "a resync or a verification"
    subject, grantee = table.qualified_name, publisher.quoted_name(role)
    if not privileges.usage:
        yield finding(
            subject,
            f'role "{role}" lacks USAGE on schema "{table.namespace}": {needs}',
            remedy="run on the server",
            statement=f"GRANT USAGE ON SCHEMA {publisher.quoted_name(table.namespace)} TO {grantee};",
        )
    published = {column.name for column in table.columns}
    if lacking := [name for name in privileges.unreadable if name in published]:
        yield finding(
            subject,
            f'role "{role}" lacks SELECT on {_list(lacking)}: {needs}',
            remedy="run on the server",
            statement=f"GRANT SELECT ON {publisher.quoted_table(table.namespace, table.name)} TO {grantee};",
        )
    if privileges.row_security:
        yield finding(
            subject,
            f'row-level security hides rows from role "{role}": {readers} would lack them, and the stream has them',
            remedy="run on the server as a superuser, or connect as the table's owner",
            statement=f"ALTER ROLE {grantee} BYPASSRLS;",
        )


def _columns(table: PublishedTable, place_of: PlaceOf | None) -> Iterator[Finding]:
    why = unsupported_table(table, place_of)
    if why is not None:
        yield warning(table.qualified_name, f"the table is left out: {why.reason}", remedy=why.hint)


def _identity(table: PublishedTable) -> Iterator[Finding]:
    name = publisher.quoted_table(table.namespace, table.name)
    if table.cut_identity:
        yield warning(
            table.qualified_name,
            f"the column list lacks {_list(sorted(table.cut_identity))} of the replica identity: "
            "the server refuses UPDATE and DELETE",
            remedy="publish these columns, too",
        )
    elif not table.has_identity:
        yield warning(
            table.qualified_name,
            "the table has no replica identity: the server refuses its UPDATEs and DELETEs",
            remedy="give it a primary key; or, if it has none, have whole rows logged",
            statement=f"ALTER TABLE {name} ADD PRIMARY KEY (…); -- or: ALTER TABLE {name} REPLICA IDENTITY FULL;",
        )


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f'"{name}"' for name in names[:_SHOWN]) + more
