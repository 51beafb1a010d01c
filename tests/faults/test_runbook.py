"""Rows of the runbook (docs/runbook.md) as a person on call lives through them: the fault, what is seen, the remedy.

The tables are in memory, except where the fault is in Delta's.
Further rows have their tests beside the modules that they are about; `test_docs.py` holds that each row has one.
"""

from __future__ import annotations

import re
import shlex
import shutil

import pytest

from pgbridge.bridge.catalog.catalog import catalog_path
from tests.bridge.made_daemon import wait_until


def test_a_transaction_cannot_be_applied(shop):
    """The command that `status` shows skips it; what it held is kept, and a copy afresh makes the table equal."""
    shop.execute("INSERT INTO orders VALUES (21, 'no date', 'infinity')")
    shop.execute("INSERT INTO orders VALUES (22, 'waits', NULL)")
    seen = shop.error()
    assert "cannot be represented" in seen
    command = re.search(r"to skip the transaction, run: pgbridge (skip shop --lsn \S+)", seen)
    assert command is not None
    assert "will skip the transaction" in shop.run(*shlex.split(command[1]))
    shop.equal("events")
    assert '"new": {"id": 21, "note": "no date", "due": "infinity"}' in shop.run(*shlex.split(command[1]), "--show")
    assert shop.status()["last_error"] is None
    wait_until(lambda: shop.ids() == {*range(1, 21), 22})
    shop.execute("UPDATE orders SET due = NULL WHERE id = 21")
    shop.run("refresh", "shop", "--resync", "orders")
    shop.equal()


def test_a_row_is_missing_in_delta(delta_shop):
    """Its changes are counted and do nothing, as with PostgreSQL's update_missing; others go on."""
    delta_shop.spark.sql(f"DELETE FROM delta.`{delta_shop.path('orders')}` WHERE id IN (3, 4)")
    delta_shop.execute("UPDATE orders SET note = 'changed' WHERE id = 3; DELETE FROM orders WHERE id = 4")
    wait_until(lambda: delta_shop.status().get("conflicts") == {"delete_missing": 1, "update_missing": 1})
    assert "shop, conflicts: " in delta_shop.run("status")
    assert delta_shop.status()["state"] == "streaming"
    delta_shop.run("refresh", "shop", "--resync", "orders")
    delta_shop.equal()


def test_a_row_is_in_delta_already(delta_shop):
    """An INSERT of its key stops the subscription, as with PostgreSQL's insert_exists, until the row is gone."""
    delta_shop.spark.sql(f"INSERT INTO delta.`{delta_shop.path('orders')}` VALUES (30, 'by hand', NULL)")
    delta_shop.execute("INSERT INTO orders VALUES (30, 'by the server', NULL)")
    assert "insert_exists" in delta_shop.error()
    delta_shop.spark.sql(f"DELETE FROM delta.`{delta_shop.path('orders')}` WHERE id = 30")
    delta_shop.equal()


def test_a_delta_table_is_gone(delta_shop):
    """The subscription stops, and makes no empty one in its place; a copy afresh brings it back."""
    shutil.rmtree(delta_shop.path("orders"))
    delta_shop.execute("INSERT INTO orders VALUES (21, 'new', NULL)")
    seen = delta_shop.error()
    assert "does not exist any more" in seen, seen
    assert not delta_shop.path("orders").exists()
    delta_shop.run("refresh", "shop", "--resync", "orders")
    wait_until((delta_shop.path("orders") / "_delta_log" / f"{0:020}.json").exists)
    delta_shop.equal()


@pytest.mark.parametrize("streams", [False, True])
def test_a_delta_table_went_back(delta_shop, streams):
    """The subscription stops, with both positions; the RESTORE that its error names sets the table right.

    If it streams, it stops at the next change of the table.
    """
    delta_shop.execute("INSERT INTO orders VALUES (21, 'kept', NULL)")
    delta_shop.equal()
    if not streams:
        delta_shop.disable()
    delta_shop.spark.sql(f"RESTORE TABLE delta.`{delta_shop.path('orders')}` TO VERSION AS OF 1").collect()
    assert 21 not in delta_shop.ids()
    if streams:
        delta_shop.execute("INSERT INTO orders VALUES (22, 'later', NULL)")
    else:
        delta_shop.run("enable", "shop")
    seen = delta_shop.error()
    assert re.search(r"is behind: changes up to \S+ were durable in it, but its log ends at", seen), seen
    command = re.search(r"(RESTORE TABLE \S+ TO VERSION AS OF \d+); or", seen)
    assert command is not None
    delta_shop.spark.sql(command[1]).collect()
    delta_shop.equal()


def test_a_published_table_is_not_subscribed(shop):
    """Its changes are ignored, with a warning, until the subscription is refreshed."""
    shop.execute("CREATE TABLE added (id int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE added")
    shop.execute("INSERT INTO added VALUES (1)")
    shop.equal()
    assert "public.added: added" in shop.run("refresh", "shop")
    wait_until(lambda: shop.has("added"))
    shop.equal("orders", "events", "added")


def test_an_open_transaction_holds_up_the_start(shop):
    """`check` names it, with the statement that ends it."""
    shop.run("drop", "shop")
    with shop.publisher.connect() as connection:
        connection.execute("BEGIN; UPDATE orders SET note = 'forgotten'")
        connection.execute(f"PREPARE TRANSACTION '{shop.publisher.name}'")
    shop.configure(target__adopt=True)
    shop.run("reload")
    shop.run("enable", "shop")
    wait_until(
        lambda: shop.publisher.query("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (shop.slot_name,))
    )
    assert shop.status()["state"] == "copying"
    found = shop.check()
    assert "open transactions" in found
    statement = re.search(r"ROLLBACK PREPARED '\w+';", found)
    assert statement is not None
    shop.execute(statement[0])
    shop.equal()


def test_the_state_directory_is_lost(shop):
    """The error names the command that makes it anew; nothing is copied again."""
    shop.stop()
    shutil.rmtree(shop.folder / "state")
    shop.execute("DELETE FROM orders WHERE id = 1; INSERT INTO events VALUES ('while nobody looked')")
    shop.start()
    assert "make the state anew from the tables and the slot: pgbridge recover shop" in shop.error()
    shop.stop()
    assert "nothing is changed" in shop.run("recover", "--dry-run")
    assert "public.orders: goes on" in shop.run("recover", "shop")
    shop.start()
    shop.equal()


def test_the_state_directory_is_damaged(shop):
    """It is moved away, and made anew."""
    shop.stop()
    catalog = catalog_path(shop.folder / "state")
    catalog.write_bytes(b"no database" * 100)
    refused = shop.refused("status")
    assert "move it away, and make the state anew from the tables and the slots: pgbridge recover" in refused
    catalog.rename(catalog.with_suffix(".damaged"))
    shop.run("recover")
    shop.start()
    shop.equal()


def test_the_machine_is_lost(shop):
    """Another one with the same configuration has another state directory."""
    shop.stop()
    file = shop.folder / "pgbridge.toml"
    file.write_text(file.read_text().replace('"./state"', '"./elsewhere"'))
    shop.execute("DELETE FROM orders WHERE id = 1; INSERT INTO events VALUES ('while there was none')")
    shop.run("recover")
    shop.start()
    shop.equal()


def test_another_machine_has_taken_over(shop, monkeypatch):
    """The daemon here ends. With `--standby` it waits for its turn, and goes on with what the other one left."""
    monkeypatch.setattr("pgbridge.bridge.recovery.standby._GRACE_S", 0.0)
    shop.stop()
    file = shop.folder / "pgbridge.toml"
    here = file.read_text()
    file.write_text(here.replace('"./state"', '"./elsewhere"'))
    shop.start(standby=True)
    shop.execute("DELETE FROM orders WHERE id = 1; INSERT INTO events VALUES ('elsewhere')")
    shop.equal()
    shop.stop()
    file.write_text(here)
    shop.start()
    error = shop.ends()
    assert 'subscription "shop" was taken over' in str(error)
    assert "run: pgbridge run --standby" in error.hint
    shop.start(standby=True)
    shop.execute("DELETE FROM orders WHERE id = 2; INSERT INTO events VALUES ('here again')")
    shop.equal()


def test_delta_tables_have_rows_already(shop):
    """Of a life that the warehouse knows nothing of. With `adopt` the copies replace them; nothing comes twice."""
    shop.stop()
    shutil.rmtree(shop.folder / "state")
    shop.spark.lake.manifests.clear()
    shop.execute("DELETE FROM orders WHERE id = 1; INSERT INTO events VALUES ('while nobody looked')")
    shop.publisher.query("SELECT pg_drop_replication_slot(%s)", (shop.slot_name,))
    shop.configure(target__adopt=True)
    shop.start()
    wait_until(lambda: {table["state"] for table in shop.status()["tables"]} == {"r"})
    shop.equal()
    shop.configure()
    assert "shop" in shop.run("reload")
    shop.equal()


def test_the_slot_is_lost(shop):
    """The error says from where on changes are lost, and names the command; pgbridge makes no slot by itself."""
    shop.disable()
    shop.publisher.query("SELECT pg_drop_replication_slot(%s)", (shop.slot_name,))
    shop.execute("DELETE FROM orders WHERE id = 1; INSERT INTO events VALUES ('lost')")
    assert "to copy all tables again, run: pgbridge resync shop" in " ".join(shop.run("status").split())
    shop.run("enable", "shop")
    seen = shop.error()
    assert "are lost" in seen
    assert "pgbridge resync shop" in seen
    assert shop.publisher.query("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [
        (0,)
    ]
    shop.run("resync", "shop")
    shop.equal()


def test_somebody_moved_the_slot(shop):
    """What lies between is not sent again, so the tables are copied again."""
    shop.disable()
    shop.execute("DELETE FROM orders WHERE id = 1; INSERT INTO events VALUES ('passed over')")
    shop.publisher.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (shop.slot_name,))
    shop.run("enable", "shop")
    assert "somebody advanced or re-created it" in shop.error()
    shop.run("resync", "shop")
    shop.equal()


@pytest.mark.parametrize("column", ["note", "due"])
def test_a_column_cannot_be_followed(shop, column):
    """The table waits, and the others go on; the command that `status` shows copies it with its new columns."""
    shop.execute(
        f"ALTER TABLE orders ALTER {column} TYPE bytea USING NULL; UPDATE orders SET id = id + 100 WHERE id = 5"
    )
    shop.execute("INSERT INTO events VALUES ('meanwhile')")
    shop.equal("events")
    (waiting,) = [problem for problem in shop.status()["problems"] if problem["kind"] == "waits"]
    wait_until(lambda: shop.status()["state"] == "streaming")
    command = re.search(r"pgbridge (refresh shop --resync \S+)", waiting["hint"])
    assert command is not None
    assert command[0] in " ".join(shop.run("status").split())
    shop.run(*shlex.split(command[1]))
    shop.execute("UPDATE orders SET id = 2 WHERE id = 2")
    shop.execute("INSERT INTO events VALUES ('later')")
    wait_until(lambda: not shop.differences("orders", "events"))
