"""Statistics of a file say that they are of rows that may be deleted, and nothing else of them changes."""

from __future__ import annotations

import json

import pytest

from pgbridge.bridge.lake.deletion_vectors import _with_wide_bounds


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"numRecords":1,"tightBounds":true}', '{"numRecords":1,"tightBounds":false}'),
        ('{"numRecords":1,"tightBounds" : true }', '{"numRecords":1,"tightBounds" : false }'),
        ('{"numRecords":1,"tightBounds":false}', '{"numRecords":1,"tightBounds":false}'),
        ('{"numRecords":1}', '{"numRecords":1,"tightBounds":false}'),
        (
            '{"numRecords":1,"nullCount":{"tightBounds":0}}',
            '{"numRecords":1,"nullCount":{"tightBounds":0},"tightBounds":false}',
        ),
        (
            '{"numRecords":1,"minValues":{"n":12345678901234567890.123456789012345678}}',
            '{"numRecords":1,"minValues":{"n":12345678901234567890.123456789012345678},"tightBounds":false}',
        ),
        (
            '{"numRecords":1,"minValues":{"t":"\\"tightBounds\\":true"},"tightBounds":true}',
            '{"numRecords":1,"minValues":{"t":"\\"tightBounds\\":true"},"tightBounds":false}',
        ),
    ],
)
def test_bounds_become_wide(before, after):
    made = json.loads(_with_wide_bounds(json.dumps({"add": {"path": "f", "size": 7, "stats": before}})))
    assert made == {"add": {"path": "f", "size": 7, "stats": after}}
