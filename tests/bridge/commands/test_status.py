"""The status document is the contract's; it is true while a daemon runs, while none does, and without the server."""

from __future__ import annotations

import io
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from bridge.catalog import followed, maintenance, notes, refresh
from bridge.catalog.catalog import Catalog, catalog_path
from bridge.catalog.catalog_rows import BatchIntent, CopyRow, RelRow, sync_name
from bridge.commands.state import Position
from bridge.commands.status import collect, render, size_text
from bridge.commands.status import entry as status_of
from bridge.config.config import Config, Subscription
from bridge.publication.differences import Comparison, Difference
from bridge.receive.slot import ReplicationConnection
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from pathlib import Path

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
]
"""The contract's, in its order."""

NOBODY = "host=/nonexistent dbname=x"


def configuration(folder: Path, **connections: str) -> Config:
    subscriptions = {
        name: Subscription(name=name, connection=connection, publications=("p",), warehouse=str(folder / "lake"))
        for name, connection in connections.items()
    }
    return Config(state_dir=folder / "state", subscription=subscriptions)


@pytest.fixture
def shop(tmp_path):
    """The configuration and catalog of a subscription whose server does not answer."""
    settings = configuration(tmp_path, shop=NOBODY)
    with closing(Catalog(catalog_path(settings.state_dir))) as catalog:
        catalog.register("shop", enabled=True)
        yield settings, catalog


def entry(settings: Config, catalog: Catalog, *, running: bool = True) -> dict[str, Any]:
    """The only subscription's."""
    document = collect(settings, catalog, running=running)
    assert list(document) == ["subscriptions"]
    (only,) = document["subscriptions"]
    assert list(only) == KEYS + [key for key in ("sync_error", "conflicts", "slot_wal_status") if key in only]
    assert isinstance(only, dict)
    return only


def shown(document: dict[str, Any], width: int = 200) -> str:
    """What a terminal of that width shows."""
    stream = io.StringIO()
    Console(file=stream, width=width).print(render(document))
    return stream.getvalue()


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
    assert "pgbridge skip" not in shown({"subscriptions": [only]})
    catalog.record_error("shop", "worse", counter=None)
    assert entry(settings, catalog)["last_error"]["message"] == "worse"


def test_all_that_the_catalog_has(shop):
    settings, catalog = shop
    catalog.create_origin("shop", Lsn(0x100), "abc", [RelRow("public", "t1", "s", Lsn(0x200), "/lake/public/t1")])
    catalog.put_rel("shop", RelRow("s x", "a.b", "d", Lsn(0), "/lake/s x/a.b"))
    notes.put_copies(catalog, "shop", [CopyRow("s x", "a.b", 1200, 50_000, 200_000, 400.0, 90.0)])
    catalog.set_state("shop", "streaming", received_lsn=Lsn(0x16B374D848))
    catalog.record_error("shop", "no\nHINT:  do", counter="sync")
    catalog.record_error("shop", "no\nHINT:  do", counter="apply", finish_lsn=Lsn(0x14C0378), relation="public.t1")
    notes.count_conflicts(catalog, "shop", {"update_missing": 1, "delete_missing": 2})
    notes.count_conflicts(catalog, "shop", {"delete_missing": 3})
    only = entry(settings, catalog)
    error = only.pop("last_error")
    moment = datetime.fromisoformat(error.pop("time"))
    assert abs(moment - datetime.now(UTC)) < timedelta(seconds=60)
    assert error == {"message": "no\nHINT:  do", "finish_lsn": "0/14C0378", "relation": "public.t1"}
    assert only == {
        "name": "shop",
        "enabled": True,
        "state": "streaming",
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
    }


def test_received_is_never_behind_what_is_durable(shop):
    """The daemon writes it once a second only."""
    settings, catalog = shop
    catalog.create_origin("shop", Lsn(0x300), "abc", [])
    catalog.set_state("shop", "streaming", received_lsn=Lsn(0x200))
    assert entry(settings, catalog)["received_lsn"] == "0/300"


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


# --- for people -------------------------------------------------------------------------------------------------------


@pytest.fixture
def document(shop):
    settings, catalog = shop
    catalog.create_origin("shop", Lsn(0x16B374D840), "abc", [RelRow("public", "t1", "r", Lsn(1), "/lake/public/t1")])
    catalog.set_state("shop", "streaming", received_lsn=Lsn(0x16B374D848))
    catalog.record_error("shop", "the stream was lost\nHINT:  look there", counter="apply")
    made = collect(settings, catalog, running=True)
    made["subscriptions"][0]["confirmed_flush_lsn"] = "16/B374D83F"
    made["subscriptions"][0]["lag_bytes"] = 123456
    return made


def test_shows_everything(document):
    text = shown(document)
    for part in ("shop", "streaming", "16/B374D840", "16/B374D848", "16/B374D83F", "121 kB", "r (ready)"):
        assert part in text
    assert "shop: public.t1" in text
    assert "/lake/public/t1" in text
    assert "the stream was lost\nHINT:  look there" in text


@pytest.mark.parametrize("width", [80, 120])
def test_no_lsn_is_cut(document, width):
    """On a usual terminal; a long name is broken instead."""
    document["subscriptions"][0]["name"] = "a_subscription_with_quite_a_long_name"
    text = shown(document, width)
    for part in ("16/B374D840", "16/B374D848", "16/B374D83F", "121 kB", "streaming", "errors"):
        assert part in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_names_are_shown_as_they_are(document):
    """What looks like rich's markup is a name all the same."""
    (item,) = document["subscriptions"]
    name, path = "public.[red]x[/red] :smile: [/", "/lake/[/bold]"
    item["tables"] = [{"name": name, "state": "i", "path": path}]
    item["last_error"]["message"] = "value [/oops] is too long"
    text = shown(document)
    assert "shop: public.[red]x[/red] :smile: [/" in text
    assert "/lake/[/bold]" in text
    assert "value [/oops] is too long" in text


def test_the_command_that_skips(shop):
    """It is shown until it has been given."""
    settings, catalog = shop
    catalog.record_error("shop", "no", counter="apply", finish_lsn=Lsn(0x14C0378))
    command = "To skip this transaction:  pgbridge skip shop --lsn 0/14C0378\n"
    assert command in shown(collect(settings, catalog, running=True))
    catalog.set_skip_lsn("shop", Lsn(0x14C0378))
    assert command not in shown(collect(settings, catalog, running=True))


def test_conflicts_are_shown(shop):
    settings, catalog = shop
    notes.count_conflicts(catalog, "shop", {"update_missing": 4, "delete_missing": 2})
    assert "shop, conflicts: delete_missing 2, update_missing 4\n" in shown(collect(settings, catalog, running=True))


@pytest.mark.parametrize(
    ("rate", "seconds_left", "text"),
    [
        (41234.5, 3725.2, "25%, 1 234 567 rows, 49 kB, 41 234 rows/s, 1:02:05 left"),
        (None, None, "25%, 1 234 567 rows, 49 kB"),
    ],
)
def test_a_copy_under_way(shop, rate, seconds_left, text):
    """It is shown with its table; a killed daemon leaves one in the catalog, and does not copy."""
    settings, catalog = shop
    catalog.create_origin("shop", Lsn(1), "abc", [RelRow("public", "t1", "d", Lsn(0), "/lake/public/t1")])
    notes.put_copies(catalog, "shop", [CopyRow("public", "t1", 1234567, 50_000, 200_000, rate, seconds_left)])
    assert text in shown(collect(settings, catalog, running=True))
    assert "rows" not in shown(collect(settings, catalog, running=False))


@pytest.mark.parametrize("state", "idfsr")
def test_every_table_state_has_a_word(document, state):
    document["subscriptions"][0]["tables"][0]["state"] = state
    assert f"{state} (" in shown(document)


def test_a_difference_is_shown_with_its_remedy(shop):
    """Its table is marked, and the others are not."""
    settings, catalog = shop
    rels = [RelRow("public", name, "r", Lsn(1), f"/lake/{name}") for name in ("t", "u")]
    catalog.create_origin("shop", Lsn(1), "abc", rels)
    gap = Difference("gap", ("public", "t"), "", 'table "public.t" has a gap', "run: pgbridge refresh shop")
    followed.record(catalog, "shop", Comparison((gap,), (), {}), 0.0)
    found = collect(settings, catalog, running=True)
    assert found["subscriptions"][0]["differences"] == [
        {
            "kind": "gap",
            "relation": "public.t",
            "since": "1970-01-01T00:00:00+00:00",
            "message": gap.message,
            "hint": gap.hint,
        }
    ]
    shown = io.StringIO()
    Console(file=shown, width=120).print(render(found))
    text = shown.getvalue()
    assert text.count("r (ready, differs)") == text.count("r (ready)") == 1
    assert 'shop, since 1970-01-01T00:00:00+00:00: table "public.t" has a gap' in text
    assert "HINT:  run: pgbridge refresh shop" in text


def test_what_is_not_known_is_a_dash(shop):
    line = next(line for line in shown(collect(*shop, running=False)).splitlines() if line.startswith("shop"))
    assert line.split() == ["shop", "stopped", "-", "-", "-", "-", "0"]


def test_sizes_are_postgresqls(postgresql):
    """As pg_size_pretty says them; halves, which it rounds up, aside."""
    sizes = [
        0,
        1,
        10239,
        10240,
        10241,
        123456,
        10 * 1024**2 - 1000,
        10 * 1024**2,
        5 * 1024**3,
        10 * 1024**3,
        1024**4,
        10**15,
    ]
    for size in sizes:
        (expected,) = postgresql.execute("SELECT pg_size_pretty(%s::bigint)", (size,)).fetchone()
        assert size_text(size) == expected
    assert size_text(None) == "-"


def test_maintenance_is_shown_with_its_last_error(shop):
    settings, catalog = shop
    catalog.create_origin(
        "shop", Lsn(1), "inc", [RelRow("public", name, "r", Lsn(1), f"/lake/{name}") for name in "ab"]
    )
    row = maintenance.MaintainedRow(0.0, 3, 0.0, None, "no space left")
    maintenance.put(catalog, "shop", "/lake/a", row)
    first, second = collect(settings, catalog, running=True)["subscriptions"][0]["tables"]
    assert first["maintenance"] == {
        "files": 3,
        "optimized": "1970-01-01T00:00:00+00:00",
        "vacuumed": None,
        "error": "no space left",
    }
    assert "maintenance" not in second
    shown = io.StringIO()
    Console(file=shown, width=200).print(render(collect(settings, catalog, running=True)))
    assert "3 files, optimized 1970-01-01T00:00:00+00:00" in shown.getvalue()
    assert "shop, maintenance of public.a failed, and is tried again: no space left" in shown.getvalue()


@pytest.mark.parametrize("status", ["lost", "missing"])
def test_a_slot_that_is_lost_is_told_also_while_the_subscription_is_disabled(shop, status):
    """Nothing has failed yet, because nobody streams."""
    settings, catalog = shop
    catalog.create_origin("shop", Lsn(0x100), "abc", [])
    catalog.set_enabled("shop", enabled=False)
    only = status_of(settings.subscription["shop"], catalog, Position(None, Lsn(0x200), status), running=True)
    text = shown({"subscriptions": [only]})
    assert f"shop: replication slot shop is {status}; changes are lost" in text
    assert "To copy all tables again:  pgbridge resync shop" in text
    told = {"message": "…\nHINT:  run: pgbridge resync shop", "finish_lsn": None, "relation": None, "time": "now"}
    assert "To copy all tables again" not in shown({"subscriptions": [{**only, "last_error": told}]})
    sound = status_of(settings.subscription["shop"], catalog, Position(None, Lsn(0x200), "reserved"), running=True)
    assert "resync" not in shown({"subscriptions": [sound]})
