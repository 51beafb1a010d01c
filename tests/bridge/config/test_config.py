"""Every key of CONTRACT.md has its meaning and its default; every mistake is named with its place and its remedy."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest
from pydantic import ValidationError

from pgbridge.bridge.config.config import Config, Subscription, load
from pgbridge.bridge.runtime.errors import ConfigError
from tests.bridge.configurations import DEFAULTS, SHOP, with_key

CONTRACT = """
state_dir = "./state"
[spark]
master = "local[2]"
[spark.conf]
"spark.driver.memory" = "3g"
[subscription.shop]
connection = "host=db port=5432 dbname=shop user=pgbridge"
publications = ["shop_pub"]
warehouse = "./lake"
slot_name = "shop"
create_slot = true
enabled = true
copy_data = true
binary = true
streaming = "off"
two_phase = false
origin = "any"
disable_on_error = false
publication_definitions = "filters.sql"
conflict = "error"
schema_evolution = "evolve"
"""
"""The contract's example."""


@pytest.fixture
def read(tmp_path):
    """Reads a configuration from a text, as pgbridge.toml in the test's folder."""

    def read(text: str) -> Config:
        (tmp_path / "pgbridge.toml").write_text(text, encoding="utf-8")
        return load(tmp_path / "pgbridge.toml")

    return read


# --- what is accepted -------------------------------------------------------------------------------------------------


def test_contract(read, tmp_path):
    (tmp_path / "filters.sql").write_text("CREATE PUBLICATION p FOR TABLE t")
    settings = read(CONTRACT)
    assert settings.state_dir == tmp_path / "state"
    assert settings.spark.master == "local[2]"
    assert settings.spark.conf == {"spark.driver.memory": "3g"}
    shop = settings.subscription["shop"]
    assert shop.name == "shop"
    assert shop.connection == "host=db port=5432 dbname=shop user=pgbridge"
    assert shop.publications == ("shop_pub",)
    assert shop.warehouse == str(tmp_path / "lake")
    definitions = str(tmp_path / "filters.sql")
    assert shop.model_dump(include=set(DEFAULTS)) == {**DEFAULTS, "publication_definitions": definitions}


def test_defaults(read, tmp_path):
    settings = read(SHOP)
    assert settings.state_dir == tmp_path / "state"
    assert (settings.spark.master, settings.spark.conf) == ("local[*]", {})
    shop = settings.subscription["shop"]
    assert shop.model_dump(exclude={"name", "connection", "publications", "warehouse"}) == DEFAULTS


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('slot_name = "other_slot"', "other_slot"),
        ("create_slot = false", False),
        ("enabled = false", False),
        ("copy_data = false", False),
        ("binary = false", False),
        ('origin = "none"', "none"),
        ("disable_on_error = true", True),
        ('conflict = "error"', "error"),
        ('schema_evolution = "strict"', "strict"),
        ('unrepresentable = "null"', "null"),
        ("batch.max_rows = 1", 1),
        ("batch.max_bytes = 1000", 1000),
        ("batch.max_age_s = 0", 0.0),
        ("batch.max_age_s = 2.5", 2.5),
        ("batch.commit_interval_s = 15", 15.0),
        ("workers.max_sync_workers = 4", 4),
        ('target.maintenance = "all"', "all"),
        ('target.maintenance = "none"', "none"),
        ("target.vacuum_retention_h = 0", 0),
        ("target.vacuum_retention_h = 168", 168),
        ("workers.wal_receiver_timeout_s = 0", 0.0),
        ("workers.retry_max_s = 1", 1.0),
    ],
)
def test_every_key_is_read(read, line, value):
    settings = read(with_key(line))
    assert attrgetter(line.split(" = ")[0])(settings.subscription["shop"]) == value


def test_several_subscriptions(read):
    settings = read(SHOP + SHOP.replace("shop", "hr"))
    assert list(settings.subscription) == ["shop", "hr"]
    assert [item.name for item in settings.subscription.values()] == ["shop", "hr"]


def test_names_with_other_characters(read):
    """A publication's name is the server's business, and may be anything."""
    settings = read(SHOP.replace('"shop_pub"', "'Büro \"x\", y', 'b.c'"))
    assert settings.subscription["shop"].publications == ('Büro "x", y', "b.c")


@pytest.mark.parametrize(
    ("name", "slot_name"),
    [
        ("shop", "shop"),
        ("Shop", "shop"),
        ('"shop-1.eu"', "shop_1_eu"),
        ("_x9", "_x9"),
        ("9", "9"),
        ("a" * 63, "a" * 63),
    ],
)
def test_slot_name_comes_from_the_name(read, name, slot_name):
    settings = read(SHOP.replace("shop]", f"{name}]"))
    (subscription,) = settings.subscription.values()
    assert subscription.name == name.strip('"')
    assert subscription.slot_name == slot_name


def test_origin_name(read):
    """What an operator finds in errors, beside PostgreSQL's own pg_16389."""
    assert read(SHOP).subscription["shop"].origin_name == "pgbridge_shop"


def test_configuration_is_frozen(read):
    settings = read(SHOP)
    with pytest.raises(ValidationError, match="frozen"):
        settings.subscription["shop"].enabled = False


def test_made_in_python():
    """As tests and benchmarks do it, without a file."""
    shop = Subscription(name="Shop", connection="", publications=("p",), warehouse="/lake")
    assert shop.slot_name == "shop"
    assert Config(subscription={"Shop": shop}).subscription["Shop"] == shop


# --- paths ------------------------------------------------------------------------------------------------------------


def test_paths_are_relative_to_the_file(tmp_path, monkeypatch):
    """Wherever the command is started from."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "conf" / "my.toml").write_text('state_dir = "../var"' + SHOP)
    monkeypatch.chdir(tmp_path / "elsewhere")
    settings = load(Path("../conf/my.toml"))
    assert settings.state_dir.resolve() == tmp_path / "var"
    assert settings.subscription["shop"].warehouse == str(tmp_path / "conf" / "lake")


def test_absolute_and_home_paths(read, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    settings = read('state_dir = "~/state"' + SHOP.replace("./lake", "/srv/lake"))
    assert settings.state_dir == tmp_path / "home" / "state"
    assert settings.subscription["shop"].warehouse == "/srv/lake"


@pytest.mark.parametrize(
    "uri", ["s3a://bucket/lake", "abfss://c@a.example/lake", "hdfs:///lake", "file:/srv/lake", "dbfs:/x"]
)
def test_uris_stay_as_they_are(read, uri):
    """`file:/srv` and `dbfs:/x` are URIs as well: one slash is enough for Hadoop."""
    assert read(SHOP.replace("./lake", uri)).subscription["shop"].warehouse == uri


def test_publication_definitions(tmp_path):
    """Beside the configuration file, and read with it."""
    (tmp_path / "f.sql").write_text("CREATE PUBLICATION p FOR TABLE t")
    path = tmp_path / "pgbridge.toml"
    path.write_text(with_key('publication_definitions = "f.sql"'))
    (shop,) = load(path).subscription.values()
    assert shop.publication_definitions == str(tmp_path / "f.sql")


# --- copies at a time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SHOP, 4),
        (with_key("workers.max_sync_workers = 9"), 9),
        ("max_logical_replication_workers = 3" + SHOP, 2),
        ("max_logical_replication_workers = 1" + SHOP, 1),
        ("max_logical_replication_workers = 3" + with_key("enabled = false"), 3),
    ],
)
def test_copies_at_once(read, text, expected):
    """What the apply workers leave, one at least; without the key nobody's max_sync_workers is cut."""
    assert read(text).copies_at_once == expected


@pytest.mark.parametrize("warehouse", ["catalog:main", "catalog:spark_catalog.shop"])
def test_a_catalog_is_no_path(tmp_path, warehouse):
    file = tmp_path / "pgbridge.toml"
    file.write_text(f'[subscription.a]\nconnection = ""\npublications = ["p"]\nwarehouse = "{warehouse}"\n')
    assert load(file).subscription["a"].warehouse == warehouse


@pytest.mark.parametrize(
    ("warehouse", "conf", "words"),
    [
        ("catalog:main.shop.t", "", r'subscription.a.warehouse: must be "catalog:CATALOG" or'),
        (
            "catalog:spark_catalog",
            '[spark.conf]\n"spark.sql.catalogImplementation" = "in-memory"',
            "spark.conf: .* forgets its tables when Spark ends",
        ),
    ],
)
def test_a_catalog_that_cannot_be_used(tmp_path, warehouse, conf, words):
    file = tmp_path / "pgbridge.toml"
    table = f'[subscription.a]\nconnection = ""\npublications = ["p"]\nwarehouse = "{warehouse}"\n'
    file.write_text(f"{conf}\n{table}")
    with pytest.raises(ConfigError, match=words):
        load(file)
