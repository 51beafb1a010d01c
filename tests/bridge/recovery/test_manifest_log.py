"""What commits say of the rows that they append, and when that is enough to know the last ones."""

from __future__ import annotations

import pytest

from pgbridge.bridge.lake.table_position import Entry
from pgbridge.bridge.recovery.manifest_log import GENERATION_BITS, Last, folded, told_since, user_metadata

ONE, TWO = Last(1, "slot"), Last(2, "slot")
CLAIM = Last(1 << GENERATION_BITS, "slot", "host/1")


def entry(version, rows=None, operation="WRITE"):
    return Entry(version, operation, None if rows is None else user_metadata(rows))


@pytest.mark.parametrize(
    ("entries", "known", "told"),
    [
        ([], None, None),
        ([entry(3, {"a": TWO}), entry(2, {"a": ONE})], 1, None),  # they do not go back so far
        ([entry(3, {"a": TWO}), entry(2, {"a": ONE}), entry(1)], 1, (True, [{"a": ONE}, {"a": TWO}])),
        ([entry(1, {"a": ONE}), entry(0, {})], None, (False, [{}, {"a": ONE}])),
        ([entry(1, {"a": ONE}), entry(0, {})], 7, (False, [{}, {"a": ONE}])),
        ([entry(1, {}), entry(0, {})], None, None),  # perhaps somebody else's
        ([entry(2, {"a": TWO}), entry(1, operation="OPTIMIZE"), entry(0, {})], 0, (True, [{}, {"a": TWO}])),
        ([entry(2, {"a": TWO}), entry(1), entry(0, {})], 0, None),  # another writer's, or an earlier pgbridge's
        ([Entry(1, "WRITE", "no JSON"), entry(0)], 0, None),
        ([Entry(1, "WRITE", '{"pgbridge_rows": 3}'), entry(0)], 0, None),
        ([Entry(1, "WRITE", '{"pgbridge_rows": {"a": 3}}'), entry(0)], 0, None),
        ([Entry(1, "WRITE", "[]"), entry(0)], 0, None),
    ],
)
def test_all_commits_since_must_tell(entries, known, told):
    assert told_since(entries, known) == told


def test_the_greatest_number_counts_whichever_commit_came_first():
    assert folded({"a": ONE, "b": ONE}, [{"a": TWO}]) == {"a": TWO, "b": ONE}
    assert folded({"a": TWO}, [{"a": ONE}]) == {"a": TWO}
    late = Last(7, "slot")
    assert folded({}, [{"a": CLAIM}, {"a": late}]) == {"a": CLAIM}, "a document of the generation before"
    after = Last(CLAIM.number + 1, "slot")
    assert folded({}, [{"a": CLAIM}, {"a": after}]) == {"a": after._replace(claimed_by="host/1")}
    assert CLAIM.generation == after.generation == 1
