"""A published table's keys: whole, or none.

How the changes of one table are published.
"""

from __future__ import annotations

import pytest

from pgbridge.bridge.publication.published_table import PublishedColumn, PublishedTable, not_masked
from pgbridge.bridge.publication.shape import Mask, Shape
from pgbridge.bridge.runtime.errors import PublicationError
from tests.bridge.publication.server_publications import PARTITIONS, entry_of, tables_of


def column(name: str, *, primary: bool = False, index: bool = False) -> PublishedColumn:
    return PublishedColumn(name, 23, -1, in_primary_key=primary, in_replica_identity_index=index)


def table(identity: str, *columns: PublishedColumn, unpublished: tuple[PublishedColumn, ...] = ()) -> PublishedTable:
    return PublishedTable(16384, "public", "t", "r", identity, columns, (), unpublished)


ID, SITE, CODE = column("id", primary=True), column("site", primary=True, index=True), column("code", index=True)


def test_keys_that_are_published():
    found = table("d", ID, SITE, CODE, column("note"))
    assert found.qualified_name == "public.t"
    assert (found.primary_key, found.index_columns) == (("id", "site"), ("site", "code"))
    assert (found.has_identity, found.cut_identity) == (True, frozenset())


@pytest.mark.parametrize(
    ("identity", "has_identity", "cut_identity"),
    [("d", False, {"id", "site"}), ("i", True, set()), ("f", True, set()), ("n", False, set())],
)
def test_primary_key_that_is_published_in_part(identity, has_identity, cut_identity):
    """A part of it identifies no row; the replica identity may be another."""
    found = table(identity, SITE, CODE, unpublished=(ID,))
    assert found.primary_key == ()
    assert (found.has_identity, found.cut_identity) == (has_identity, cut_identity)


def test_index_that_is_published_in_part():
    found = table("i", ID, SITE, unpublished=(CODE,))
    assert (found.primary_key, found.index_columns) == (("id", "site"), ())
    assert (found.has_identity, found.cut_identity) == (False, frozenset({"site", "code"}))


def test_no_key():
    found = table("d", column("note"))
    assert (found.primary_key, found.has_identity, found.cut_identity) == ((), False, frozenset())


def test_names_in_a_mask_that_no_column_has():
    """One that the table had when it was copied may be gone by now."""
    shape = Shape(dict.fromkeys(("note", "emial", "gone"), Mask("null")))
    before = Shape({"gone": Mask("null")}).description
    assert not_masked(table("d", ID, column("note")), shape, before) == ["emial"]


def test_attributes_are_matched_by_name(publisher):
    """The leaf has them in another order, with a dropped one among them."""
    publisher.execute(PARTITIONS)
    routed = tables_of(publisher, "CREATE PUBLICATION p FOR TABLE root (b, a) WITH (publish_via_partition_root)", "p")
    entry = entry_of(routed, "low")
    assert entry.via_root
    assert entry.column_names == ("a", "b")
    assert entry.projection([column.name for column in entry.source.columns]) == (2, 1)
    with pytest.raises(PublicationError, match='does not carry column "b" of table "public.low"'):
        entry.projection(["a", "c"])
