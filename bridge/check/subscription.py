"""Looks at one subscription: its server, its slot, its tables and their targets. Reads only.

The other subscriptions of a configuration count, too: what they still need of a server, and what is theirs already.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from pgbridge.bridge.apply.published import unpublished
from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.held import held
from pgbridge.bridge.check.finding import Finding, Level, failed, passed, warning
from pgbridge.bridge.check.known import is_enabled
from pgbridge.bridge.check.lake import check_target
from pgbridge.bridge.check.server import Expected, Needs, check_server, check_slot_state
from pgbridge.bridge.check.tables import check_sequences, check_tables
from pgbridge.bridge.lake.changes.verdicts import EntryFilterCompiler
from pgbridge.bridge.lake.forms import check_new_table
from pgbridge.bridge.lake.log.local_log import local_folder, real_location
from pgbridge.bridge.publication.definitions import load_optional
from pgbridge.bridge.publication.published_table import check_shape
from pgbridge.bridge.receive import publications
from pgbridge.bridge.receive.connection import stream_name
from pgbridge.bridge.receive.filter_server import FilterServer
from pgbridge.bridge.receive.publisher import Publisher, missing_message, quoted_name
from pgbridge.bridge.receive.server_facts import ServerFacts, identify, read_facts, read_privileges
from pgbridge.bridge.receive.slot import refused_by
from pgbridge.bridge.receive.stream.pgoutput_options import pgoutput_options
from pgbridge.bridge.runtime import errors, remedies
from pgbridge.bridge.runtime.warehouse import unsupported_name
from pgbridge.bridge.sync import made_tables, start
from pgbridge.bridge.sync.catalog_look import CatalogLook
from pgbridge.bridge.targets.location import table_location
from pgbridge.protocol.values.types import Place, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pgbridge.bridge.catalog.catalog_rows import RelRow
    from pgbridge.bridge.check.known import Known
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.publication.reapply import Applied
    from pgbridge.protocol.values.pg_type import TypeInfo

_DEFINITIONS = "publication_definitions"
_TEXT_OIDS = frozenset({18, 19, 25, 1042, 1043})  # "char", name, text, bpchar, varchar


def check_subscription(subscription: Subscription, known: Known, others: Needs | None = None) -> Iterator[Finding]:
    """Look at a subscription. The first failure of the connection ends it: nothing else can be known then.

    Args:
        known: What the state directory knows.
        others: What other subscriptions still need of the same server; None for nothing.
    """
    application_name = f"{subscription.name}_check"
    try:
        facts = read_facts(subscription.connection, application_name=application_name)
    except errors.BridgeError as error:
        yield failed("connection", error)
        return
    yield passed("connection", f'database "{facts.database}" as role "{facts.role}"')
    try:
        with Publisher(subscription.connection, application_name=application_name, any_wal_level=True) as publisher:
            yield from _with_publisher(subscription, known, facts, publisher, others or Needs())
    except errors.PublisherError as error:
        findings = check_server(
            facts,
            slot_exists=False,
            running=False,
            name=subscription.name,
            alert_bytes=subscription.alerts.retained_bytes,
        )
        yield from findings
        if all(finding.level is not Level.FAILURE for finding in findings):  # its version is not the reason
            yield failed("connection", error)


def _with_publisher(
    subscription: Subscription, known: Known, facts: ServerFacts, publisher: Publisher, others: Needs
) -> Iterator[Finding]:
    status = publisher.slot(subscription.slot_name)
    expected = _expected(subscription, known)  # read after the slot: it may just have begun to stream
    streams = expected.streams and status is not None and status.active
    yield from check_server(
        facts,
        slot_exists=status is not None,
        running=streams,
        others=others,
        name=stream_name(subscription.connection, subscription.name),
        unrepresentable=subscription.unrepresentable,
        alert_bytes=subscription.alerts.retained_bytes,
    )
    if facts.senders < int(facts.settings["max_wal_senders"]):
        yield _replication(subscription, known)
    yield from check_slot_state(status, expected, database=facts.database)
    try:
        pgoutput_options(subscription, publisher.version, binary_readable=True)
    except errors.BridgeError as error:
        yield failed("options", error)
    try:
        with publisher.snapshot():
            yield from _publications(subscription, known, facts, publisher)
    except errors.BridgeError as error:
        yield failed("publications", error)


def _expected(subscription: Subscription, known: Known) -> Expected:
    catalog, name = known.catalog, subscription.name
    row = catalog.subscription(name) if catalog is not None else None
    return Expected(
        name,
        subscription.slot_name,
        subscription.create_slot,
        catalog.remote_lsn(name) if catalog is not None else None,
        row is not None and (row.slot_name, row.slot_state) == (subscription.slot_name, "creating"),
        # one that was disabled streams until its batch under way has ended; one that begins, before it says so
        known.running and row is not None and row.state in {"starting", "copying", "streaming"},
    )


def _replication(subscription: Subscription, known: Known) -> Finding:
    """Open a WAL sender: only that tells whether role and pg_hba.conf allow it, on managed servers too."""
    try:
        server = identify(subscription.connection, application_name=f"{subscription.name}_check")
        positions = held(known.catalog, subscription.name) if known.catalog is not None else None
        if positions is not None and (refused := refused_by(positions, server, subscription.name)) is not None:
            raise refused
        if is_enabled(subscription, known.catalog):
            slot_name = subscription.slot_name
            owner = known.owners.of_slot(server.system_identifier, slot_name, subscription.name, known.catalog)
            if owner is not None:
                return failed("replication slot", start.shared_slot(slot_name, owner))
    except errors.PublisherError as error:
        return failed("replication", error)
    return passed("replication", f"the role may stream; system identifier {server.system_identifier}")


def _publications(
    subscription: Subscription, known: Known, facts: ServerFacts, publisher: Publisher
) -> Iterator[Finding]:
    if missing := publisher.missing(subscription.publications):  # an error before PostgreSQL 18
        yield warning(
            "publications",
            missing_message(missing),
            remedy="create it in the database of the connection",
            statement=f"CREATE PUBLICATION {quoted_name(missing[0])} FOR TABLE …;",
        )
    definitions = load_optional(subscription.publication_definitions)
    names = subscription.publications
    try:
        applied = publications.apply_publications(
            publisher, names, definitions, followed=known.tables(subscription.name).keys()
        )
    except errors.PublicationError as error:
        yield failed(_DEFINITIONS if definitions is not None else "publications", error)
        if definitions is None:
            return
        applied = publications.apply_publications(publisher, names, definitions, missing_ok=True)
    types = publisher.types({column.type_oid for table in applied.stream.tables() for column in table.columns})
    if definitions is not None:
        yield from _definitions(subscription, applied, types)
    yield from (passed("sequences", note) for note in applied.sequences)
    tables = applied.routing.tables() if definitions is not None else publisher.tables(names)
    tables = [table.shaped(subscription.shape_of(table.qualified_name)) for table in tables]
    if (unknown := unpublished(subscription, tables, publisher)) is not None:
        begun = known.catalog is not None and known.catalog.remote_lsn(subscription.name) is not None
        finding = failed("tables", unknown)
        yield replace(finding, level=Level.WARNING) if begun else finding
    if not tables:
        if not missing:
            yield _nothing(subscription, applied)
        return
    yield passed("publications", f"{len(tables)} tables are published")
    yield from check_tables(
        tables,
        read_privileges(publisher.connection, [table.relid for table in tables]),
        {table.qualified_name: _as_text(subscription, table, types) for table in tables},
        role=facts.role,
        copied=subscription.copy_data,
        place_of=partial(_place_of_new, subscription, known.tables(subscription.name)),
        sent=_changing(tables if definitions is None else applied.stream.tables(), applied),
    )
    yield from _sequences(subscription, publisher, tables, facts.role)
    yield from _targets(subscription, known, tables, types)
    for rel in refresh.waiting(known.catalog, subscription.name) if known.catalog is not None else ():
        message, _, hint = (rel.waits or "").partition(errors.HINT)
        yield warning(rel.qualified_name, f"its changes are left out until it is copied afresh: {message}", remedy=hint)
    for difference in CatalogLook(subscription, known.catalog).look(publisher).differences:
        yield warning(".".join(difference.relation), difference.message, remedy=difference.hint)


def _sequences(
    subscription: Subscription, publisher: Publisher, tables: list[PublishedTable], role: str
) -> Iterator[Finding]:
    if subscription.target.sequences_every_s:
        try:
            sequences = publisher.sequences(
                [(table.namespace, table.name) for table in tables], subscription.publications
            )
        except errors.PublisherError as error:
            yield failed("sequences", error)
        else:
            yield from check_sequences(sequences, role)


def _adding_tables(applied: Applied) -> str:
    """The statement that gives one of the server's publications tables; empty if they are for ALL TABLES already."""
    for publication in (member.publication for member in applied.stream.memberships):
        if not publication.all_tables:
            what = "SET ALL TABLES, ALL SEQUENCES" if publication.all_sequences else "ADD TABLE …"
            return f"ALTER PUBLICATION {quoted_name(publication.name)} {what};"
    return ""


def _changing(tables: list[PublishedTable], applied: Applied) -> list[PublishedTable]:
    """The server's tables whose UPDATEs or DELETEs it publishes."""
    entries = applied.stream.targets.values()
    changing = {entry.target.relid for entry in entries if entry.actions & {"update", "delete"}}
    return [table for table in tables if table.relid in changing]


def _nothing(subscription: Subscription, applied: Applied) -> Finding:
    message = "nothing is published to this subscription"
    if (file := subscription.publication_definitions) is not None:
        return warning("publications", message, remedy=f"name tables in {file} that the server publishes")
    return warning(
        "publications",
        message,
        remedy="run on the server; if the subscription has begun, then run: " + remedies.refresh(subscription.name),
        statement=_adding_tables(applied),
    )


def _definitions(subscription: Subscription, applied: Applied, types: dict[int, TypeInfo]) -> Iterator[Finding]:
    """Whether the definitions can be re-applied: the stream has what they need, and every filter can be computed."""
    for gap in applied.gaps:
        yield Finding(
            _DEFINITIONS,
            Level.FAILURE if gap.fatal else Level.WARNING,
            gap.message,
            "change the definitions, or what the server publishes",
        )
    for refusal in applied.refusals:
        yield warning(_DEFINITIONS, refusal.warning, remedy=refusal.hint)
    with FilterServer(subscription) as server:
        compiler = EntryFilterCompiler(
            lambda wanted: [resolve(oid, typmod, types) for oid, typmod in wanted],
            server if subscription.filter_server is not None else None,
            applied.routing.relations.encoding,
        )
        for entry in applied.routing.targets.values():
            try:
                compiler.compile(entry)
            except errors.BridgeError as error:
                yield failed(f"row filter of {entry.target.qualified_name}", error)


def _as_text(subscription: Subscription, table: PublishedTable, types: dict[int, TypeInfo]) -> list[str]:
    """Return the columns that become strings of PostgreSQL's text output."""
    columns = made_tables.new_columns(table, types, subscription.target.parsed)
    strings = [column for column in columns if column.type.arrow == pa.string() and column.type.place is Place.COLUMN]
    return [column.name for column in strings if column.type.base_oid not in _TEXT_OIDS]


def _targets(
    subscription: Subscription, known: Known, tables: list[PublishedTable], types: dict[int, TypeInfo]
) -> Iterator[Finding]:
    """The Delta tables: whether they can be made, belong to no other subscription, and are ones that can be written."""
    rels = known.tables(subscription.name)
    by_path: dict[str, PublishedTable] = {}
    by_place: dict[str, PublishedTable] = {}
    for table, path in _places(subscription, rels, tables):
        by_path.setdefault(path, table)
        other = by_place.setdefault(real_location(path), table)
        if other is not table:
            both = (other.namespace, other.name), (table.namespace, table.name)
            yield failed(table.qualified_name, made_tables.one_place(subscription, path, *both))
    if is_enabled(subscription, known.catalog):
        for path, owner in known.owners.of_tables([*by_path], subscription.name, known.catalog).items():
            yield failed(by_path[path].qualified_name, made_tables.shared_table(path, owner))
    for path, table in by_path.items():
        rel = rels.get((table.namespace, table.name))
        yield from _target(subscription, table, types, path, is_new=rel is None or rel.state == "i")


def _place_of_new(
    subscription: Subscription, rels: Mapping[tuple[str, str], RelRow], namespace: str, name: str
) -> tuple[str, str, str]:
    """Where a table would be; of one that is followed nothing is asked."""
    return ("", namespace, name) if (namespace, name) in rels else subscription.place_of(namespace, name)


def _places(
    subscription: Subscription, rels: Mapping[tuple[str, str], RelRow], tables: Iterable[PublishedTable]
) -> Iterator[tuple[PublishedTable, str]]:
    """Where the Delta tables are, or will be, without those that are left out."""
    for table in tables:
        rel, place = rels.get((table.namespace, table.name)), subscription.place_of(table.namespace, table.name)
        if rel is not None:
            yield table, rel.path
        elif unsupported_name(*place) is None:
            yield table, table_location(*place)


def _target(
    subscription: Subscription, table: PublishedTable, types: dict[int, TypeInfo], path: str, *, is_new: bool
) -> Iterator[Finding]:
    name, folder = table.qualified_name, local_folder(path)
    try:
        check_shape(table, subscription.shape_of(name), is_new=is_new)
    except errors.TargetError as error:
        yield failed(name, error)
        return
    if is_new:
        try:
            columns = made_tables.new_columns(table, types, subscription.target.parsed)
            check_new_table(name, subscription.mode_of(name), subscription.layout_of(name), columns)
        except errors.BridgeError as error:
            yield failed(name, error)
    if folder is None:
        return
    of_rows = subscription.mode_of(name) != "changelog"
    finding = check_target(
        name,
        folder,
        is_new=is_new,
        adopt=subscription.target.adopt,
        copy_data=subscription.copy_data,
        published=[column.target_name for column in table.columns] if of_rows else (),
        keyed=bool(table.primary_key) or table.replica_identity != "f",
    )
    if finding is not None:
        yield finding
