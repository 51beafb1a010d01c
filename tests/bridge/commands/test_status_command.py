"""`pgbridge status` from the shell: as JSON, as tables, with the daemon, without it, and with a server."""

from __future__ import annotations

import json

from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.catalog.lock import locked
from pgbridge.protocol.lsn import Lsn
from tests.fix_cli import catalog_of
from tests.hostile import NAMES


def test_status_json(two, tmp_path):
    """One document on standard output, whole and alone."""
    two("disable", "hr")
    code, out, err = two("status", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert list(document) == ["subscriptions"]
    assert [(item["name"], item["state"]) for item in document["subscriptions"]] == [
        ("shop", "stopped"),
        ("hr", "disabled"),
    ]


def test_status_for_people(two):
    code, out, err = two("status")
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[2:4]] == [["shop", "stopped"], ["hr", "stopped"]]


def test_hostile_names_are_shown_in_a_line(two, tmp_path):
    """No order for the terminal, no markup, and no line that looks like another table's."""
    path = "/srv/lake/\x1b]0;title\x07"
    with catalog_of(tmp_path) as catalog:
        catalog.register("shop", enabled=True)
        rels = [RelRow(name, name, "r", Lsn(1), path) for name in NAMES]
        catalog.create_origin("shop", Lsn(1), "abc", rels)
        message = "".join(f'relation "{name}"\n' for name in NAMES)
        catalog.record_error("shop", message, counter="apply", finish_lsn=Lsn(2), relation=NAMES[0])
    code, out, err = two("status")
    assert (code, err) == (0, "")
    assert {char for char in out if char < " " or "\x7f" <= char <= "\x9f"} == {"\n"}
    assert out.count("r (ready)") == len(NAMES)
    assert r"\x1B[31mred\x07" in out
    assert "[/bold]" in out
    tables = json.loads(two("status", "--json").out)["subscriptions"][0]["tables"]
    assert {table["name"] for table in tables} == {f"{name}.{name}" for name in NAMES}


def test_status_knows_whether_the_daemon_runs(two, tmp_path):
    with catalog_of(tmp_path) as catalog:
        catalog.register("shop", enabled=True)
        catalog.set_state("shop", "streaming")

    def state() -> str:
        (shop, _) = json.loads(two("status", "--json").out)["subscriptions"]
        return str(shop["state"])

    assert state() == "stopped"
    with locked(tmp_path / "state"):
        assert state() == "streaming"
    assert state() == "stopped"


def test_status_of_a_server(two, publisher, tmp_path):
    """With its view of the slot."""
    (tmp_path / "pgbridge.toml").write_text(
        f'[subscription.shop]\nconnection = {json.dumps(publisher.conninfo)}\nslot_name = "{publisher.name}"\n'
        'publications = ["p"]\nwarehouse = "lake"\n'
    )
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (publisher.name,))
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    (shop,) = json.loads(two("status", "--json").out)["subscriptions"]
    assert [(shop["confirmed_flush_lsn"],)] == publisher.query(query, (publisher.name,))
