"""A skipped transaction is applied to tables as they are now, once, whatever is cut short."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes, Subscribed
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.lake import table_position
from pgbridge.bridge.lake.log.commit_info import Commit
from pgbridge.bridge.lake.log.history import History
from pgbridge.bridge.runtime.errors import ApplyError, SkipError
from pgbridge.bridge.skipped.kept_transaction import FILE, folder_of, read
from pgbridge.bridge.skipped.replay import Replay, TablePreview, TableReplayed, lines_of
from pgbridge.bridge.spark.session import fork
from pgbridge.protocol.codec.messages import Relation, Truncate, Update
from pgbridge.protocol.lsn import INVALID, Lsn
from tests.bridge.apply.made_targets import delta_target
from tests.bridge.batch.streamed import batcher, insert, subscribed, text, transaction
from tests.bridge.lake.made_history import COPY_ID, commit_of, mine, theirs
from tests.bridge.skipped.kept import FINISH, NO_SPARK, ORIGIN, kept, message, relation, types

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
        options = {"remote_lsn": Lsn(0x30), "types": types, "rels": rels, "copying": copying}
        return Replay(session, SUBSCRIPTION, app_id=origin, kept=read(folder), **options)

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


UPGRADED = "pgbridge/2/sub/x"
"""As `ORIGIN`, once pg_upgrade has made another server."""


@pytest.fixture
def upgraded(tmp_path, monkeypatch):
    """Makes the replay of a transaction of table t from before pg_upgrade, by the table's log."""
    kept(batcher(subscribed(T)).attempt([transaction(FINISH, T, insert(1, "a"))], Lsn(0x10)), tmp_path)

    def make(*commits, lsn=0, origin=UPGRADED, first=0):
        log = [commit_of(version, made) for version, made in enumerate(commits, first)][::-1]
        monkeypatch.setattr(table_position, "history_of", lambda *_: History("/lake/t", lambda latest: log[:latest]))
        return Replay(
            NO_SPARK,
            SUBSCRIPTION,
            app_id=origin,
            remote_lsn=Lsn(0x1000),
            kept=read(folder_of(tmp_path, "sub", str(FINISH))),
            types=types,
            rels={("public", "t"): RelRow("public", "t", "r", Lsn(lsn), "/lake/t", 700)},
        )

    return make


def test_the_server_was_upgraded_since(upgraded):
    """It is the same life: what a replay before has committed is left out, and so is a table that was copied since."""
    before = upgraded(origin=ORIGIN)
    after = upgraded(mine(0x10, COPY_ID), mine(0x20), mine(0x1000, "pgbridge/2/sub/x/3"))
    assert (after.copied_since, after._paths) == ([], {("public", "t"): "/lake/t"})
    assert after._app_id == before._app_id == f"{ORIGIN}/replay-0-18"
    assert upgraded(mine(0x10, COPY_ID), mine(0x30, COPY_ID), mine(0x40)).copied_since == ["public.t"]
    assert upgraded(lsn=0x2000).copied_since == ["public.t"]
    assert upgraded(theirs("CREATE TABLE"), mine(0x20)).copied_since == []  # never copied
    with pytest.raises(SkipError, match="does not go back to the transaction(.|\n)*skip sub --lsn 0/18 --show"):
        upgraded(mine(0x20), mine(0x30), first=500)


def test_its_commits_say_where_the_origin_was(upgraded, monkeypatch):
    """By it a snapshot has all of them, or none; Delta's transaction version stays the transaction's own LSN."""
    replay, stamps = upgraded(origin=ORIGIN), []

    def stamped(_, stamp):
        stamps.append(stamp)
        return nullcontext()

    vars(replay)["_tables"] = [SimpleNamespace(target=SimpleNamespace(qualified_name="public.t", path="/lake/t"))]
    monkeypatch.setattr(Replay, "_commit", lambda *_: None)
    monkeypatch.setattr("pgbridge.bridge.skipped.replay.LocalTables", mock.Mock())
    monkeypatch.setattr("pgbridge.bridge.skipped.replay.stamped", stamped)
    list(replay.apply())
    (stamp,) = stamps
    assert (stamp.start_lsn, stamp.txn_version, stamp.txn_app_id) == (0x1000, FINISH, f"{ORIGIN}/replay-0-18.1")
    commit = Commit.of_log(1, {"operation": "MERGE", "userMetadata": stamp.user_metadata})
    after = [commit.is_after(lsn, replayed=False) for lsn in (0x1000, 0x1001)]
    assert (commit.position, *after) == (None, True, False)


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
