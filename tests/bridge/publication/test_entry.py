"""How the changes of one table are published."""

from __future__ import annotations

import pytest

from bridge.runtime.errors import PublicationError
from tests.bridge.publication.server_publications import (
    PARTITIONS,
    entry_of,
    tables_of,
)


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
