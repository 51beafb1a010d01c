"""`pgbridge replay` refuses what it cannot do before it starts Spark. `tests/oracle/test_skip.py` replays.

What a skipped transaction held is shown as it came, whatever it was.
"""

from __future__ import annotations

import json
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace

import pytest

from pgbridge.bridge.catalog.catalog import Catalog, boot_id, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent
from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.config.config import Config, Subscription
from pgbridge.bridge.runtime.errors import ApplyContext, ApplyError, SkipError, StateError, TakenOver
from pgbridge.bridge.service.replay import _check_begun, replay, show, show_skipped
from pgbridge.bridge.skipped.kept_transaction import folder_of, write
from pgbridge.protocol.codec.messages import Column, Delete, Insert, Truncate, Update
from pgbridge.protocol.lsn import Lsn
from tests.bridge.batch.streamed import LOG, NULL, UNCHANGED, T, batcher, insert, subscribed, text, transaction
from tests.bridge.skipped.kept import kept, types

SHOP = Subscription(name="shop", connection="", publications=("pub",), warehouse="/lake")


@contextmanager
def no_spark(*_):
    raise AssertionError("Spark was started")
    yield


def skip(state_dir, one, *tables, name="shop"):
    """Keep a transaction of table t as a skipped one."""
    batch = batcher(*(tables or [subscribed(T)])).attempt([one], Lsn(0x10))
    write(batch, state_dir / "skipped", name, origin=f"pgbridge/1/{name}/abc", rels={})


@pytest.fixture
def shop(tmp_path):
    """A state directory with a subscription, and the transaction that finished at 0/18."""
    skip(tmp_path, transaction(0x18, T, insert(1, "a")))
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("shop", enabled=True)
        catalog.create_origin("shop", Lsn(0x20), "abc", [])
    return Config(state_dir=tmp_path, subscription={"shop": SHOP})


def refused(shop, text="0/18", kind=SkipError):
    with pytest.raises(kind) as caught:
        list(replay(shop, SHOP, text, started=no_spark))
    return str(caught.value)


def test_no_lsn(shop):
    assert "0/18x" in refused(shop, "0/18x")


def test_no_such_transaction(shop, tmp_path):
    """One that is still to come can be skipped first, by the added tables' worker, too: it is behind the stream."""
    skip(tmp_path, transaction(0x16, T, insert(1, "a")), name="shop:sync")
    said = refused(shop, "0/20")
    assert 'no transaction that finished at 0/20 was skipped by subscription "shop" (kept are: 0/16, 0/18)' in said
    assert "HINT:  skip one first: pgbridge skip shop --lsn 0/20" in said
    said = refused(shop, "0/19")
    assert "HINT:  the stream has passed that LSN" in said
    assert "pgbridge skip" not in said
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("shop:sync", enabled=True)
        catalog.record_error("shop:sync", "x", counter="apply", finish_lsn=Lsn(0x19))
    assert "pgbridge skip shop --lsn 0/19" in refused(shop, "0/19")


def test_what_was_skipped_for_added_tables_is_shown_and_not_replayed(shop, tmp_path):
    """Such a table has joined the stream behind it, and has the transaction by another copy."""
    skip(tmp_path, transaction(0x16, T, insert(1, "a")), name="shop:sync")
    said = refused(shop, "0/16")
    assert "finished at 0/16 cannot be replayed: it was skipped for tables that were being added" in said
    assert said.endswith("unless they were copied since, copy them again: pgbridge refresh shop --resync public.t")
    first, change = (json.loads(line) for line in show_skipped(shop, SHOP, "0/16"))
    assert first["replay"] == "not possible: it was skipped for tables that were being added"
    assert change["new"] == {"id": 1, "note": "a"}
    error = ApplyError("it ends the JVM", ApplyContext("o", Lsn(0x17)))
    batch = batcher(subscribed(T)).refuse([transaction(0x17, T)], Lsn(0x10), error)
    write(batch, tmp_path / "skipped", "shop:sync", origin="pgbridge/1/shop:sync/abc", rels={})
    assert refused(shop, "0/17").endswith("pgbridge refresh shop --resync TABLE")


def test_what_was_skipped_for_added_tables_too_is_left_out(shop, tmp_path):
    """The subscription's own part is replayed, though it is empty here; the other tables are named."""
    skip(tmp_path, transaction(0x28, T, insert(1, "a")), subscribed(LOG))
    skip(tmp_path, transaction(0x28, T, insert(1, "a")), name="shop:sync")
    told, last = replay(shop, SHOP, "0/28", started=no_spark)
    assert told.startswith("tables that were being added are left out; unless they were copied since")
    assert told.endswith("pgbridge refresh shop --resync public.t")
    assert last == "the transaction that finished at 0/28 has no changes that are published"
    assert json.loads(next(show_skipped(shop, SHOP, "0/28")))["replay"] == "possible"


def test_another_machine_has_taken_over(shop, tables):
    """Its rows are newer than the transaction's; nothing is committed here."""
    with closing(Catalog(catalog_path(shop.state_dir))) as catalog:
        catalog.set_slot("shop", slot_name="slot", slot_state="ready", system_identifier="1")
    tables.lake.manifests["pgbridge/1/shop", "slot"] = "{}"
    tables.lake.generations["pgbridge/1/shop"] = 1
    with pytest.raises(TakenOver, match='"shop" was taken over'):
        list(replay(shop, SHOP, "0/18", started=lambda *_: nullcontext(tables)))


def test_replayed_before(shop):
    done = shop.state_dir / "skipped" / "0-18" / "shop" / "replayed.json"
    done.write_text(json.dumps({"time": "yesterday"}))
    assert refused(shop) == "the transaction that finished at 0/18 was replayed at yesterday"


def test_a_daemon_is_running(shop):
    with locked(shop.state_dir):
        said = refused(shop, kind=StateError)
        assert "another pgbridge daemon" in said
        assert said.endswith("HINT:  stop the daemon by SIGTERM, then repeat the command")


def test_a_batch_is_unfinished(shop):
    with closing(Catalog(catalog_path(shop.state_dir))) as catalog:
        catalog.begin_batch("shop", BatchIntent(Lsn(0x20), Lsn(0x30)))
    assert "a batch that was begun and not finished" in refused(shop, kind=StateError)


@pytest.mark.parametrize("found", [{"boot_id": "another", "flushing": False}, {"boot_id": boot_id(), "flushing": True}])
def test_an_attempt_that_may_not_have_reached_the_disk(tmp_path, found):
    begun = tmp_path / "begun.json"
    begun.write_text(json.dumps(found))
    with pytest.raises(SkipError, match="may not have reached the disk(.|\n)*pgbridge refresh shop --resync TABLE"):
        _check_begun(begun, "shop")
    begun.write_text(json.dumps({"boot_id": boot_id(), "flushing": False}))
    _check_begun(begun, "shop")


def test_nothing_published(shop, tmp_path):
    skip(tmp_path, transaction(0x28, T, insert(1, "a")), subscribed(LOG))
    assert list(replay(shop, SHOP, "0/28", started=no_spark)) == [
        "the transaction that finished at 0/28 has no changes that are published"
    ]


def test_one_that_cannot_be_replayed_can_be_shown(shop, tmp_path):
    skip(tmp_path, transaction(0x28, T, Insert(1, (text(1 << 40), text("a")))))
    said = refused(shop, "0/28")
    assert "the transaction cannot be replayed: it could not be decoded: " in said
    assert "to see what it held, run: pgbridge skip shop --lsn 0/28 --show" in said
    assert json.loads(next(show_skipped(shop, SHOP, "0/28")))["replay"].startswith("not possible: ")
    assert [json.loads(line).get("new") for line in show_skipped(shop, SHOP, "0/18")] == [None, {"id": 1, "note": "a"}]


def test_what_an_earlier_version_kept(shop):
    folder_of(shop.state_dir / "skipped", "shop", "0/28").mkdir(parents=True)
    assert "its Parquet files show the changes" in refused(shop, "0/28")


def shown(tmp_path, *messages, decoded=True):
    batch = batcher(subscribed(T)).attempt([transaction(100, *messages)], Lsn(50))
    assert (batch.error is None) is decoded
    first, *changes = (json.loads(line) for line in show(kept(batch, tmp_path), types))
    return first, changes


def test_every_change_in_order(tmp_path):
    """Of tables that are not subscribed, too; of a key's tuple the key, and no value that the stream does not carry."""
    full = replace(T, relation_id=3, name="whole", replica_identity="f")
    whole = (text(1), text("before"))
    first, changes = shown(
        tmp_path, T, LOG, full,
        insert(1, "é"), Insert(2, (text("x"),)), Update(1, (text(2), UNCHANGED), (text(1), NULL)),
        Update(3, (text(1), NULL), old_tuple=whole), Truncate((1, 2)), Delete(1, (text(2), NULL)),
    )  # fmt: skip
    expected = {"finish_lsn": "0/64", "xid": 100, "commit_time": "2000-01-01T00:00:00+00:00", "replay": "possible"}
    assert first == expected
    assert changes == [
        {"table": "public.t", "command": "INSERT", "new": {"id": 1, "note": "é"}},
        {"table": "public.log", "command": "INSERT", "new": {"note": "x"}},
        {"table": "public.t", "command": "UPDATE", "old": {"id": 1}, "new": {"id": 2}},
        {
            "table": "public.whole", "command": "UPDATE", "old": {"id": 1, "note": "before"},
            "new": {"id": 1, "note": None},
        },
        {"table": "public.log", "command": "TRUNCATE"},
        {"table": "public.t", "command": "TRUNCATE"},
        {"table": "public.t", "command": "DELETE", "old": {"id": 2}},
    ]  # fmt: skip


def test_values_that_a_type_cannot_hold_and_others(tmp_path):
    """A date that is infinity made the transaction fail; bytes are hexadecimal; nothing spoils the terminal's lines."""
    columns = (*T.columns, Column("due", 1082, -1, is_key=False), Column("data", 17, -1, is_key=False))
    dated = replace(T, columns=columns)
    row = Insert(1, (text(1), text("\x9b31m\nline"), text("infinity"), text("\\x00ff")))
    batch = batcher(subscribed(T)).attempt([transaction(100, dated, row)], Lsn(50))
    assert batch.error is not None
    first, line = show(kept(batch, tmp_path), types)
    assert json.loads(first)["replay"].startswith("not possible: it could not be decoded: ")
    assert line.isprintable()
    new = {"id": 1, "note": "\x9b31m\nline", "due": "infinity", "data": "00ff"}
    assert json.loads(line) == {"table": "public.t", "command": "INSERT", "new": new}


def test_numbers_that_json_does_not_have(tmp_path):
    """They are PostgreSQL's text: a reader of JSON refuses a bare NaN."""
    doubles = Column("doubles", 1022, -1, is_key=False)
    columns = (*T.columns, Column("one", 701, -1, is_key=False), Column("two", 700, -1, is_key=False), doubles)
    floats = replace(T, columns=columns)
    row = Insert(1, (text(1), NULL, text("NaN"), text("-Infinity"), text("{1.5,Infinity}")))
    batch = batcher(subscribed(T)).attempt([transaction(100, floats, row)], Lsn(50))
    _, line = show(kept(batch, tmp_path), types)
    new = json.loads(line, parse_constant=pytest.fail)["new"]
    assert new == {"id": 1, "note": None, "one": "NaN", "two": "-Infinity", "doubles": [1.5, "Infinity"]}


def test_a_value_that_cannot_be_read(tmp_path):
    with pytest.raises(ApplyError, match="finished at 0/64"):
        shown(tmp_path, T, insert(1, "a"), Insert(1, (text("no number"), NULL)), decoded=False)
