"""`pgbridge verify`: its options, exit codes and what it refuses; `test_verification` verifies."""

from __future__ import annotations

import io
from contextlib import closing, contextmanager, nullcontext

import pytest
from pyspark.errors import PySparkException
from rich.console import Console
from structlog.testing import capture_logs

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, RelRow
from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.config.config import Config, Subscription
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import ConfigError, PublisherError, StateError, TakenOver, VerifyError
from pgbridge.bridge.spark.driver import Driver
from pgbridge.bridge.spark.session import driver_for
from pgbridge.bridge.verify import command
from pgbridge.bridge.verify.comparison import Verdict
from pgbridge.protocol.lsn import Lsn
from tests.oracle.memory_tables import MemoryTables

SHOP = Subscription(name="shop", connection="", publications=("pub",), warehouse="/lake")


@contextmanager
def spark(*_):
    yield MemoryTables()


@pytest.mark.parametrize(
    ("text", "rate"), [("100", 100), ("2kB", 2048), ("50MB", 50 << 20), ("1.5 GiB", 1.5 * (1 << 30)), ("3m", 3 << 20)]
)
def test_rates(text, rate):
    assert command.rate_of(text) == rate


@pytest.mark.parametrize("text", ["", "0", "fast", "-1", "10 apples", "1e9"])
def test_no_rates(text):
    with pytest.raises(ConfigError, match="--max-rate is bytes a second"):
        command.rate_of(text)


def test_repair_needs_the_daemon_stopped_and_no_unfinished_batch(tmp_path):
    config = Config(state_dir=tmp_path, subscription={"shop": SHOP})
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("shop", enabled=True)
        catalog.create_origin("shop", Lsn(0x20), "abc", [RelRow("public", "t", "r", Lsn(1), "/t")])
        with locked(tmp_path), pytest.raises(StateError, match="another pgbridge daemon"):
            command.collect(config, [SHOP], repaired=True, started=spark)
        catalog.begin_batch("shop", BatchIntent(Lsn(0x20), Lsn(0x30)))
        with pytest.raises(StateError, match="a batch that was begun and not finished"):
            command.collect(config, [SHOP], repaired=True, started=spark)
        catalog.finish_batch("shop", Lsn(0x30))
        catalog.put_rel("shop", RelRow("public", "t", "r", Lsn(1), "/t", position=Lsn(0x40)))
        with pytest.raises(StateError, match="a batch that was begun and not finished"):
            command.collect(config, [SHOP], repaired=True, started=spark)


def test_repair_is_refused_where_another_machine_has_taken_over(tmp_path, tables):
    """The tables have that one's rows; the server is not even asked."""
    config = Config(state_dir=tmp_path, subscription={"shop": SHOP})
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("shop", enabled=True)
        catalog.set_slot("shop", slot_name="slot", slot_state="ready", system_identifier="1")
        catalog.create_origin("shop", Lsn(0x20), "abc", [RelRow("public", "t", "r", Lsn(1), "/t")])
    tables.lake.manifests["pgbridge/1/shop", "slot"] = "{}"
    tables.lake.generations["pgbridge/1/shop"] = 1
    with pytest.raises(TakenOver, match='"shop" was taken over'):
        command.collect(config, [SHOP], repaired=True, started=lambda *_: nullcontext(tables))


def not_started(*_):
    pytest.fail("Spark was started")


def test_a_subscription_without_tables_is_told_before_spark_starts(tmp_path):
    """Not one of logical messages, which needs none."""
    messages = SHOP.model_copy(update={"name": "messages", "messages": "table"})
    config = Config(state_dir=tmp_path, subscription={"shop": SHOP, "messages": messages})
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        for name in ("shop", "messages"):
            catalog.register(name, enabled=True)
            catalog.create_origin(name, Lsn(0x20), "abc", [])
        with pytest.raises(VerifyError, match='"shop" follows no table') as caught:
            command.collect(config, [messages, SHOP], started=not_started)
        assert caught.value.hint == remedies.of_no_table("shop")


def test_a_table_that_nobody_follows_is_told_before_spark_starts(tmp_path):
    config = Config(state_dir=tmp_path, subscription={"shop": SHOP})
    with pytest.raises(VerifyError, match='no subscription follows table "nothing"'):
        command.collect(config, [SHOP], tables=["nothing"], started=not_started)


def test_one_that_cannot_be_verified_does_not_silence_the_others(tmp_path, monkeypatch):
    """Its server is away, its Delta tables are damaged, or pgbridge has a mistake, which the log tells in full.

    The exit code says that something was not verified.
    """
    config = Config(state_dir=tmp_path, subscription={"shop": SHOP})
    names = ("away", "damaged", "mistaken", "fine")
    chosen = [SHOP.model_copy(update={"name": name, "connection": f"host={name}"}) for name in names]

    class Server:
        def __init__(self, conninfo, **_):
            if conninfo == "host=away":
                raise PublisherError("cannot connect to the publisher")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            """Nothing to close."""

    class Verified:
        def __init__(self, spark, catalog, subscription, *_, **__):
            self.name = subscription.name

        def run(self, _):
            if self.name == "damaged":
                raise PySparkException("[DELTA_LOG_FILE_NOT_FOUND] 0.json")
            if self.name == "mistaken":
                raise TypeError("no number\nat all")
            return Lsn(1), [Verdict("public.t", "/t")]

    monkeypatch.setattr(command, "Publisher", Server)
    monkeypatch.setattr("pgbridge.bridge.apply.published.Published.read", lambda *_: None)
    monkeypatch.setattr(command, "Verification", Verified)
    with capture_logs() as logs:
        document = command.collect(config, chosen, started=spark)
    assert [(one["subscription"], str(one["exc_info"])) for one in logs] == [("mistaken", "no number\nat all")]
    errors = {one["subscription"]: one.get("error") for one in document["subscriptions"]}
    assert errors == {
        "away": "cannot connect to the publisher",
        "damaged": "[DELTA_LOG_FILE_NOT_FOUND] 0.json",
        "mistaken": "an unexpected error, TypeError: no number",
        "fine": None,
    }
    assert document["exit_code"] == command.UNVERIFIED
    with pytest.raises(PublisherError):
        command.collect(config, chosen[:1], started=spark)
    with capture_logs(), pytest.raises(VerifyError):
        command.collect(config, chosen[2:3], started=spark)


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_jvm_that_dies_is_started_again_with_a_task_at_a_time(tmp_path, monkeypatch, deaths):
    """A table with large rows may need the heap for itself; if that does not do either, the others are verified."""
    config = Config(state_dir=tmp_path, subscription={"shop": SHOP}, spark={"master": "local[3]"})
    chosen = [SHOP.model_copy(update={"name": name}) for name in ("large", "fine")]
    used, started, sessions, dead = [], [], list[MemoryTables](), []

    class Verified:
        def __init__(self, spark, catalog, subscription, *_, **__):
            self.name = subscription.name
            used.append((sessions.index(spark), self.name))

        def run(self, _):
            if self.name == "large" and len(used) <= deaths:
                dead.append("it ended with exit code 52")
                raise ConnectionRefusedError(111, "Connection refused")
            return Lsn(1), [Verdict("public.t", "/t")]

    def start(driver, conf, *_):
        dead.clear()
        started.append((driver.master, conf.get("spark.task.cpus")))
        sessions.append(MemoryTables())
        return sessions[-1]

    monkeypatch.setattr(command, "Publisher", lambda *_, **__: nullcontext())
    monkeypatch.setattr("pgbridge.bridge.apply.published.Published.read", lambda *_: None)
    monkeypatch.setattr(command, "Verification", Verified)
    for name, made in {
        "start": start, "stop": lambda *_: None, "forget": lambda _: driver_for("local[3]"),
        "lost": lambda *_: next(iter(dead), None),
    }.items():  # fmt: skip
        monkeypatch.setattr(Driver, name, made)
    document = command.collect(config, chosen)
    error = document["subscriptions"][0].get("error")
    assert started == [("local[3]", None)] + [("local[3]", 3)] * deaths
    assert used == [(0, "large"), (1, "large"), (deaths, "fine")]
    if deaths == 1:
        assert (error, document["exit_code"]) == (None, command.EQUAL)
    else:
        assert error.startswith("Spark's JVM has died: it ended with exit code 52")
        assert document["exit_code"] == command.UNVERIFIED


def table(**fields):
    return {
        "relation": "public.t", "rows": 1, "equal": True, "could_not": None, "changelog": False, "left_out": 0,
        "partly": False, "repaired": False, "differences": {}, "shown": [], **fields,
    }  # fmt: skip


@pytest.mark.parametrize(("equal", "code"), [([True], 0), ([True, False, None], 1), ([True, None], 2), ([], 0)])
def test_exit_codes(equal, code):
    assert command._exit_code([{"tables": [table(equal=one) for one in equal]}], named=False) == code


@pytest.mark.parametrize(("partly", "code"), [(False, command.EQUAL), (True, command.DIFFERENT)])
def test_what_is_repaired_is_equal(partly, code):
    """Unless more differs than was looked into."""
    mended = table(equal=False, repaired=True, partly=partly, differences={"extra": 1})
    assert command._exit_code([{"tables": [mended, table()]}], named=False) == code


@pytest.mark.parametrize(("fields", "hinted"), [
    ({}, True), ({"repaired": True}, False), ({"unrepaired": "no key"}, False), ({"caveat": "inserts"}, False),
])  # fmt: skip
def test_a_difference_is_shown_with_its_repair(fields, hinted):
    differs = table(equal=False, differences={"extra": 1}, **fields)
    output = io.StringIO()
    document = {"subscriptions": [{"subscription": "shop", "lsn": "0/1", "tables": [differs]}]}
    Console(file=output, width=200).print(command.render(document))
    assert ("stop the daemon and run: pgbridge verify shop --repair" in output.getvalue()) == hinted


@pytest.mark.parametrize(("named", "code"), [(False, command.EQUAL), (True, command.UNVERIFIED)])
def test_a_changelog_counts_only_if_it_is_named(named, code):
    """Else a nightly `verify` of such a configuration would never be green."""
    kept = table(equal=None, could_not="it has a changelog, not the table's rows", changelog=True)
    assert command._exit_code([{"tables": [kept, table()]}], named=named) == code
    assert command._said(kept) == "it has a changelog, not the table's rows"


def test_what_is_said():
    assert command._said(table()) == "yes"
    assert command._said(table(equal=None, could_not="it is being copied")) == "not verified: it is being copied"
    partly = table(equal=False, partly=True, differences={"missing": 1234}, left_out=5)
    assert command._said(partly) == ("at least 1,234 missing (5 keys left out: their last changes are not applied yet)")
    assert command._said(table(equal=False, repaired=True, differences={"extra": 1})) == "1 extra; repaired"
