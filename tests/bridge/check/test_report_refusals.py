"""Wrong configurations, each given to `check` and to `run`: what `run` refuses, or would read otherwise, `check` tells.

`run` is its command where the configuration itself is refused, else the subscriptions' workers. They get no Spark:
what they refuse, they refuse before they need it.
"""

from __future__ import annotations

import json
import re
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.check.finding import passed
from pgbridge.bridge.config import config
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.errors import BridgeError, ConfigError, PublisherError
from pgbridge.bridge.service.subscriber import SubscriptionWorker
from pgbridge.bridge.sync.server_check import ServerCheck
from pgbridge.bridge.sync.start import Start
from pgbridge.bridge.sync.tablesync import TableSync

if TYPE_CHECKING:
    from pathlib import Path


class NoSpark:
    """A session that can be looked at, and does nothing."""

    sparkContext = SimpleNamespace(master="local[1]")  # noqa: N815 - PySpark's name


NO_SPARK: Any = NoSpark()

TABLES = """
    CREATE TABLE orders (id int PRIMARY KEY, kind text, v int);
    CREATE TABLE apart (id int PRIMARY KEY);
    CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE leaf PARTITION OF parted FOR VALUES FROM (0) TO (9);
    CREATE VIEW seen AS SELECT * FROM orders;
    CREATE PUBLICATION pub FOR TABLE orders, parted WITH (publish_via_partition_root = true);
"""


class Wrong(NamedTuple):
    """A wrong configuration: keys of the subscription `s`, other tables of the file, and the definitions."""

    refused: str
    keys: str = ""
    tables: str = ""
    definitions: str = ""
    publication: str = "pub"


IN_THE_FILE = {
    "a table's name without its schema": Wrong(
        'tables."public.orders"', tables='[subscription.s.tables.orders]\nmode = "history"'
    ),
    "a table's name without quotes": Wrong(
        'quotes are missing; write tables."public.orders"',
        tables='[subscription.s.tables.public.orders]\nmode = "history"',
    ),
    "a master that Spark does not know": Wrong("Spark does not know", tables='[spark]\nmaster = "lcal[2]"'),
    "a master among Spark's settings": Wrong(
        "set by the key master", tables='[spark.conf]\n"spark.master" = "local[2]"'
    ),
    "a heap that is no size": Wrong('as in "2g"', tables='[spark.conf]\n"spark.driver.memory" = "2gb"'),
    "a retention below Delta's": Wrong("at least 168", keys="target.vacuum_retention_h = 24"),
    "definitions that are not there": Wrong("cannot be read", keys='publication_definitions = "none.sql"'),
}

BY_THE_SERVER = {
    "a table that does not exist": Wrong(
        'name "public.orders"; or remove it', tables='[subscription.s.tables."public.oders"]\nmode = "history"'
    ),
    "a table that is not published": Wrong(
        'ALTER PUBLICATION "pub" ADD TABLE "public"."apart";',
        tables='[subscription.s.tables."public.apart"]\nmode = "history"',
    ),
    "a partition": Wrong(
        'write tables."public.parted"', tables='[subscription.s.tables."public.leaf"]\nmode = "history"'
    ),
    "a view": Wrong("cannot be published", tables='[subscription.s.tables."public.seen"]\nmode = "history"'),
    "definitions of a table that does not exist": Wrong(
        'relation "public.nosuch" does not exist', definitions="CREATE PUBLICATION a FOR TABLE nosuch, orders;"
    ),
    "definitions of no table that exists": Wrong(
        'relation "public.nosuch" does not exist', definitions="CREATE PUBLICATION a FOR TABLE nosuch;"
    ),
    "definitions of a schema that does not exist": Wrong(
        'schema "nosuch" does not exist', definitions="CREATE PUBLICATION a FOR TABLES IN SCHEMA nosuch;"
    ),
    "definitions of a column that does not exist": Wrong(
        'column "nosuch" of relation "orders" does not exist',
        definitions="CREATE PUBLICATION a FOR TABLE orders (id, nosuch);",
    ),
    "a filter on a column that does not exist": Wrong(
        'column "kynd" does not exist', definitions="CREATE PUBLICATION a FOR TABLE orders WHERE (kynd = 'x');"
    ),
    "a filter that no server takes": Wrong(
        "invalid publication WHERE expression",
        keys='filter_server = "publisher"',
        definitions="CREATE PUBLICATION a FOR TABLE orders WHERE (v ~~~ 1);",
    ),
    "a slot of somebody else's": Wrong("already exists on the publisher", keys='slot_name = "{slot}"'),
    "a slot that is not there": Wrong("does not exist on the publisher", keys="create_slot = false"),
}


@pytest.fixture(autouse=True)
def new_warehouse(monkeypatch):
    """A warehouse that knows nothing; Spark would read it."""
    monkeypatch.setattr("pgbridge.bridge.recovery.manifest_table.check_new", lambda *_: None)
    monkeypatch.setattr("pgbridge.bridge.recovery.manifest_table.knows", lambda *_: False)


@pytest.fixture
def both(pgbridge, publisher, tmp_path, monkeypatch):
    """Gives a configuration to `check` and to `run`; returns what each refuses it with."""
    monkeypatch.setattr("pgbridge.bridge.check.machine.check_java", lambda _: passed("Java", "17"))

    def give(wrong: Wrong) -> tuple[str, str]:
        keys = wrong.keys
        if wrong.definitions:
            (tmp_path / "f.sql").write_text(wrong.definitions)
            keys += '\npublication_definitions = "f.sql"'
        connection = json.dumps(publisher.conninfo)
        (tmp_path / "pgbridge.toml").write_text(
            f'[subscription.s]\nconnection = {connection}\npublications = ["{wrong.publication}"]\n'
            f'warehouse = "./lake"\n{keys}\n{wrong.tables}\n'
        )
        done = pgbridge("check", "--json")
        assert done.code == 2, done.out
        if not done.out:
            return done.err, done.err
        document = json.loads(done.out)
        found = document["machine"] + [one for s in document["subscriptions"] for one in s["findings"]]
        failures = [" ".join(map(str, one.values())) for one in found if one["level"] == "failure"]
        return "\n".join(failures), refused_by_run(tmp_path / "pgbridge.toml")

    return give


def refused_by_run(file: Path) -> str:
    """The errors of the workers of a configuration, one after the other."""
    settings = config.load(file)
    with closing(Catalog(catalog_path(settings.state_dir))) as catalog:
        errors = []
        for subscription in settings.subscription.values():
            catalog.register(subscription.name, enabled=True)
            worker = SubscriptionWorker(subscription, NO_SPARK, catalog, until_caught_up=True)
            worker._run()  # in this thread
            errors.append(str(worker.error))
    return "\n".join(errors)


@pytest.mark.parametrize("name", IN_THE_FILE)
def test_the_file_is_refused(pgbridge, tmp_path, name):
    wrong = IN_THE_FILE[name]
    file = tmp_path / "pgbridge.toml"
    file.write_text(
        f'[subscription.s]\nconnection = "host=/nonexistent"\npublications = ["pub"]\nwarehouse = "./lake"\n'
        f"{wrong.keys}\n{wrong.tables}\n"
    )
    done = pgbridge("check")
    assert (done.code, wrong.refused in done.err) == (2, True), done.err
    with pytest.raises(ConfigError, match=re.escape(wrong.refused)):  # what `run` begins with
        config.load(file)


@pytest.mark.parametrize("name", BY_THE_SERVER)
def test_the_server_shows_it(both, publisher, name):
    publisher.execute(TABLES)
    wrong = BY_THE_SERVER[name]
    if "{slot}" in wrong.keys:
        slot = f"{publisher.name}_theirs"
        publisher.query(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        wrong = wrong._replace(keys=wrong.keys.format(slot=slot))
    checked, ran = both(wrong)
    assert wrong.refused in checked
    assert wrong.refused in ran
    assert "filter_server" not in checked or wrong.keys


SECOND = """
[subscription.{name}]
connection = {connection}
publications = ["pub"]
warehouse = "{warehouse}"
copy_data = false
{keys}
"""


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        (("a", "lake", ""), ("b", "lake", ""), 'is written by subscription "a"'),
        (("a", "lake", ""), ("b", "link", ""), 'is written by subscription "a"'),
        (("Shop", "x", ""), ("shop", "y", ""), 'is that of subscription "Shop"'),
        (("a", "x", 'slot_name = "one"'), ("b", "y", 'slot_name = "one"'), 'is that of subscription "a"'),
    ],
    ids=["one warehouse", "a link to it", "one default slot", "one slot"],
)
def test_two_subscriptions(pgbridge, publisher, tmp_path, monkeypatch, first, second, refused):
    """The second is refused, also if it begins before the first has created anything."""
    monkeypatch.setattr("pgbridge.bridge.check.machine.check_java", lambda _: passed("Java", "17"))
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to("lake")
    file = tmp_path / "pgbridge.toml"
    connection = json.dumps(publisher.conninfo)
    file.write_text(
        "".join(SECOND.format(name=n, connection=connection, warehouse=w, keys=k) for n, w, k in (first, second))
    )
    document = json.loads(pgbridge("check", "--json").out)
    failures = [
        [one["message"] for one in entry["findings"] if one["level"] == "failure"]
        for entry in document["subscriptions"]
    ]
    assert failures[0] == []
    assert [refused in message for message in failures[1]] == [True]
    with closing(Catalog(catalog_path(tmp_path / "state"))) as catalog:
        errors: list[str] = []
        for subscription in config.load(file).subscription.values():
            catalog.register(subscription.name, enabled=True)
            context = Context(subscription, NO_SPARK, catalog, log.get())
            with Publisher(subscription.connection, application_name="test") as server:
                published = {(table.namespace, table.name): table for table in server.tables(["pub"])}
                check = ServerCheck(context, server)
                start = Start(context, server, TableSync(context), published, check, lambda: pytest.fail("read again"))
                monkeypatch.setattr(ReplicationConnection, "create_slot", not_yet)
                with pytest.raises(PublisherError if errors == [] else BridgeError) as caught:
                    start.run()
                errors.append(str(caught.value))
    assert errors[0] == "not yet"
    assert refused in errors[1]


def not_yet(*_: object, **__: object) -> None:
    """As if the server waited for a transaction to end, so that there is no slot yet."""
    raise PublisherError("not yet")
