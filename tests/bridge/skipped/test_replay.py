"""A skipped transaction is applied to tables as they are now, once, whatever is cut short."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes, Subscribed
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.runtime.errors import ApplyError, SkipError
from pgbridge.bridge.skipped.kept_transaction import FILE, folder_of, read
from pgbridge.bridge.skipped.replay import Replay, TablePreview, TableReplayed, lines_of
from pgbridge.bridge.spark.session import fork
from pgbridge.protocol.codec.messages import Relation, Truncate, Update
from pgbridge.protocol.lsn import INVALID, Lsn
from tests.bridge.apply.made_targets import delta_target
from tests.bridge.batch.streamed import text, transaction
from tests.bridge.skipped.kept import FINISH, ORIGIN, kept, message, relation, types

SUBSCRIPTION = Subscription(name="sub", connection="", publications=("pub",), warehouse="/lake")
T, U = relation("t", 1), relation("u", 2)


@pytest.fixture
def made(spark, tmp_path):
    """Makes the replay of changes to tables t and u, of rows 1 to 3."""
    rows = [(i, f"row {i}") for i in (1, 2, 3)]
    targets = {name: delta_target(spark, tmp_path, name, *rows) for name in ("t", "u")}

    def make(*tables, lsn=0, state="r", without=(), relid=700, origin=ORIGIN, copying=(), waits=None):
        folder = folder_of(tmp_path, "sub", str(FINISH))
        if not (folder / FILE).exists():
            messages = [one for definition, *rows in tables for one in (definition, *_messages(definition, rows))]
            routes = Routes({("public", name): Subscribed(target, INVALID) for name, target in targets.items()})
            batch = Batcher("pgbridge_sub", routes, types).form([transaction(FINISH, *messages)], Lsn(0x10))
            kept(batch, tmp_path)
        rels = {
            ("public", name): RelRow("public", name, state, Lsn(lsn), target.path, relid, waits=waits)
            for name, target in targets.items()
            if name not in without
        }
        session = fork(spark)
        return Replay(session, SUBSCRIPTION, app_id=origin, kept=read(folder), types=types, rels=rels, copying=copying)

    return make


def _messages(definition: Relation, rows):
    return [row if isinstance(row, Truncate | Update) else message(definition.relation_id, *row) for row in rows]


@pytest.fixture
def rows_of(spark, tmp_path):
    """Gives a table's rows."""
    return lambda name: sorted(map(tuple, spark.read.format("delta").load(str(tmp_path / name)).collect()))


ROWS = [(INSERT, None, 1, "again"), (UPDATE, None, 2, "new"), (DELETE, 9, None, None)]


def test_rows_are_overwritten_and_conflicts_counted(made, rows_of):
    replay = made((T, *ROWS))
    (shown,) = replay.preview()
    assert shown.changes == {"INSERT": 1, "UPDATE": 1, "DELETE": 1}
    assert list(lines_of(shown)) == [
        "public.t: 1 INSERT, 1 UPDATE, 1 DELETE",
        "  rows: 1 missing, 1 overwritten, 1 updated",
        "  overwritten: (id=1) note: row 1 -> again",
        "  updated: (id=2) note: row 2 -> new",
    ]
    assert rows_of("t") == [(1, "row 1"), (2, "row 2"), (3, "row 3")]  # nothing was changed
    (replayed,) = replay.apply()
    assert replayed == TableReplayed("public.t", {"insert_exists": 1, "delete_missing": 1})
    assert rows_of("t") == [(1, "again"), (2, "new"), (3, "row 3")]


def test_what_is_cut_short_goes_on_where_it_was(made, rows_of, spark):
    """Nothing is applied a second time: what came in between stays."""
    replay = made((T, *ROWS), (U, (INSERT, None, 4, "four")))
    begun = replay.apply()
    assert next(begun).relation == "public.t"
    begun.close()
    assert [rows_of("t")[0], len(rows_of("u"))] == [(1, "again"), 3]
    spark.sql(f"UPDATE delta.`{replay._paths['public', 't']}` SET note = 'later' WHERE id = 1").collect()
    assert [one.relation for one in made().apply()] == ["public.t", "public.u"]
    assert rows_of("t") == [(1, "later"), (2, "new"), (3, "row 3")]
    assert rows_of("u")[-1] == (4, "four")


def test_parts_of_a_table_come_in_order(made, rows_of):
    full = replace(T, replica_identity="f")
    whole = Update(1, (text(4), text("third")), old_tuple=(text(4), text("second")))
    replay = made((T, (INSERT, None, 4, "first"), (UPDATE, None, 4, "second")), (full, whole))
    assert len(list(replay.apply())) == 2
    assert rows_of("t")[-1] == (4, "third")


def test_truncate(made, rows_of):
    replay = made((T, Truncate((1,)), (INSERT, None, 4, "four")))
    (shown,) = replay.preview()
    assert list(lines_of(shown)) == ["public.t: TRUNCATE of 3 rows, then 1 INSERT"]
    list(replay.apply())
    assert rows_of("t") == [(4, "four")]


def test_a_table_without_a_key(made, rows_of):
    """Rows are found by all their values; what happens to them is not told before."""
    replay = made(
        (replace(T, columns=tuple(replace(one, is_key=False) for one in T.columns)), (INSERT, None, 1, "row 1"))
    )
    (shown,) = replay.preview()
    assert shown == TablePreview("public.t", replay._paths["public", "t"], {"INSERT": 1}, None, None)
    list(replay.apply())
    assert rows_of("t")[:2] == [(1, "row 1"), (1, "row 1")]


def test_a_row_that_would_move_is_not_there(made, rows_of):
    """The result depends on each change in turn, so it is not told before; the row does not come to be."""
    replay = made((T, (UPDATE, 8, 9, "moved")))
    (shown,) = replay.preview()
    assert shown.rows is None
    assert next(replay.apply()).conflicts == {"update_missing": 1}
    assert len(rows_of("t")) == 3


def test_a_table_that_was_copied_since_has_it_already(made, rows_of):
    replay = made((T, *ROWS), lsn=0x19)
    assert replay.copied_since == ["public.t"]
    assert (list(replay.preview()), list(replay.apply())) == ([], [])
    assert rows_of("t")[0] == (1, "row 1")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"without": ("t",)}, 'table "public.t" is not subscribed any more'),
        ({"state": "d"}, "is being copied"),
        ({"waits": "x"}, "waits for its resync"),
        ({"without": ("t",), "copying": {("public", "t")}}, "is being copied"),
        ({"relid": 701}, 'table "public.t" is another table by now'),
        ({"origin": "pgbridge/1/sub/y"}, 'was skipped before subscription "sub" began afresh'),
    ],
)
def test_tables_that_cannot_have_it(made, options, error):
    with pytest.raises(SkipError, match=error):
        made((T, *ROWS), **options)


def test_the_columns_are_others_by_now(made, spark, tmp_path):
    """A column that is gone is told, with what to do; nothing is changed."""
    others = spark.createDataFrame([(1, "x")], "id long, text string").write.format("delta").mode("overwrite")
    others.option("overwriteSchema", "true").save(str(tmp_path / "t"))
    with pytest.raises(SkipError, match='is missing replicated column: "note"(.|\n)*refresh sub --resync public.t'):
        list(made((T, *ROWS)).preview())


def test_an_error_has_the_finish_lsn(made, rows_of, spark):
    replay = made((T, *ROWS))
    spark.sql(
        f"ALTER TABLE delta.`{replay._paths['public', 't']}` ADD CONSTRAINT short CHECK (note <> 'new')"
    ).collect()
    with pytest.raises(ApplyError, match=r'(?s)short.*relation "public.t".*finished at 0/18'):
        list(replay.apply())
    assert rows_of("t")[0] == (1, "row 1")
