"""The COPY statement of a range, with the table's row filters and column list."""

from __future__ import annotations

import pytest

from bridge.publication.published_table import PublishedColumn, PublishedTable
from bridge.sync.block_ranges import BlockRange
from bridge.sync.copy_statement import copy_select, copy_statement
from protocol.values.types import BUILTIN

A = PublishedColumn("a", 23, -1, in_primary_key=True, in_replica_identity_index=False)
POINT = PublishedColumn('p"q', 600, -1, in_primary_key=False, in_replica_identity_index=False)


def table(relkind="r", columns=(A,), row_filters=()):
    return PublishedTable(1, "public", "My t", relkind, "d", tuple(columns), tuple(row_filters))


@pytest.mark.parametrize(
    ("published", "blocks", "statement"),
    [
        (table(), BlockRange(), 'SELECT "a" FROM ONLY "public"."My t"'),
        (table("p"), BlockRange(), 'SELECT "a" FROM "public"."My t"'),
        (
            table(row_filters=["(a > 1)", "(a < 0)"]),
            BlockRange(),
            'SELECT "a" FROM ONLY "public"."My t" WHERE ((a > 1)) OR ((a < 0))',
        ),
        (
            table(row_filters=["(a > 1)", "(a < 0)"]),
            BlockRange(7, 9),
            (
                """SELECT "a" FROM ONLY "public"."My t" WHERE (((a > 1)) OR ((a < 0))) """
                """AND ctid >= '(7,0)'::tid AND ctid < '(9,0)'::tid"""
            ),
        ),
    ],
)
def test_copy_statement(published, blocks, statement):
    found = copy_statement(copy_select(published, BUILTIN), published.row_filters, blocks)
    assert found == f"COPY ({statement}) TO STDOUT (FORMAT binary)"


def test_types_without_a_binary_reader_are_copied_as_text():
    assert 'pg_catalog.concat("p""q")' in copy_select(table(columns=[POINT]), BUILTIN)
