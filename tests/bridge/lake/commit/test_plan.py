"""The plan of a commit, as a table: what effects and a table's facts make of it."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from pgbridge.bridge.lake.commit import plan
from pgbridge.bridge.lake.commit.conflicts import KeyedTarget
from pgbridge.bridge.lake.commit.plan import (
    Abilities,
    Append,
    Merge,
    Replace,
    ReplaceAt,
    ReplaceWhere,
    commits,
    fits_broadcast,
    work_of_append,
    work_of_copy,
)
from pgbridge.bridge.lake.table_facts import TableFacts
from pgbridge.bridge.targets.target import TargetColumn
from pgbridge.protocol.values.types import resolve
from tests.bridge.lake.commit.test_merge import COLUMNS, effect_of

KB, MB = 1 << 10, 1 << 20
OURS = {"pgbridge.created": "true"}
VECTORS = OURS | {"delta.enableDeletionVectors": "true"}
HERE = Abilities(transactions=True, places=True, conditions=True)
STORE = dataclasses.replace(HERE, places=False)
CONNECT = Abilities(transactions=False, places=False, conditions=False)
SMALL = TableFacts(1, 100 * KB, OURS)
LARGE = TableFacts(9, 900 * MB, OURS)
LARGE_VECTORS = TableFacts(9, 900 * MB, VECTORS)


def planned(changes, facts, *, overwrite=False, abilities=HERE, columns=COLUMNS, key=(0,)):
    keyed = KeyedTarget("public.t", "/l/t", columns, key, overwrite)
    return list(commits(effect_of(changes), keyed, lambda: facts, abilities))


SAID = {Append: "append", ReplaceAt: "by place", ReplaceWhere: "by key", Replace: "replace", Merge: "merge"}


def ways(*args, **options):
    """The ways' names; of a MERGE its work, too, and of small tables whether they are tiny."""
    names = []
    for commit in planned(*args, **options):
        said = SAID[type(commit)]
        names.append(f"{said} {commit.work}" if isinstance(commit, Merge) else said)
    return names


@pytest.mark.parametrize(
    ("changes", "facts", "expected"),
    [
        ("U1 D2 I3", SMALL, ["replace", "merge tiny"]),
        ("U1 D2 I3", LARGE_VECTORS, ["by place", "by key", "merge large"]),
        ("U1 D2", LARGE_VECTORS, ["by place", "by key", "merge small"]),
        ("U1 D2 I3", LARGE, ["merge large"]),
        ("U1 D2", LARGE, ["merge small"]),
        ("I1 I2 D2", SMALL, ["append"]),
        ("M12", SMALL, ["merge tiny"]),
        ("D1 I1", SMALL, ["merge tiny"]),  # born again: a row that was missing is inserted
        ("U1 D1 I1 U1", LARGE, ["merge large"]),
    ],
)
def test_the_way_follows_from_effects_and_facts(changes, facts, expected):
    assert ways(changes, facts) == expected


@pytest.mark.parametrize(
    "facts",
    [
        TableFacts(3, 100 * KB, OURS),
        TableFacts(1, 65 * MB, OURS),
        TableFacts(1, 100 * KB, OURS, partitioned=True),
        TableFacts(1, 100 * KB, OURS, clustered=True),
        TableFacts(1, 100 * KB, {}),
        TableFacts(1, 100 * KB, OURS | {"delta.enableChangeDataFeed": "true"}),
        TableFacts(1, 100 * KB, OURS | {"delta.enableRowTracking": "true"}),
        TableFacts(1, 100 * KB, OURS | {"delta.enableDeletionVectors": "false"}),
    ],
)
def test_another_table_is_merged_into(facts):
    assert [type(commit) for commit in planned("U1 D2", facts)] == [Merge]


@pytest.mark.parametrize(
    "properties",
    [
        VECTORS | {"delta.enableChangeDataFeed": "true"},
        VECTORS | {"delta.enableDeletionVectors": "false"},
        VECTORS | {"pgbridge.created": "no"},
        VECTORS | {"delta.enableRowTracking": "true"},
    ],
)
def test_a_large_table_with_other_properties_is_merged_into(properties):
    assert ways("U1", TableFacts(9, 900 * MB, properties)) == ["merge small"]


def test_where_spark_is_elsewhere_rows_are_merged():
    assert ways("U1", SMALL, abilities=CONNECT) == ["merge tiny"]
    assert ways("U1", LARGE_VECTORS, abilities=CONNECT) == ["merge small"]


def test_on_a_store_no_places_are_kept():
    assert ways("U1", SMALL, abilities=STORE) == ["replace", "merge tiny"]
    assert ways("U1", LARGE_VECTORS, abilities=STORE) == ["by key", "merge small"]


def test_rows_that_overwrite_others_are_merged():
    assert ways("I1", SMALL, overwrite=True) == ["merge tiny"]
    assert ways("U1", SMALL, overwrite=True) == ["replace", "merge tiny"]


def test_many_keys_or_long_ones_and_keys_of_several_columns_have_no_condition(monkeypatch):
    both = (*COLUMNS[:1], TargetColumn("other", resolve(20, -1)))
    assert ways("U1 U2", LARGE_VECTORS) == ["by place", "by key", "merge small"]
    effect = effect_of("U1")
    two = dataclasses.replace(effect, table=effect.table.append_column("match_1", effect.table["match_0"]))
    keyed = KeyedTarget("public.t", "/l/t", both, (0, 1))
    assert [type(commit) for commit in commits(two, keyed, lambda: LARGE_VECTORS, HERE)] == [Merge]
    monkeypatch.setattr(plan, "MOST_KEY_BYTES", 8)
    assert ways("U1 U2", LARGE_VECTORS) == ["by place", "merge small"]
    monkeypatch.undo()
    monkeypatch.setattr(plan, "MOST_KEYS", 1)
    assert ways("U1 U2", LARGE_VECTORS) == ["by place", "merge small"]


def test_the_condition_has_all_keys():
    _, where, _ = planned("U1 D2 I3", LARGE_VECTORS)
    assert isinstance(where, ReplaceWhere)
    assert where.condition.endswith("`id` IN (1L, 2L, 3L)")


def test_a_merge_into_many_files_names_the_ranges():
    assert [commit.ranges for commit in planned("U1", LARGE) if isinstance(commit, Merge)] == [True]
    assert [commit.ranges for commit in planned("U1", SMALL) if isinstance(commit, Merge)] == [False]


def test_tiny_is_of_rows_and_bytes():
    replaces = [planned("U1", TableFacts(1, size, OURS))[0] for size in (256 * KB, 257 * KB)]
    assert replaces == [Replace(tiny=True), Replace(tiny=False)]


def test_facts_are_not_asked_for_an_append():
    keyed = KeyedTarget("public.t", "/l/t", COLUMNS, (0,))
    assert list(commits(effect_of("I1"), keyed, lambda: pytest.fail("asked"), HERE)) == [Append("tiny")]


def test_only_large_tables_of_ours_that_nobody_decided_on_want_vectors():
    assert plan.wants_vectors(LARGE, places=False)
    for facts in (SMALL, LARGE_VECTORS, TableFacts(9, 900 * MB, {})):
        assert not plan.wants_vectors(facts, places=False)
        assert not plan.wants_vectors(facts, places=True)


def test_where_rows_have_places_tables_of_megabytes_want_vectors():
    middle = TableFacts(1, 3 * MB, OURS)
    assert plan.wants_vectors(middle, places=True)
    assert not plan.wants_vectors(middle, places=False)


@pytest.mark.parametrize(
    "facts",
    [
        TableFacts(1, 3 * MB, OURS, partitioned=True),
        TableFacts(1, 3 * MB, OURS | {"delta.enableChangeDataFeed": "true"}),
        TableFacts(1, 3 * MB, OURS | {"delta.compatibility.symlinkFormatManifest.enabled": "true"}),
    ],
)
def test_tables_that_cannot_go_by_places_want_none_for_it(facts):
    assert not plan.wants_vectors(facts, places=True)


def test_rows_are_broadcast_by_their_number_and_their_bytes():
    """Three rows of megabytes would be held several times by Spark, all of them at once."""
    small = pa.table({"v": ["x"] * 10})
    assert fits_broadcast(small)
    assert not fits_broadcast(small, 9)
    assert not fits_broadcast(pa.table({"v": ["x" * (5 * MB)] * 3}))
    assert not planned_simple("x" * (5 * MB))
    assert planned_simple("x")


def planned_simple(value):
    """Whether a small table is replaced by effects of such a value."""
    effect = effect_of("U1")
    columns = effect.table.set_column(effect.table.column_names.index("new_1"), "new_1", pa.array([value]))
    keyed = KeyedTarget("public.t", "/l/t", COLUMNS, (0,))
    found = commits(dataclasses.replace(effect, table=columns), keyed, lambda: SMALL, HERE)
    return any(isinstance(commit, Replace) for commit in found)


def test_work_follows_the_number_of_rows():
    assert [work_of_append(rows) for rows in (1, 2_500, 2_501, 50_000, 50_001)] == [
        "tiny",
        "tiny",
        "small",
        "small",
        "large",
    ]


def test_work_follows_the_size_of_a_table():
    assert [work_of_copy(size_bytes) for size_bytes in (0, 500_000, 600_000, 10_000_000, 11_000_000)] == [
        "tiny",
        "tiny",
        "small",
        "small",
        "copy",
    ]
