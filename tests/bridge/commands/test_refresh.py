"""What `pgbridge refresh` says and asks for, where definitions are re-applied; the command's tests have the rest.

`pgbridge drop` and `pgbridge resync` from the shell, on a real server, without Spark.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest
from psycopg.pq import ExecStatus

from pgbridge.bridge.catalog import maintenance, refresh
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, PreparedRow, RelRow, sync_name
from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.catalog.maintenance import OptimizeIntent
from pgbridge.bridge.commands.refresh import ask
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.connection import connect
from pgbridge.bridge.runtime.errors import ConfigError, PublicationError
from pgbridge.protocol.lsn import Lsn
from tests.fix_cli import TWO, catalog_of


@pytest.fixture
def catalog(tmp_path):
    """The subscription `shop` has a table; another one is being brought in."""
    with closing(Catalog(catalog_path(tmp_path / "state"))) as opened:
        opened.register("shop", enabled=True)
        opened.create_origin("shop", Lsn(1), "abc", [RelRow("public", "a", "r", Lsn(1), "/lake/public/a")])
        coming = RelRow("public", "b", "d", Lsn(0), "/lake/public/b")
        refresh.take_up(opened, "shop", 0, bring_in=[coming], follow=(), remove=())
        yield opened


@pytest.fixture
def subscription(publisher, tmp_path):
    """Makes subscriptions to a broad publication, with definitions."""
    publisher.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int); CREATE TABLE c (id int)")
    publisher.execute("CREATE PUBLICATION broad FOR ALL TABLES")

    def make(text):
        file = tmp_path / "definitions.sql"
        file.write_text(text)
        return Subscription(
            name="shop",
            connection=publisher.conninfo,
            publications=("broad",),
            warehouse="lake",
            publication_definitions=str(file),
        )

    return make


def test_a_copy_that_failed_is_tried_again(catalog, subscription):
    """At once, though the subscription has the published tables: the worker that waits ends for a request."""
    chosen = subscription("CREATE PUBLICATION p FOR TABLE a, b")
    nothing = ['subscription "shop": nothing to refresh, its tables are the published ones']
    assert ask(chosen, catalog, resync=[], copy_data=None, when="now") == nothing
    catalog.record_error(sync_name("shop"), "permission denied for table b", counter=None)
    lines = ['subscription "shop" is refreshed (now)', "  public.b: its copy is tried again"]
    assert ask(chosen, catalog, resync=[], copy_data=None, when="now") == lines
    assert [row.table for row in refresh.asked(catalog, "shop")] == [None]


def test_the_definitions_say_what_is_published(catalog, subscription):
    """Tables that are being brought in are the subscription's; the next request keeps that one is not published."""
    chosen = subscription("CREATE PUBLICATION p FOR TABLE b, c WITH (publish = 'insert')")
    assert ask(chosen, catalog, resync=[], copy_data=None, when="now") == [
        'subscription "shop" is refreshed (now)',
        "  public.c: added: copied, then follows the stream",
        "  public.a: removed: stops following the stream; its Delta table stays",
    ]
    ask(chosen, catalog, resync=["b"], copy_data=None, when="now")
    assert [(row.table, row.unpublished) for row in refresh.asked(catalog, "shop")] == [
        (None, False),
        (("public", "a"), True),
        (("public", "b"), False),
    ]


def test_what_was_asked_for_and_not_taken_up_yet_counts(catalog, subscription):
    """A table that will be the subscription's can be copied afresh, one that will be removed cannot."""
    chosen = subscription("CREATE PUBLICATION p FOR TABLE b, c")
    ask(chosen, catalog, resync=[], copy_data=False, when="now")
    assert ask(chosen, catalog, resync=["c"], copy_data=None, when="now") == [
        'subscription "shop" is refreshed (now)',
        "  public.c: added: the copy replaces what its Delta table has, then it follows the stream",
        "  public.a: removed: stops following the stream; its Delta table stays",
    ]
    with pytest.raises(ConfigError, match='table "a" is not part of subscription "shop"'):
        ask(chosen, catalog, resync=["a"], copy_data=None, when="now")


def test_definitions_that_cannot_be_re_applied(catalog, subscription):
    with pytest.raises(PublicationError):
        ask(subscription("CREATE PUBLICATION p FOR TABLE nowhere"), catalog, resync=[], copy_data=None, when="now")
    assert refresh.asked(catalog, "shop") == []


def test_what_cannot_be_held_is_left_out(catalog, subscription, publisher):
    publisher.execute("CREATE TABLE bare ()")
    assert ask(subscription("CREATE PUBLICATION p FOR ALL TABLES"), catalog, resync=[], copy_data=None, when="now") == [
        'subscription "shop" is refreshed (now)',
        "  public.c: added: copied, then follows the stream",
        '  public.bare: left out: table "public.bare" has no published column, and a Delta table needs one',
    ]


WHEN = "at the daemon's next start"


@pytest.fixture
def shop(pgbridge, tmp_path, publisher):
    """Runs a command on the subscription `shop`, which has a slot of its own and the tables t1 and gone."""
    publisher.execute("CREATE TABLE t1 (a int PRIMARY KEY); CREATE PUBLICATION shop_pub FOR TABLE t1")
    slot = f"{publisher.name}_slot"
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    system_identifier = publisher.query("SELECT system_identifier::text FROM pg_control_system()")[0][0]
    (tmp_path / "pgbridge.toml").write_text(TWO.replace("host=/nonexistent", publisher.conninfo, 1))
    with catalog_of(tmp_path) as catalog:
        catalog.register("shop", enabled=True)
        catalog.set_slot("shop", slot_name=slot, slot_state="ready", system_identifier=system_identifier)
        rels = [RelRow("public", name, "r", Lsn(0x100), f"/lake/public/{name}") for name in ("t1", "gone")]
        catalog.create_origin("shop", Lsn(0x100), "abc", rels)
    return pgbridge


def slots(publisher) -> list[str]:
    found = publisher.query("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    return [name for (name,) in found]


def is_enabled(catalog: Catalog) -> bool:
    row = catalog.subscription("shop")
    return row is not None and row.enabled


def test_drop(shop, publisher, tmp_path):
    with catalog_of(tmp_path) as catalog:
        catalog.put_rel("shop", RelRow("public", "waits", "i", Lsn(0), "/lake/public/waits"))  # which has none yet
    done = shop("drop", "shop")
    assert done.code == 0
    assert done.out.splitlines() == [
        f'dropped replication slot "{publisher.name}_slot" on the publisher',
        f'subscription "shop" dropped; its 2 Delta tables stay in {tmp_path}/lake',
        "remove [subscription.shop] from the configuration file",
        "or, to begin it anew, move its tables away and run: pgbridge enable shop",
    ]
    assert slots(publisher) == []
    with catalog_of(tmp_path) as catalog:
        assert catalog.remote_lsn("shop") is None
        assert not is_enabled(catalog)
    again = shop("drop", "shop")  # nothing is left to do
    assert (again.code, "it followed no table" in again.out) == (0, True)


def test_drop_without_the_server(shop, publisher, tmp_path):
    (tmp_path / "pgbridge.toml").write_text(TWO)
    done = shop("drop", "shop")
    assert done.code == 1
    assert "to end it without the server: pgbridge drop shop --keep-slot" in done.err
    with catalog_of(tmp_path) as catalog:
        assert catalog.remote_lsn("shop") is not None  # nothing was forgotten
    done = shop("drop", "shop", "--keep-slot")
    assert done.code == 0
    assert f"SELECT pg_drop_replication_slot('{publisher.name}_slot');" in done.out
    assert slots(publisher) == [f"{publisher.name}_slot"]


def test_drop_of_a_half_applied_batch(shop, publisher, tmp_path):
    with catalog_of(tmp_path) as catalog:
        catalog.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x200)))
    done = shop("drop", "shop")
    assert (done.code, "was begun and not finished" in done.err) == (1, True)
    assert slots(publisher) == [f"{publisher.name}_slot"]
    assert shop("drop", "shop", "--force").code == 0
    assert slots(publisher) == []


@pytest.mark.parametrize("worker", ["shop", "shop:sync"])
def test_drop_looks_at_added_tables_and_at_maintenance_too(shop, tmp_path, worker):
    with catalog_of(tmp_path) as catalog:
        if worker == "shop":
            maintenance.begin(catalog, worker, OptimizeIntent("/lake/public/t1", 3))
        else:
            catalog.register(worker, enabled=True)
            catalog.begin_batch(worker, BatchIntent(Lsn(0x100), Lsn(0x200)))
    done = shop("drop", "shop")
    assert (done.code, "was begun and not finished" in done.err) == (1, True)
    with catalog_of(tmp_path) as catalog:
        assert catalog.remote_lsn("shop") is not None


def test_resync_with_a_slot_that_has_confirmed_prepared_transactions(shop, publisher, tmp_path):
    """It would stay, and would not send them again: their rows would be missing after the copies."""
    file = tmp_path / "pgbridge.toml"
    file.write_text(file.read_text().replace("[subscription.shop]", "[subscription.shop]\ncreate_slot = false"))
    with catalog_of(tmp_path) as catalog:
        catalog.finish_batch("shop", Lsn(0x180), prepared=[PreparedRow("1.spool", "gid", 7, Lsn(0x180))])
    done = shop("resync", "shop")
    assert (done.code, "prepared transactions" in done.err) == (1, True)
    with catalog_of(tmp_path) as catalog:
        assert len(catalog.prepared("shop")) == 1
        assert is_enabled(catalog)


def test_a_slot_of_another_server_is_left_alone(shop, publisher, tmp_path):
    """It has the same name by chance: the connection was changed since."""
    with catalog_of(tmp_path) as catalog:
        catalog.set_slot("shop", slot_name=f"{publisher.name}_slot", slot_state="ready", system_identifier="1")
    for command in ("drop", "resync"):
        done = shop(command, "shop")
        assert (done.code, "leads to another server" in done.err) == (1, True)
    assert slots(publisher) == [f"{publisher.name}_slot"]
    with catalog_of(tmp_path) as catalog:
        assert [rel.state for rel in catalog.rels("shop")] == ["r", "r"]


def test_a_slot_in_use(shop, publisher, tmp_path, monkeypatch):
    monkeypatch.setattr("pgbridge.bridge.commands.refresh._SLOT_PATIENCE_S", 0.5)
    command = f"START_REPLICATION SLOT {publisher.name}_slot LOGICAL 0/0 (proto_version '1', publication_names 'x')"
    with closing(connect(publisher.conninfo, application_name="test", replication=True)) as reader:
        assert reader.pgconn.exec_(command.encode()).status == ExecStatus.COPY_BOTH
        done = shop("drop", "shop")
    assert (done.code, "is in use by another process" in done.err) == (1, True)
    with catalog_of(tmp_path) as catalog:
        assert catalog.remote_lsn("shop") is not None


def test_a_running_daemon_is_waited_for(shop, tmp_path):
    """Until its worker has stopped, nothing is dropped."""
    with catalog_of(tmp_path) as catalog, locked(tmp_path / "state"):
        catalog.set_state("shop", "streaming")
        seen = []

        def stop() -> None:
            while is_enabled(catalog):
                time.sleep(0.01)
            seen.append(catalog.remote_lsn("shop"))
            catalog.set_state("shop", "disabled")

        worker = threading.Thread(target=stop)
        worker.start()
        assert shop("drop", "shop").code == 0
        worker.join()
    assert seen == [Lsn(0x100)]


def test_a_batch_that_does_not_end(shop, publisher, tmp_path, monkeypatch):
    monkeypatch.setattr("pgbridge.bridge.commands.refresh._PATIENCE_S", 0.3)
    with catalog_of(tmp_path) as catalog, locked(tmp_path / "state"):
        catalog.set_state("shop", "streaming")
        done = shop("drop", "shop")
    assert (done.code, "has not ended" in done.err) == (1, True)
    assert slots(publisher) == [f"{publisher.name}_slot"]


def test_resync(shop, publisher, tmp_path):
    """The table that is published begins again; it stays enabled, and its slot is dropped."""
    publisher.execute("CREATE TABLE added (a int); ALTER PUBLICATION shop_pub ADD TABLE added")
    done = shop("resync", "shop")
    assert done.code == 0
    assert done.out.splitlines()[1:] == [
        f'subscription "shop" begins afresh ({WHEN}); each table keeps its rows until its copy replaces them:',
        "  public.t1: copied again",
        "  public.added: added: copied",
        "  public.gone: not published any more; its Delta table stays",
    ]
    assert slots(publisher) == []
    with catalog_of(tmp_path) as catalog:
        assert [(rel.name, rel.state) for rel in catalog.rels("shop")] == [("t1", "d")]
        assert is_enabled(catalog)
    shop("disable", "shop")
    assert "once you run: pgbridge enable shop" in shop("resync", "shop").out


def test_resync_needs_the_server(shop, tmp_path):
    (tmp_path / "pgbridge.toml").write_text(TWO)
    assert shop("resync", "shop").code == 1
    with catalog_of(tmp_path) as catalog:
        assert catalog.remote_lsn("shop") is not None
        assert is_enabled(catalog)
