"""Known columns run ahead with the plans, and go back with a batch that is not applied."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from pgbridge.bridge.catalog.catalog_rows import ColumnRow
from pgbridge.bridge.evolution.alterations import AddColumn
from pgbridge.bridge.evolution.tracker import (
    DefinitionTracker,
    TrackedState,
    copied_columns,
    newly_known,
    value_from_text,
)
from pgbridge.bridge.publication.published_table import PublishedColumn, PublishedTable
from pgbridge.bridge.publication.tables import Attribute
from pgbridge.bridge.runtime.errors import NeedsResync
from pgbridge.bridge.targets.target import Target, target_schema
from pgbridge.protocol.codec.messages import Column, Relation
from pgbridge.protocol.errors import ProtocolError
from pgbridge.protocol.values.types import resolve

INT = 23
TARGET = Target("public", "t", "/lake/public/t", target_schema([("id", pa.int32())]))
KNOWN = (ColumnRow(1, "id", INT, -1),)


class World:
    """What a `DefinitionTracker` reads, and what it warns of."""

    def __init__(self) -> None:
        self.attributes = [Attribute(1, "id", INT, -1), Attribute(2, None, 0, -1)]
        self.warned: list[tuple[str, ...]] = []
        self.tracker = DefinitionTracker(
            "shop",
            known={7: KNOWN},
            attributes=lambda *_: self.attributes,
            types=lambda wanted: [resolve(*item) for item in wanted],
            warn=lambda *words: self.warned.append(words),
        )

    def plan(self, *names: str):
        columns = tuple(Column(name, INT, -1, is_key=name == "id") for name in names)
        relation = Relation(7, "public", "t", "d", columns)
        return self.tracker.plan(relation, [resolve(INT, -1)] * len(names), TARGET, replicated=None, key={"id"})


def test_what_is_planned_counts_from_then_on():
    world = World()
    before = world.tracker.state
    assert world.plan("id", "c").alterations == (AddColumn("c", pa.int32()),)
    assert world.plan("id", "c").alterations == ()
    assert [field.name for field in world.tracker.with_planned_schema(TARGET).schema] == ["id", "c"]
    ((relation, text, remedy),) = world.warned
    assert (relation, remedy) == ("public.t", "pgbridge refresh shop --resync public.t")
    assert text.startswith('existing rows have NULL in the new column "c"')
    assert newly_known(before, world.tracker.state) == {7: (*KNOWN, ColumnRow(2, "c", INT, -1))}
    assert newly_known(world.tracker.state, world.tracker.state) == {}


def test_a_batch_that_is_not_applied_is_forgotten():
    world = World()
    before = world.tracker.state
    world.plan("id", "c")
    world.tracker.restore(before)
    assert world.tracker.state.known == {7: KNOWN}
    assert world.plan("id", "c").alterations == (AddColumn("c", pa.int32()),)


def test_what_cannot_be_followed_names_its_table():
    world = World()
    world.plan("id", "c")
    world.attributes = [Attribute(1, "id", INT, -1), Attribute(2, "c", 25, -1)]
    columns = (Column("id", INT, -1, is_key=True), Column("c", 25, -1, is_key=False))
    with pytest.raises(NeedsResync, match='column "c" of table "public.t" changed its type from') as caught:
        world.tracker.plan(
            Relation(7, "public", "t", "d", columns),
            [resolve(INT, -1), resolve(25, -1)],
            TARGET,
            replicated=None,
            key={"id"},
        )
    assert caught.value.tables == (("public", "t"),)


def test_a_state_of_nothing():
    assert TrackedState() == ({}, {})


def published(*columns):
    made = (
        PublishedColumn(name, oid, typmod, in_primary_key=False, in_replica_identity_index=False)
        for name, oid, typmod in columns
    )
    return PublishedTable(7, "public", "t", "r", "d", tuple(made), ())


def test_a_copied_tables_columns():
    attributes = [
        Attribute(1, "id", INT, -1),
        Attribute(2, None, 0, -1),
        Attribute(3, "own", INT, -1),
        Attribute(4, "c", 25, -1),
    ]
    assert copied_columns(published(("id", INT, -1), ("c", 25, -1)), attributes) == [
        ColumnRow(1, "id", INT, -1, "live"),
        ColumnRow(3, "own", INT, -1, "hidden"),
        ColumnRow(4, "c", 25, -1, "live"),
    ]
    # altered between the two looks at the catalog: the stream will tell
    assert copied_columns(published(("id", INT, -1), ("was", 25, -1)), attributes) == []
    assert copied_columns(published(("id", 20, -1)), attributes) == []


def test_a_column_that_was_added_after_the_definition_was_read_is_not_an_unpublished_one():
    """It is not in the copy: taken for unpublished, its default would never reach the rows that were copied."""
    attributes = [Attribute(1, "id", INT, -1), Attribute(2, "own", INT, -1), Attribute(3, "added", INT, -1)]
    before = replace(published(("id", INT, -1)), last_attnum=2)
    assert copied_columns(before, attributes) == []
    assert len(copied_columns(before, attributes[:2])) == 2
    assert len(copied_columns(replace(before, last_attnum=3), attributes)) == 3


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ((INT, -1), "-7", -7),
        ((25, -1), "", ""),
        ((1700, (10 << 16 | 2) + 4), "1.50", Decimal("1.50")),
        ((1082, -1), "2024-02-29", dt.date(2024, 2, 29)),
        ((1184, -1), "2024-02-29 01:02:03.5+00", dt.datetime(2024, 2, 29, 1, 2, 3, 500000, dt.UTC)),
        ((1007, -1), "{1,NULL}", [1, None]),
        ((17, -1), "\\x00ff", b"\x00\xff"),
        ((16, -1), "t", True),
    ],
)
def test_values_from_their_text(type_, text, value):
    assert value_from_text(resolve(*type_), text.encode()).as_py() == value


def test_a_value_that_is_none():
    with pytest.raises(ProtocolError):
        value_from_text(resolve(INT, -1), b"seven")
