"""A batch knows which columns row filters look at, and whether there are any."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bridge.apply.batch.row_filters import RowFilters


@dataclass(frozen=True)
class Filter:
    """A row filter that looks at these columns."""

    columns: frozenset[str]

    def to_spark(self, resolve):
        raise NotImplementedError


A, B = Filter(frozenset({"id", "a"})), Filter(frozenset({"b"}))


@pytest.mark.parametrize(
    ("filters", "columns"),
    [
        (RowFilters(), set()),
        (RowFilters(insert=A), {"id", "a"}),
        (RowFilters(delete=B), {"b"}),
        (RowFilters(A, B, B), {"id", "a", "b"}),
    ],
)
def test_the_columns_of_all_actions_filters(filters, columns):
    assert filters.columns == columns
    assert bool(filters) is bool(columns)
