"""Each rule on the server passes, warns and fails where it should, with the statement that mends it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgbridge.bridge.check.finding import PROVIDERS, Level
from pgbridge.bridge.check.server import Needs, check_server
from pgbridge.bridge.receive.server_facts import SETTINGS, OpenTransaction, Security, ServerFacts

GOOD = ServerFacts(
    180006,
    in_recovery=False,
    settings={
        "wal_level": "logical",
        "max_replication_slots": "10",
        "max_wal_senders": "10",
        "max_slot_wal_keep_size": "51200",
        "idle_replication_slot_timeout": "0",
        "hot_standby_feedback": "off",
        "server_encoding": "UTF8",
        "synchronous_standby_names": "FIRST 2 (s1, shop2)",
        "wal_sender_timeout": "60000",
    },
    slots=2,
    senders=2,
    clock_ahead_s=0.1,
    role="repl",
    superuser=False,
    database="shop",
    security=Security("db.example.org", tls=True, sslmode="verify-full"),
    open_transactions=(),
)


def look(facts: ServerFacts = GOOD, *, slot_exists: bool = False, running: bool = False):
    """The findings that are no passes, by subject."""
    found = check_server(facts, slot_exists=slot_exists, running=running, name="shop")
    return {one.subject: one for one in found if one.level is not Level.PASS}


def with_settings(**settings: str) -> ServerFacts:
    return replace(GOOD, settings={**GOOD.settings, **settings})


def test_a_good_server_passes():
    assert look() == {}


def test_wal_level_of_19():
    """No restart: the slot switches logical decoding on."""
    plain = replace(with_settings(wal_level="replica", effective_wal_level="replica"), version=190000)
    assert look(plain) == {}
    on = replace(with_settings(wal_level="replica", effective_wal_level="logical"), version=190000)
    for facts, message in (
        (plain, "replica: the slot switches logical decoding on"),
        (on, "replica, and effective_wal_level is logical"),
        (GOOD, "logical"),
    ):
        found = check_server(facts, slot_exists=True, running=True)
        assert [one.message for one in found if one.subject == "wal_level"] == [message]
    assert list(look(replace(on, settings={**on.settings, "effective_wal_level": "replica"}, in_recovery=True))) == [
        "hot_standby_feedback",
        "wal_level",
    ]


def test_every_problem_has_a_remedy():
    bad = replace(
        with_settings(wal_level="replica", max_slot_wal_keep_size="-1", idle_replication_slot_timeout="60"),
        slots=10,
        senders=9,
        clock_ahead_s=-30,
        superuser=True,
        security=Security("db", tls=False, sslmode="prefer"),
        open_transactions=(OpenTransaction(True, "gid", "shop", None, 1.0),),
    )
    found = look(bad)
    assert found.keys() == {
        "wal_level", "role", "max_replication_slots", "max_wal_senders", "max_slot_wal_keep_size",
        "idle_replication_slot_timeout", "open transactions", "clock", "TLS",
    }  # fmt: skip
    assert all(one.remedy for one in found.values())


@pytest.mark.parametrize("sign", sorted(PROVIDERS))
def test_on_a_managed_server_nobody_is_told_to_run_alter_system(sign):
    bad = with_settings(
        wal_level="replica", max_slot_wal_keep_size="-1", idle_replication_slot_timeout="60", max_wal_senders="2"
    )
    bad = replace(bad, settings={**bad.settings, sign: ""}, slots=10)
    found = look(bad)
    settings = ("max_replication_slots", "max_wal_senders", "max_slot_wal_keep_size", "idle_replication_slot_timeout")
    assert found.keys() == {*settings, "wal_level"}
    for finding in found.values():
        assert "ALTER SYSTEM" not in f"{finding.remedy} {finding.statement}"
        assert f"on {PROVIDERS[sign].name}, " in finding.remedy
        assert finding.remedy.endswith("(docs/managed-servers.md)")
    assert found["max_wal_senders"].remedy.startswith(f"on {PROVIDERS[sign].name}, set max_wal_senders to 4 in ")
    assert found["max_slot_wal_keep_size"].remedy.startswith("choose how much WAL slots may hold; ")
    assert "set max_slot_wal_keep_size to 50GB in" in found["max_slot_wal_keep_size"].remedy
    assert PROVIDERS[sign].wal_level in found["wal_level"].remedy


def test_the_server_is_asked_for_what_tells_a_provider():
    assert PROVIDERS.keys() <= set(SETTINGS)
    assert (Path(__file__).parents[3] / "docs" / "managed-servers.md").exists()


@pytest.mark.parametrize(
    ("facts", "subject", "level"),
    [
        (replace(GOOD, version=130010), "version", Level.FAILURE),
        (replace(GOOD, version=150000, in_recovery=True), "version", Level.FAILURE),
        (replace(GOOD, in_recovery=True), "hot_standby_feedback", Level.WARNING),
        (with_settings(wal_level="replica"), "wal_level", Level.FAILURE),
        (with_settings(max_slot_wal_keep_size="-1"), "max_slot_wal_keep_size", Level.WARNING),
        (with_settings(max_slot_wal_keep_size="64"), "max_slot_wal_keep_size", Level.WARNING),
        (with_settings(idle_replication_slot_timeout="86400"), "idle_replication_slot_timeout", Level.WARNING),
        (replace(GOOD, clock_ahead_s=60.0), "clock", Level.WARNING),
        (replace(GOOD, security=Security("db", tls=True, sslmode="require")), "TLS", Level.WARNING),
        (replace(GOOD, superuser=True), "role", Level.WARNING),
        (replace(GOOD, password_left_s=6 * 86400.0), "password", Level.WARNING),
    ],
)
def test_one_problem(facts, subject, level):
    found = look(facts)
    assert list(found) == [subject]
    assert found[subject].level is level


@pytest.mark.parametrize("alert_bytes", [0, 10 << 30])
def test_a_server_without_a_limit_passes_if_somebody_is_told(alert_bytes):
    findings = check_server(
        with_settings(max_slot_wal_keep_size="-1"), slot_exists=True, running=True, alert_bytes=alert_bytes
    )
    (finding,) = (each for each in findings if each.subject == "max_slot_wal_keep_size")
    assert finding.level is (Level.PASS if alert_bytes else Level.WARNING)
    assert not alert_bytes or "10,240 MB" in finding.message


def test_a_standby_with_feedback_passes():
    assert look(replace(with_settings(hot_standby_feedback="on"), in_recovery=True)) == {}


@pytest.mark.parametrize(
    ("used", "slot_exists", "level"),
    [
        (10, False, Level.FAILURE),
        (9, False, Level.WARNING),
        (8, False, None),
        (10, True, Level.WARNING),
        (9, True, None),
    ],
)
def test_room_for_the_slot_and_for_a_table_that_comes_later(used, slot_exists, level):
    """With a slot of its own, a subscription needs just the one for tables that come later."""
    found = look(replace(GOOD, slots=used), slot_exists=slot_exists).get("max_replication_slots")
    assert (found and found.level) is level


def test_the_statement_makes_room_enough():
    statement = look(replace(GOOD, slots=10))["max_replication_slots"].statement
    assert statement == "ALTER SYSTEM SET max_replication_slots = 12;"


@pytest.mark.parametrize(
    ("others", "subjects"),
    [
        (Needs(6, 6), {}),
        (Needs(7, 0), {"max_replication_slots": Level.WARNING}),
        (Needs(0, 7), {"max_wal_senders": Level.WARNING}),
        (Needs(8, 8), {"max_replication_slots": Level.FAILURE, "max_wal_senders": Level.FAILURE}),
    ],
)
def test_room_for_all_subscriptions_together(others, subjects):
    """Eight of ten are free: one is for this subscription, and one more for tables that come later."""
    found = check_server(GOOD, slot_exists=False, running=False, others=others)
    levels = {one.subject: one.level for one in found if one.level is not Level.PASS}
    assert levels == subjects


def test_what_all_need_is_told_and_made():
    found = check_server(GOOD, slot_exists=True, running=True, others=Needs(199, 0))
    (room,) = [one for one in found if one.subject == "max_replication_slots"]
    assert room.message == (
        "8 of 10 replication slots are free: the subscriptions of the configuration need 199 together"
    )
    assert room.statement == "ALTER SYSTEM SET max_replication_slots = 202;"


@pytest.mark.parametrize("host", ["", "/tmp/socket", "@abstract", "localhost", "127.0.0.1", "127.0.5.5", "::1"])
def test_a_connection_within_the_machine_needs_no_tls(host):
    assert look(replace(GOOD, security=Security(host, tls=False, sslmode="prefer"))) == {}


def test_transactions_that_hold_up_a_slot():
    """Prepared ones always, others after five minutes; a quote in a gid does not end the literal."""
    prepared = OpenTransaction(True, "o'clock", "shop", None, 5.0)
    found = look(replace(GOOD, open_transactions=(prepared,)))["open transactions"]
    assert found.statement == "ROLLBACK PREPARED 'o''clock';"
    assert "the slot is not ready before it ends" in found.message
    short, long = OpenTransaction(False, "1", "shop", "app", 10.0), OpenTransaction(False, "42", "shop", "app", 4000.0)
    assert look(replace(GOOD, open_transactions=(short,))) == {}
    found = look(replace(GOOD, open_transactions=(long, short)), slot_exists=True)["open transactions"]
    assert found.statement == "SELECT pg_terminate_backend(42);"
    assert 'of "app" is open in database "shop" since 1:06:40' in found.message
    assert "slot" not in found.message
    unknown = OpenTransaction(False, "1", None, None, None)
    assert look(replace(GOOD, open_transactions=(unknown,))) == {}


def test_a_server_before_the_idle_timeout():
    settings = {name: value for name, value in GOOD.settings.items() if not name.startswith("idle")}
    assert look(replace(GOOD, version=170000, settings=settings)) == {}


@pytest.mark.parametrize("names", ["*", "shop", 'ANY 1 (s1, "Shop")', "FIRST 2 (s1, *)", "1 (a,SHOP)", 's1, "shop"'])
def test_commits_that_would_wait_for_pgbridge(names):
    assert look(with_settings(synchronous_standby_names=names)).keys() == {"synchronous_standby_names"}


def test_commits_of_a_standby():
    """It has the primary's setting, and no commits that could wait."""
    feedback = replace(with_settings(synchronous_standby_names="*", hot_standby_feedback="on"), in_recovery=True)
    assert "synchronous_standby_names" not in look(feedback)


@pytest.mark.parametrize("names", ["", "s1", "ANY 1 (shops)", '"shop "', "2 (s1, s2)"])
def test_commits_that_wait_for_others(names):
    assert look(with_settings(synchronous_standby_names=names)) == {}


def test_a_walsender_that_is_impatient():
    assert look(with_settings(wal_sender_timeout="0")) == {}
    (found,) = look(with_settings(wal_sender_timeout="4000")).values()
    assert found.statement == "ALTER ROLE \"repl\" SET wal_sender_timeout = '60s';"


def test_a_database_that_takes_any_bytes():
    (found,) = look(with_settings(server_encoding="SQL_ASCII")).values()
    assert 'unrepresentable = "null"' in found.remedy
