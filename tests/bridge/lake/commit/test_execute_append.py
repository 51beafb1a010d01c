"""Appends to tables with a key of one integer: those of a sequence are not looked for, and no duplicate comes in."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from pgbridge.bridge.lake import location, writes
from pgbridge.bridge.lake.commit_errors import conflict_of
from pgbridge.bridge.lake.transaction import Transaction
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, is_concurrent
from pgbridge.bridge.spark.session import fork
from tests.bridge.lake.commit.made_commits import BIGINT, NAMES, Commits, changes, delete, insert, nothing_known, update

KEY = f"`{NAMES[0]}`"
ROWS = [(number, "old", 0) for number in (1, 2, 5)]


@pytest.fixture
def by(spark, tmp_path, monkeypatch):
    """Commits; `looked` notes whether they read the table."""
    return Commits(spark, tmp_path, "joined", monkeypatch)


@pytest.fixture
def looked(monkeypatch):
    paths, read_table = [], location.read_table

    def noted(spark, path, **kwargs):
        paths.append(path)
        return read_table(spark, path, **kwargs)

    monkeypatch.setattr(location, "read_table", noted)
    return paths


def keys(by, made):
    return [row[0] for row in by.content(made)]


def test_keys_of_a_sequence_are_not_looked_for(by, looked):
    made = by.table(ROWS, key=BIGINT, files=3)
    for number in range(3):
        by.apply(changes(made, insert(10 + 2 * number, "new"), insert(11 + 2 * number, "new")))
    by.known = nothing_known()  # as after a restart
    by.apply(changes(made, insert(100, "new")))
    by.apply(changes(made, insert(101, "new")))
    assert looked == []
    by.apply(changes(made, insert(50, "late"), insert(102, "new")))  # commits need not be in a sequence's order
    by.apply(changes(made, insert(103, "new")))
    assert looked == [made.path]
    assert keys(by, made) == [1, 2, 5, *range(10, 16), 50, *range(100, 104)]
    assert {carried.way for carried in by.carried} == {"appended"}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("rows", [[insert(5, "again")], [insert(4, "new"), insert(2, "again"), insert(9, "new")]])
def test_a_key_that_is_there_is_a_conflict(by, known, rows):
    made = by.table(ROWS, key=BIGINT)
    if known:
        by.apply(changes(made, insert(6, "new")))
    before = keys(by, made)
    with pytest.raises(SPARK_ERRORS) as caught:
        by.apply(changes(made, *rows))
    conflict = conflict_of(caught.value)
    assert conflict is not None
    assert conflict.name == "insert_exists"
    assert keys(by, made) == before


def test_a_row_that_begins_and_ends_must_not_be_there_either(by, looked):
    made = by.table(ROWS, key=BIGINT)
    by.apply(changes(made, insert(7, "new"), insert(8, "short"), delete(8)))
    assert looked == []
    with pytest.raises(SPARK_ERRORS):
        by.apply(changes(made, insert(9, "new"), insert(5, "short"), delete(5)))
    assert keys(by, made) == [1, 2, 5, 7]


def test_what_others_commit_is_known(by, looked):
    """Another writer's rows, an UPDATE of ours, an OPTIMIZE, a RESTORE."""
    made = by.table(ROWS, key=BIGINT)
    by.apply(changes(made, insert(6, "new")))
    by.spark.sql(f"INSERT INTO delta.`{made.path}` VALUES (40, 'theirs', 1)").collect()
    with pytest.raises(SPARK_ERRORS):
        by.apply(changes(made, insert(40, "ours")))
    assert looked == [made.path]
    by.apply(changes(made, insert(41, "ours")))
    by.apply(changes(made, update(41, "changed")))
    by.apply(changes(made, insert(42, "ours")))
    by.spark.sql(f"OPTIMIZE delta.`{made.path}`").collect()
    by.apply(changes(made, insert(43, "ours")))
    by.spark.sql(f"RESTORE delta.`{made.path}` TO VERSION AS OF 1").collect()
    looked.clear()
    by.apply(changes(made, insert(6, "again"), insert(7, "again")))
    assert keys(by, made) == [1, 2, 5, 6, 7]


def test_what_another_writer_appends_meanwhile_makes_it_fail(by, looked, monkeypatch):
    """Its rows may have the same keys."""
    made = by.table(ROWS, key=BIGINT)
    append, other = Transaction.append, fork(by.spark)

    def between(begun, rows, *args):
        monkeypatch.setattr(Transaction, "append", append)
        with ThreadPoolExecutor() as pool:  # the transaction is this thread's
            insert_theirs = f"INSERT INTO delta.`{made.path}` VALUES (6, 'theirs', 1)"
            pool.submit(lambda: other.sql(insert_theirs).collect()).result()
        return append(begun, rows, *args)

    monkeypatch.setattr(Transaction, "append", between)
    with pytest.raises(SPARK_ERRORS) as caught:
        by.apply(changes(made, insert(6, "ours")))
    assert is_concurrent(caught.value)
    assert looked == []
    assert keys(by, made) == [1, 2, 5, 6]
    with pytest.raises(SPARK_ERRORS) as caught:
        by.apply(changes(made, insert(6, "ours")))
    assert conflict_of(caught.value) is not None


def test_without_statistics_keys_are_looked_for(by, looked):
    made = by.table(ROWS, key=BIGINT)
    by.spark.sql(
        f"ALTER TABLE delta.`{made.path}` SET TBLPROPERTIES ('delta.dataSkippingStatsColumns' = 'n')"
    ).collect()
    writes.append_rows(by.spark.createDataFrame([(9, "old", 0)], f"{KEY} long, begins string, n long"), made.path)
    for number in range(2):
        by.apply(changes(made, insert(10 + number, "new")))
    assert looked == [made.path] * 2
    with pytest.raises(SPARK_ERRORS):
        by.apply(changes(made, insert(9, "again")))
    assert keys(by, made) == [1, 2, 5, 9, 10, 11]


@pytest.mark.parametrize("seed", range(2))
def test_random_keys_come_in_once(by, seed):
    """Some of a sequence, some that are there already; restarts and other writers between."""
    chance = random.Random(seed)
    made, there, top = by.table(ROWS, key=BIGINT), {1, 2, 5}, 5
    for _ in range(12):
        if chance.random() < 0.2:
            by.known = nothing_known()
        if chance.random() < 0.2:
            by.spark.sql(f"INSERT INTO delta.`{made.path}` VALUES ({top + 3}, 'theirs', 1)").collect()
            there.add(top + 3)
            top += 3
        new = {chance.choice((top + 1 + n, chance.randrange(-5, top + 1))) for n in range(2)}
        changed = changes(made, *(insert(key, "x") for key in sorted(new)))
        if new & there:
            with pytest.raises(SPARK_ERRORS):
                by.apply(changed)
        else:
            by.apply(changed)
            there |= new
            top = max(top, *new)
    assert keys(by, made) == sorted(there)


def test_another_column_may_become_the_key(by, looked):
    """By an ALTER TABLE on the server, without a commit to the table."""
    made = by.table([(1, "old", 500), (2, "old", 50)], key=BIGINT)
    by.apply(changes(made, insert(3, "new", 7)))
    by.apply(changes(made, insert(4, "new", 501), key=(2,)))
    with pytest.raises(SPARK_ERRORS) as caught:
        by.apply(changes(made, insert(9, "again", 50), key=(2,)))
    assert conflict_of(caught.value) is not None
    assert looked == [made.path]
    assert keys(by, made) == [1, 2, 3, 4]
