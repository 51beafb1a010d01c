"""Published tables as `Publisher.tables` returns them, and how it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.runtime.errors import PublisherError

if TYPE_CHECKING:
    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.receive.publisher import Publisher


def published(asked: Publisher, *publications: str) -> dict[str, PublishedTable]:
    """The tables by their qualified names, which they are sorted by."""
    tables = asked.tables(publications)
    assert [(t.namespace, t.name) for t in tables] == sorted((t.namespace, t.name) for t in tables)
    return {table.qualified_name: table for table in tables}


def columns(table: PublishedTable) -> list[str]:
    return [column.name for column in table.columns]


def refusal(asked: Publisher, *publications: str) -> PublisherError:
    with pytest.raises(PublisherError) as caught:
        asked.tables(publications)
    return caught.value
