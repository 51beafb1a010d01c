"""A MERGE has the clauses that the effects need, and its source the columns that the clauses use.

It tells what it did, and nothing where the table has the batch.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgbridge.bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, UPDATE
from pgbridge.bridge.effects.net_effect import NetEffect, net_effect
from pgbridge.bridge.lake.commit.conflicts import KeyedTarget
from pgbridge.bridge.lake.commit.merge import Clauses, leaving_clause, left_none
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.lake.source import as_frame
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.lake.transaction import MergeCounts
from pgbridge.bridge.lake.writes import merge_into, version_before_merge
from pgbridge.bridge.spark.session import fork
from pgbridge.bridge.targets.target import TargetColumn
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.types import resolve

COLUMNS = (TargetColumn("id", resolve(20, -1)), TargetColumn("note", resolve(25, -1)))


def effect_of(text, *, unchanged=False) -> NetEffect:
    """The net effect of changes by their initial letters: `I1 U2` inserts 1 and updates 2; `M34` moves 3 to 4."""
    rows = []
    for seq, word in enumerate(text.split()):
        op = {"I": INSERT, "U": UPDATE, "D": DELETE, "M": UPDATE}[word[0]]
        old = int(word[1]) if word[0] in "DM" else None
        new = None if word[0] == "D" else int(word[-1])
        row = {"seq": seq, "op": op, "old": NO_OLD if old is None else KEY_TUPLE, "new_0": new, "new_1": "x"}
        rows.append({**row, "old_0": old, **({"unchanged_1": op == UPDATE} if unchanged else {})})
    fields = {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16(), "new_0": pa.int64(), "new_1": pa.string()}
    fields |= {"old_0": pa.int64(), **({"unchanged_1": pa.bool_()} if unchanged else {})}
    return net_effect(pa.Table.from_pylist(rows, pa.schema(list(fields.items()))), (0,))


def written(text, *, overwrite=False, ranges=False, unchanged=False):
    """The statement from its condition on, and the source's columns."""
    effect = effect_of(text, unchanged=unchanged)
    keyed = KeyedTarget("public.t", "/l/t", COLUMNS, (0,), overwrite)
    clauses = Clauses.of(effect, overwrite=overwrite)
    source = clauses.source(effect.table, keyed.key)
    statement = clauses.statement("v", source, keyed, ranges=ranges)
    return statement.removeprefix(
        "MERGE INTO delta.`/l/t` AS t USING v AS s ON t.`id` = s.match_0"
    ), source.column_names


UPDATE_ALL = "WHEN MATCHED THEN UPDATE SET t.`id` = s.match_0, t.`note` = s.new_1"
INSERT_NEW = "WHEN NOT MATCHED AND s.inserted THEN INSERT (`id`, `note`) VALUES (s.match_0, s.new_1)"


@pytest.mark.parametrize(
    ("changes", "overwrite", "statement", "columns"),
    [
        ("U1 U2", False, f" {UPDATE_ALL}", ["match_0", "new_1"]),
        ("D1 D2", False, " WHEN MATCHED THEN DELETE", ["match_0"]),
        (
            "U1 D2",
            False,
            f" WHEN MATCHED AND s.ended THEN DELETE {UPDATE_ALL}",
            ["match_0", "new_1", "ended"],
        ),
        ("D1 I1", False, f" {UPDATE_ALL} {INSERT_NEW}", ["match_0", "new_1", "inserted"]),
        ("I1 I2", True, f" {UPDATE_ALL} {INSERT_NEW}", ["match_0", "new_1", "inserted"]),
        ("I1 D1", True, " WHEN MATCHED THEN DELETE", ["match_0"]),
    ],
)
def test_without_conflicts(changes, overwrite, statement, columns):
    assert written(changes, overwrite=overwrite) == (statement, columns)


@pytest.mark.parametrize("brief", ["", " I5 D5"])
def test_a_new_row_raises_where_there_is_one(brief):
    """Also a row that ended in the batch: it could not have been inserted."""
    statement, columns = written(f"U1 I2{brief}")
    raising, rest = statement.split(" AS bigint) ")
    assert raising.startswith(" WHEN MATCHED AND s.first IN (0, 1) THEN UPDATE SET t.`id` = CAST(raise_error(")
    assert "'insert_exists'" in raising
    assert "update_exists" not in raising
    assert rest == f"{UPDATE_ALL} {INSERT_NEW}"
    assert columns == ["match_0", "new_1", "first", "inserted"]
    assert "CASE s.first WHEN 0 THEN 'insert_exists' ELSE 'update_exists' END" in written("M12")[0]


def test_a_row_that_moves_must_be_there_if_it_overwrites():
    """Without it the other key's row stays. Where nothing is overwritten, a row in the way makes the commit fail."""
    clause = leaving_clause("`id`", "bigint")
    statement, columns = written("M12", overwrite=True)
    assert f" {clause.rstrip()}" in statement
    assert "leaves" in columns
    assert "leaves" not in "".join((written("M12")[0], *written("M12")[1]))
    assert left_none(ValueError(clause))
    assert not left_none(ValueError("pgbridge_left_none"))


def test_an_unchanged_value_is_the_targets():
    statement, columns = written("U1", unchanged=True)
    assert statement.endswith("t.`note` = CASE WHEN s.unchanged_1 THEN t.`note` ELSE s.new_1 END")
    assert columns == ["match_0", "new_1", "unchanged_1"]


def test_ranges_are_in_the_condition():
    assert written("D1 D9", ranges=True)[0] == (
        " AND (t.`id` >= 1L AND t.`id` <= 1L OR t.`id` >= 9L AND t.`id` <= 9L) WHEN MATCHED THEN DELETE"
    )


STAMP = CommitStamp("pgbridge/1/sub/inc/0", Lsn(0x10), Lsn(0x20))


def rows_at(spark, path):
    return sorted(tuple(row) for row in spark.read.format("delta").load(path).collect())


def merged(session, path, text):
    """What a MERGE of a net effect has done."""
    effect = effect_of(text)
    keyed = KeyedTarget("public.t", path, COLUMNS, (0,))
    clauses = Clauses.of(effect, overwrite=False)
    source = clauses.source(effect.table, keyed.key)
    return merge_into(
        as_frame(session, source), path, lambda view: clauses.statement(view, source, keyed, ranges=False)
    )


def test_a_merge_is_left_out_the_second_time(spark, tmp_path):
    session, path = fork(spark), str(tmp_path / "t")
    frame = session.createDataFrame([(1, "old")], "id long, note string")
    frame.write.format("delta").save(path)
    done = []
    for _ in range(2):
        with stamped(session, STAMP):
            done.append(merged(session, path, "D1 I2 U3"))
    assert done == [MergeCounts(updated=0, deleted=1, inserted=1), None]
    assert rows_at(spark, path) == [(2, "x")], "1 deleted; 2 inserted; 3 is an update of a missing row"
    frame.write.format("delta").mode("append").save(path)  # 1 is there again: a replay would meet it
    with stamped(session, STAMP):
        assert merged(session, path, "I1 U2") is None
    assert rows_at(spark, path) == [(1, "old"), (2, "x")]
    assert version_before_merge(spark, path) == 0
    assert table_version(spark, path) == 2


def test_the_counts_show_conflicts():
    """All that has to be found is found, and nothing else; unless a missing row and another one can cancel out."""
    shape = effect_of("U1 D2 I3").shape
    assert Clauses.fit(shape, MergeCounts(1, 1, 1), overwrite=False)
    assert not Clauses.fit(shape, MergeCounts(1, 0, 1), overwrite=False)
    assert Clauses.fit(shape, MergeCounts(1, 1, 1), overwrite=True)
    cancel = effect_of("D2 I4 D4").shape
    assert Clauses.fit(cancel, MergeCounts(0, 1, 0), overwrite=False)
    assert not Clauses.fit(cancel, MergeCounts(0, 1, 0), overwrite=True)
