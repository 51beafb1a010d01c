"""The contract of a commit to a keyed table, which each way to commit keeps; what it cannot do is left to a MERGE."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from pgbridge.bridge.lake import writes
from pgbridge.bridge.lake.commit import execute, key_condition, replace as replacing
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.lake.transaction import Transaction
from pgbridge.bridge.spark.outcome import is_concurrent
from pgbridge.bridge.spark.session import fork
from pgbridge.protocol.lsn import Lsn
from tests.bridge.lake.commit.made_commits import (
    BIGINT,
    NAMES,
    ROWS,
    TEXT,
    WAYS,
    Commits,
    changes,
    delete,
    insert,
    move,
    update,
)

HOSTILE = ["", "'", "\\", "a\\'b", "$x", "${x}", "line\nbreak", "ä€😀", "%", "` OR true", "Z" * 50, " a", "a "]


@pytest.fixture(params=WAYS)
def by(request, spark, tmp_path, monkeypatch):
    """Commits by each way in turn."""
    monkeypatch.setattr(key_condition, "LIST_VALUES", 2)  # few keys need a tree of lists
    return Commits(spark, tmp_path, request.param, monkeypatch)


def test_rows_change_end_and_begin(by):
    made = by.table([(text, text, i) for i, text in enumerate(HOSTILE)])
    rows = (
        *(update(text, "new", -1) for text in HOSTILE[:9]),
        *(delete(text) for text in HOSTILE[9:11]),
        insert("another", "n"),
        insert("brief", "b"),
        delete("brief"),
    )
    assert by.apply(changes(made, *rows)) == []
    kept = [(text, text, i) for i, text in enumerate(HOSTILE)][11:]
    assert by.content(made) == sorted([*((text, "new", -1) for text in HOSTILE[:9]), *kept, ("another", "n", 0)])
    by.went("made")
    by.apply(changes(made, *(delete(row[0]) for row in by.content(made))))
    assert by.content(made) == []
    by.went("made")


def test_an_unchanged_value_stays(by):
    made = by.table()
    changed = changes(made, update("a", None, 10), update("b", "new", 20), update("c", None, 30), insert("e", None, 5))
    marked = changed.changes.append_column("unchanged_1", pa.array([True, False, True, False]))
    by.apply(replace(changed, changes=marked))
    assert by.content(made) == [("a", "old", 10), ("b", "new", 20), ("c", None, 30), ("e", None, 5)]
    if by.way == "by place":  # nothing of the table is read
        assert [carried.way for carried in by.carried] == ["merged"]
    else:
        by.went("made")


def test_missing_rows_are_counted_once_each_and_change_nothing(by):
    made = by.table()
    rows = update("missing", "x"), update("missing", "y"), delete("neither"), update("a", "x")
    counted = {"insert_exists": 0, "update_exists": 0, "update_missing": 2, "delete_missing": 1}
    assert [{name: one[name] for name in one} for one in by.apply(changes(made, *rows))] == [
        {name: number for name, number in counted.items() if number}
    ]
    assert by.content(made) == [("a", "x", 0), *ROWS[1:]]
    by.went("refused" if by.way == "by key" else "made")


def test_a_row_in_the_way_is_a_conflict_even_if_it_ends(by):
    """And though another one is missing: they would make up for each other in a count."""
    made = by.table()
    for rows in ([update("missing", "x"), insert("a", "x")], [update("b", "new"), insert("a", "x"), delete("a")]):
        with pytest.raises(Exception, match="insert_exists"):
            by.apply(changes(made, *rows))
    assert by.content(made) == list(ROWS)


def test_a_key_that_is_there_twice_does_not_make_up_for_a_missing_row(by):
    made = by.table([("a", "old", 1), ("a", "too", 2), ("b", "old", 3)])
    assert by.apply(changes(made, update("a", "new"))) == []
    assert by.apply(changes(made, update("a", "newer"), delete("missing"))) == [{"delete_missing": 1}]
    assert by.content(made) == [("a", "newer", 0), ("a", "newer", 0), ("b", "old", 3)]


def test_values_of_another_column_stay(by):
    made = by.table()
    by.spark.sql(f"ALTER TABLE delta.`{made.path}` ADD COLUMN theirs string").collect()
    by.spark.sql(f"UPDATE delta.`{made.path}` SET theirs = 'kept'").collect()
    by.apply(changes(made, update("a", "new")))
    assert by.content(made)[0] == ("a", "new", 0, "kept")
    by.went("made" if by.way == "merged" else "refused")


def test_the_batch_is_committed_once(by):
    """Delta leaves it out the second time, and the query that would count rows is never run."""
    made, session = by.table(), fork(by.spark)
    rows, versions = (update("a", "new"), update("b", "new", 1), update("missing", "x")), []
    for number in range(2):
        with stamped(session, CommitStamp("app", Lsn(1), Lsn(2))):
            counted = by.apply(changes(made, *rows[: 2 if by.way == "by key" else 3]), session)
        assert counted == ([{"update_missing": 1}] if number == 0 and by.way != "by key" else [])
        versions.append(table_version(by.spark, made.path))
    assert versions[0] == versions[1]
    assert by.content(made) == [("a", "new", 0), ("b", "new", 1), ROWS[2]]


def test_what_another_writer_changes_before_the_commit_begins_is_seen(by, monkeypatch):
    """As by PostgreSQL, which does not bring a missing row back either."""
    made = by.table()
    carried_out, waiting = execute._carried_out, list[str]()

    def theirs(*args):
        while waiting:
            by.spark.sql(waiting.pop().format(f"delta.`{made.path}`")).collect()
        return carried_out(*args)

    monkeypatch.setattr(execute, "_carried_out", theirs)
    changed = changes(made, update("a", "new"), insert("d", "ours"))
    waiting.append("INSERT INTO {} VALUES ('d', 'theirs', 3)")
    with pytest.raises(Exception, match="insert_exists"):
        by.apply(changed)
    waiting += [f"DELETE FROM {{}} WHERE `{NAMES[0]}` IN ('a', 'd')"]
    assert by.apply(changed) == [{"update_missing": 1}]
    assert by.content(made) == [*ROWS[1:], ("d", "ours", 0)]


def test_what_another_writer_changes_during_the_commit_makes_it_fail(by, monkeypatch):
    """They commit when Delta's transaction has begun: in the worker that computes the rows to write, or reads them."""
    made = by.table()
    version = table_version(by.spark, made.path)
    log = by._folder / "t" / "_delta_log"
    added = [json.loads(line) for line in (log / f"{version:020}.json").read_text(encoding="utf-8").splitlines()]
    path = next(action["add"]["path"] for action in added if "add" in action)
    remove = {"remove": {"path": path, "deletionTimestamp": 1_700_000_000_000, "dataChange": True}}
    entry = log / f"{version + 1:020}.json"

    def theirs(batches):
        entry.write_text(json.dumps(remove) + "\n", encoding="utf-8")
        yield from batches

    def beside(frame):
        return frame.mapInArrow(theirs, frame.schema)

    overwrite_where, merge_into = writes.overwrite_where, writes.merge_into
    overwrite, replace_at = Transaction.overwrite, Transaction.replace_at
    monkeypatch.setattr(replacing, "overwrite_where", lambda rows, *args: overwrite_where(beside(rows), *args))
    monkeypatch.setattr(writes, "merge_into", lambda source, *args: merge_into(beside(source), *args))
    monkeypatch.setattr(Transaction, "overwrite", lambda self, rows: overwrite(self, beside(rows)))
    monkeypatch.setattr(
        Transaction, "replace_at", lambda self, marks, rows, counts: replace_at(self, marks, beside(rows), counts)
    )
    with pytest.raises(Exception, match="DELTA_CONCURRENT") as refused:
        by.apply(changes(made, update("a", "new"), delete("b")))
    assert is_concurrent(refused.value)
    assert table_version(by.spark, made.path) == version + 1


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
def test_random_changes_against_a_table_that_is_not_equal(by, seed):
    """Rows and conflicts are those of changes that are made one by one."""
    chosen = random.Random(seed)
    of_numbers = by.way in {"by place", "by key"} and seed % 2 == 0
    keys = [i - 5 for i in range(12)] if of_numbers else [f"k{i}" for i in range(12)]
    made = by.table([(one, "first", i) for i, one in enumerate(keys[::2])], key=BIGINT if of_numbers else TEXT)
    for _ in range(4):
        model = {row[0]: row for row in by.content(made)}
        begun, there, rows = dict(model), set(model), []
        for number in range(chosen.randrange(2, 9)):
            one, other = chosen.sample(keys, 2)
            if one in there and chosen.random() < 0.3:
                rows.append(delete(one))
                there.discard(one)
            elif one in there and other not in there and chosen.random() < 0.1:
                rows.append(move(one, other))
                there = there - {one} | {other}
            elif one in there or chosen.random() < 0.1:
                rows.append(update(one, chosen.choice(["u", "", None]), number))
            else:
                rows.append(insert(one, f"i{number}", number))
                there.add(one)
        if chosen.random() < 0.2:
            rows.append(insert(chosen.choice([*there, keys[0]]), "in the way"))
        counted, exists = made_one_by_one(model, rows)
        if exists:
            with pytest.raises(Exception, match=r"(insert|update)_exists"):
                by.apply(changes(made, *rows))
            model = begun
        else:
            tally = Counter[str]()
            for one in by.apply(changes(made, *rows)):
                tally.update(one)
            assert +tally == counted
        assert by.content(made) == sorted(model.values())
    assert {carried.way for carried in by.carried} >= {{"kept": "replaced", "joined": "replaced"}.get(by.way, by.way)}


def made_one_by_one(model, rows):
    """Make changes in a model of the table; returns the conflicts, and whether one of them stops the batch."""
    counted = Counter[str]()
    for op, old, key, note, n in rows:
        before = key if old is None else old
        if op == ord("I"):
            if key in model:
                return counted, True
            model[key] = (key, note, n)
        elif before not in model:
            counted["delete_missing" if op == ord("D") else "update_missing"] += 1
        elif op == ord("D"):
            del model[old]
        else:
            if key != before and key in model:
                return counted, True
            del model[before]
            model[key] = (key, note, n)
    return counted, False
