"""The status document is the contract's; it is true while a daemon runs, while none does, and without the server."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from pgbridge.bridge.catalog import followed, maintenance, notes, refresh
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, CopyRow, RelRow, sync_name
from pgbridge.bridge.monitor.document import collect, lag_bytes, not_ready, subscription_status, tables_of
from pgbridge.bridge.publication.differences import Comparison, Difference
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.receive.slot_status import SlotHistory
from pgbridge.protocol.lsn import Lsn
from tests.bridge.monitor.registered import NOBODY, configuration, registered
from tests.bridge.monitor.status_document import problem

if TYPE_CHECKING:
    from pgbridge.bridge.config.config import Config

KEYS = [
    "name",
    "enabled",
    "state",
    "slot_name",
    "received_lsn",
    "remote_lsn",
    "confirmed_flush_lsn",
    "lag_bytes",
    "skip_lsn",
    "apply_error_count",
    "sync_error_count",
    "last_error",
    "tables",
    "conflicts",
    "slot",
    "commit_interval_s",
    "problems",
]
"""The contract's, in its order, and then others."""


@pytest.fixture
def shop(tmp_path):
    """The configuration and catalog of a subscription whose server does not answer."""
    with registered(tmp_path) as both:
        yield both


def entry(settings: Config, catalog: Catalog, *, running: bool = True) -> Any:
    """The only subscription's."""
    document = collect(settings, catalog, running=running)
    assert list(document) == ["subscriptions"]
    (only,) = document["subscriptions"]
    assert list(only) == KEYS
    return only


def kinds(status: Any) -> list[tuple[str, str | None]]:
    """What is said, and of which table."""
    return [(one["kind"], one["relation"]) for one in status["problems"]]


# --- the document -----------------------------------------------------------------------------------------------------


def test_before_the_first_start(shop):
    assert entry(*shop, running=False) == {
        "name": "shop",
        "enabled": True,
        "state": "stopped",
        "slot_name": "shop",
        "received_lsn": None,
        "remote_lsn": None,
        "confirmed_flush_lsn": None,
        "lag_bytes": None,
        "skip_lsn": None,
        "apply_error_count": 0,
        "sync_error_count": 0,
        "last_error": None,
        "tables": [],
        "conflicts": {},
        "slot": None,
        "commit_interval_s": 1.0,
        "problems": [],
    }


def test_subscription_that_the_catalog_does_not_know(shop, tmp_path):
    """It was just added to the file: what the file says of it is shown."""
    _, catalog = shop
    (only,) = collect(configuration(tmp_path, new=NOBODY), catalog, running=False)["subscriptions"]
    assert (only["name"], only["enabled"], only["state"], only["tables"]) == ("new", True, "stopped", [])


def test_tables_that_are_being_brought_in(shop):
    """They are copied until they are handed over, wherever in their own stream; their error is the subscription's."""
    settings, catalog = shop
    sync = sync_name("shop")
    catalog.create_origin("shop", Lsn(0x100), "abc", [RelRow("public", "b", "r", Lsn(0x50), "/lake/public/b")])
    rels = [RelRow("public", name, state, Lsn(0), f"/{name}") for name, state in zip("acde", "idsr", strict=True)]
    refresh.take_up(catalog, "shop", 0, bring_in=rels, follow=(), remove=())
    catalog.record_error(sync, "no", counter=None, finish_lsn=Lsn(0x120), relation="public.c")
    only = entry(settings, catalog)
    assert [(table["name"], table["state"]) for table in only["tables"]] == [
        ("public.a", "i"),
        ("public.b", "r"),
        ("public.c", "d"),
        ("public.d", "f"),
        ("public.e", "f"),
    ]
    assert (only["last_error"]["message"], only["last_error"]["finish_lsn"]) == ("no", None)
    assert only["problems"] == [problem("sync", "no", "problem", relation="public.c", time=only["last_error"]["time"])]
    catalog.record_error("shop", "worse", counter=None)
    assert entry(settings, catalog)["last_error"]["message"] == "worse"


def test_all_that_the_catalog_has(shop):
    settings, catalog = shop
    catalog.create_origin("shop", Lsn(0x100), "abc", [RelRow("public", "t1", "s", Lsn(0x200), "/lake/public/t1")])
    catalog.put_rel("shop", RelRow("s x", "a.b", "d", Lsn(0), "/lake/s x/a.b"))
    notes.put_copies(catalog, "shop", [CopyRow("s x", "a.b", 1200, 50_000, 200_000, 400.0, 90.0)])
    catalog.set_state("shop", "error", received_lsn=Lsn(0x16B374D848))
    catalog.record_error("shop", "no\nHINT:  do", counter="sync")
    catalog.record_error("shop", "no\nHINT:  do", counter="apply", finish_lsn=Lsn(0x14C0378), relation="public.t1")
    notes.count_conflicts(catalog, "shop", {"update_missing": 1, "delete_missing": 2})
    notes.count_conflicts(catalog, "shop", {"delete_missing": 3})
    only = entry(settings, catalog)
    error = only.pop("last_error")
    (said,) = only.pop("problems")
    assert said["hint"] == "to skip the transaction, run: pgbridge skip shop --lsn 0/14C0378"
    assert (said["kind"], said["message"], said["time"]) == ("apply", error["message"], error["time"])
    moment = datetime.fromisoformat(error.pop("time"))
    assert abs(moment - datetime.now(UTC)) < timedelta(seconds=60)
    assert error == {"message": "no\nHINT:  do", "finish_lsn": "0/14C0378", "relation": "public.t1"}
    assert only == {
        "name": "shop",
        "enabled": True,
        "state": "error",
        "slot_name": "shop",
        "received_lsn": "16/B374D848",
        "remote_lsn": "0/100",
        "confirmed_flush_lsn": None,
        "lag_bytes": None,
        "skip_lsn": None,
        "apply_error_count": 1,
        "sync_error_count": 1,
        "tables": [
            {"name": "public.t1", "state": "s", "path": "/lake/public/t1"},
            {
                "name": "s x.a.b",
                "state": "d",
                "path": "/lake/s x/a.b",
                "copy": {
                    "rows": 1200,
                    "bytes": 50_000,
                    "total_bytes_estimate": 200_000,
                    "rows_per_s": 400.0,
                    "seconds_left": 90.0,
                },
            },
        ],
        "conflicts": {"delete_missing": 5, "update_missing": 1},
        "slot": None,
        "commit_interval_s": 1.0,
    }


def test_received_is_never_behind_what_is_durable(shop):
    """The daemon writes it once a second only."""
    settings, catalog = shop
    catalog.create_origin("shop", Lsn(0x300), "abc", [])
    catalog.set_state("shop", "streaming", received_lsn=Lsn(0x200))
    assert entry(settings, catalog)["received_lsn"] == "0/300"


def test_received_of_a_server_that_has_lost_some(shop):
    """A standby that lagged was promoted: the lag is to the end of its WAL, not to the former primary's."""
    settings, catalog = shop
    catalog.create_origin("shop", Lsn(0x300), "abc", [])
    health = SlotHistory().add(0.0, None, Lsn(0x380))
    for received, shown, lag in ((0x500, "0/500", 0x200), (0x300, "0/300", 0x80)):
        catalog.set_state("shop", "streaming", received_lsn=Lsn(received))
        status = subscription_status(settings.subscription["shop"], catalog, health, running=True)
        assert (status["received_lsn"], status["lag_bytes"]) == (shown, lag)


def test_tables_are_of_one_moment(shop):
    """One that moves from the tablesync worker to the subscription is there once, whenever it is looked at."""
    _, catalog = shop
    rel = RelRow("public", "t", "s", Lsn(1), "/lake/t")
    catalog.create_origin("shop", Lsn(1), "abc", [replace(rel, name="a", state="r")])
    catalog.register(sync_name("shop"), enabled=True)
    catalog.put_rel(sync_name("shop"), rel)
    shown = [("a", "r"), ("t", "f")]
    assert [(each.name, each.state) for each in tables_of(catalog, "shop")] == shown
    with mock.patch.object(catalog, "rows", side_effect=catalog.rows) as read:
        tables_of(catalog, "shop")
    assert read.call_count == 1


def test_error_goes_with_a_later_batch(shop):
    settings, catalog = shop
    catalog.create_origin("shop", Lsn(0x100), "abc", [])
    catalog.record_error("shop", "no", counter=None)
    assert entry(settings, catalog)["last_error"]["finish_lsn"] is None
    catalog.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x200)))
    catalog.finish_batch("shop", Lsn(0x200))
    assert entry(settings, catalog)["last_error"] is None


@pytest.mark.parametrize(
    ("enabled", "running", "state"),
    [(True, True, "streaming"), (True, False, "stopped"), (False, True, "disabled"), (False, False, "disabled")],
)
def test_state(shop, enabled, running, state):
    """A killed daemon leaves "streaming" in the catalog, and does not stream."""
    settings, catalog = shop
    catalog.set_state("shop", "streaming")
    catalog.set_enabled("shop", enabled=enabled)
    only = entry(settings, catalog, running=running)
    assert (only["enabled"], only["state"]) == (enabled, state)


def test_servers_view(publisher, tmp_path):
    """confirmed_flush_lsn and the lag are asked of the server, also while no daemon runs."""
    settings = configuration(tmp_path, **{publisher.name: publisher.conninfo})
    with ReplicationConnection(publisher.conninfo, application_name="test") as replication:
        lsn = replication.create_slot(publisher.name, export_snapshot=False).consistent_point
    with closing(Catalog(catalog_path(settings.state_dir))) as catalog:
        catalog.register(publisher.name, enabled=True)
        only = entry(settings, catalog, running=False)
        assert (only["confirmed_flush_lsn"], only["lag_bytes"]) == (str(lsn), None)
        catalog.create_origin(publisher.name, lsn, "abc", [])
        before = entry(settings, catalog, running=False)["lag_bytes"]
        publisher.execute(
            "CREATE TABLE t (a text); INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 100)"
        )
        flushed = Lsn.parse(publisher.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])
        after = entry(settings, catalog, running=False)["lag_bytes"]
        assert before + 100_000 < after
        assert after >= flushed - lsn
        catalog.advance_origin(publisher.name, Lsn(flushed + (1 << 30)))
        assert entry(settings, catalog, running=False)["lag_bytes"] == 0


def test_slot_that_is_not_there(publisher, tmp_path):
    settings = configuration(tmp_path, **{publisher.name: publisher.conninfo})
    with closing(Catalog(catalog_path(settings.state_dir))) as catalog:
        catalog.register(publisher.name, enabled=True)
        catalog.create_origin(publisher.name, Lsn(0), "abc", [])
        only = entry(settings, catalog, running=False)
        assert only["confirmed_flush_lsn"] is None
        assert only["lag_bytes"] > 0


@pytest.mark.parametrize("connection", [NOBODY, "not a connection string"])
def test_server_that_does_not_answer(tmp_path, connection):
    """It is no reason to show nothing."""
    settings = configuration(tmp_path, one=connection, two=connection)
    with closing(Catalog(catalog_path(settings.state_dir))) as catalog:
        for name in ("one", "two"):
            catalog.register(name, enabled=True)
            catalog.create_origin(name, Lsn(0x100), "abc", [])
        entries = collect(settings, catalog, running=True)["subscriptions"]
        assert [item["name"] for item in entries] == ["one", "two"]
        assert [(item["remote_lsn"], item["lag_bytes"]) for item in entries] == [("0/100", None)] * 2


# --- what is said -----------------------------------------------------------------------------------------------------


def test_problems_come_before_warnings(shop):
    """Each table with what is said of it."""
    settings, catalog = shop
    rels = [RelRow("public", name, "r", Lsn(1), f"/lake/{name}") for name in ("t", "u")]
    catalog.create_origin("shop", Lsn(1), "abc", rels)
    catalog.set_state("shop", "streaming")
    gap = Difference("gap", ("public", "t"), "", 'table "public.t" has a gap', "run: pgbridge refresh shop")
    followed.record(catalog, "shop", Comparison((gap,), (), {}), 0.0)
    maintenance.put(catalog, "shop", "/lake/u", maintenance.MaintainedRow(0.0, 3, 0.0, None, "no space left"))
    notes.put_left_out(catalog, "shop", {("public", "v"): "two columns differ in case"})
    refresh.have_wait(catalog, "shop", [("public", "u")], "its column cannot be followed\nHINT:  run: x", 0.0)
    catalog.set_skip_lsn("shop", Lsn(0x200))
    only = entry(settings, catalog)
    assert kinds(only) == [
        ("waits", "public.u"),
        ("silent", None),
        ("skip", None),
        ("gap", "public.t"),
        ("maintenance", "public.u"),
        ("left_out", "public.v"),
    ]
    assert [one["level"] for one in only["problems"]] == ["problem"] + 5 * ["warning"]
    waits, *_, differs, kept, _ = only["problems"]
    assert (waits["message"], waits["hint"]) == (
        "public.u waits for its resync: its column cannot be followed",
        "run: x",
    )
    assert differs == problem(
        "gap", gap.message, relation="public.t", time="1970-01-01T00:00:00+00:00", hint="run: pgbridge refresh shop"
    )
    assert kept["message"] == "maintenance of public.u failed, and is tried again: no space left"
    assert only["tables"][1]["maintenance"] == {
        "files": 3,
        "optimized": "1970-01-01T00:00:00+00:00",
        "vacuumed": None,
        "error": "no space left",
    }
    assert "maintenance" not in only["tables"][0]


@pytest.mark.parametrize(
    ("wal_status", "message"), [("lost", "is invalid: changes are lost"), (None, "does not exist")]
)
def test_a_slot_that_is_lost_is_told_also_while_the_subscription_is_disabled(shop, wal_status, message):
    """Nothing has failed yet, because nobody streams. Before the first start there need not be a slot."""
    settings, catalog = shop
    health = replace(SlotHistory().add(0.0, None, Lsn(0x200)), wal_status=wal_status)

    def status() -> Any:
        return subscription_status(settings.subscription["shop"], catalog, health, running=True)

    assert kinds(status()) == []
    catalog.create_origin("shop", Lsn(0x100), "abc", [RelRow("public", "t", "r", Lsn(1), "/t")])
    catalog.set_enabled("shop", enabled=False)
    lost, disabled = status()["problems"]
    assert message in lost["message"]
    assert (lost["level"], lost["hint"]) == ("problem", "to copy all tables again, run: pgbridge resync shop")
    assert disabled["hint"] == "to let it run, run: pgbridge enable shop"
    catalog.record_error("shop", "lost\nHINT:  run: pgbridge resync shop", counter=None)
    assert [kind for kind, _ in kinds(status())] == ["apply", "disabled"], "it is told once"


@pytest.mark.parametrize(("active", "level"), [(True, "warning"), (False, "problem")])
def test_commits_that_wait_for_the_subscription(shop, active, level):
    settings, catalog = shop
    health = replace(SlotHistory().add(0.0, None, Lsn(0x200)), synchronous=True, active=active)
    (waits,) = subscription_status(settings.subscription["shop"], catalog, health, running=True)["problems"]
    assert (waits["kind"], waits["level"]) == ("synchronous", level)


def test_a_lag_is_not_known_before_the_first_position(shop):
    _, catalog = shop
    health, row = SlotHistory().add(0.0, None, Lsn(0x9)), catalog.subscription("shop")
    assert lag_bytes(row, None, health) is None
    assert lag_bytes(row, Lsn(0x10), None) is None
    assert lag_bytes(row, Lsn(0x10), health) == 0
    assert lag_bytes(replace(row, received_lsn=Lsn(0x18)), Lsn(0x10), health) == 8


# --- readiness --------------------------------------------------------------------------------------------------------


def status(name: str, state: str, *problems: dict[str, Any], enabled: bool = True, **keys: Any) -> Any:
    error = next((one for one in problems if one["kind"] in {"apply", "sync"}), None)
    given = {"name": name, "state": state, "enabled": enabled, "last_error": error, "tables": [{"state": "d"}]}
    return {**given, "problems": list(problems), **keys}


def test_ready():
    entries = [status("a", "streaming"), status("b", "copying"), status("c", "disabled", enabled=False)]
    assert not_ready("running", entries) == []
    assert not_ready("running", []) == []


def test_what_keeps_it_from_being_ready():
    assert not_ready("starting", [status("a", "streaming")]) == [{"reason": "Spark is starting"}]
    failed = [status("a", "error", problem("apply", "no")), status("b", "starting")]
    assert not_ready("running", failed) == [
        {"subscription": "a", "state": "error", "reason": "no"},
        {"subscription": "b", "state": "starting", "reason": ""},
    ]
    waits = status("a", "streaming", problem("waits", "it waits"))
    assert not_ready("running", [waits]) == [{"subscription": "a", "state": "streaming", "reason": "it waits"}]


def test_a_copy_that_failed_keeps_it_from_being_ready():
    """Until it is tried again: its rows are missing while everything else streams."""
    failed = status("a", "streaming", problem("sync", "permission denied"))
    copying = status("a", "streaming", problem("sync", "permission denied"), tables=[{"state": "d", "copy": {}}])
    assert not_ready("running", [failed]) == [
        {"subscription": "a", "state": "streaming", "reason": "permission denied"}
    ]
    assert not_ready("running", [copying]) == []
