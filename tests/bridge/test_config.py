"""Every key of CONTRACT.md has its meaning and its default; every mistake is named with its place and its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from bridge.config import Config, Subscription, load
from bridge.errors import ConfigError

SHOP = """
[subscription.shop]
connection = "host=db dbname=shop"
publications = ["shop_pub"]
warehouse = "./lake"
"""

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
conflict = "error"
schema_evolution = "evolve"
"""
"""The contract's example, but for publication_definitions, which this version refuses."""

DEFAULTS = {
    "slot_name": "shop",
    "create_slot": True,
    "enabled": True,
    "copy_data": True,
    "binary": True,
    "streaming": "off",
    "two_phase": False,
    "origin": "any",
    "messages": "log",
    "disable_on_error": False,
    "publication_definitions": None,
    "conflict": "error",
    "schema_evolution": "evolve",
    "unrepresentable": "error",
    "untranslatable_filters": "refuse",
    "filter_connection": None,
    "adopt": False,
    "batch_max_rows": 500_000,
    "batch_max_bytes": 256 * 1024 * 1024,
    "batch_max_age_s": 0.5,
    "max_sync_workers": 2,
    "wal_receiver_timeout_s": 60,
    "retry_max_s": 60,
}


@pytest.fixture
def read(tmp_path):
    """Reads a configuration from a text, as pgbridge.toml in the test's folder."""

    def read(text: str) -> Config:
        (tmp_path / "pgbridge.toml").write_text(text, encoding="utf-8")
        return load(tmp_path / "pgbridge.toml")

    return read


@pytest.fixture
def refused(read, tmp_path):
    """Reads a configuration that is refused; gives the message's lines, each without the file it begins with."""

    def refused(text: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            read(text)
        lines = str(caught.value).splitlines()
        prefix = f"{tmp_path / 'pgbridge.toml'}: "
        assert all(line.startswith(prefix) for line in lines)
        return [line.removeprefix(prefix) for line in lines]

    return refused


def with_key(line: str) -> str:
    return f"{SHOP}{line}\n"


# --- what is accepted -------------------------------------------------------------------------------------------------


def test_contract(read, tmp_path):
    settings = read(CONTRACT)
    assert settings.state_dir == tmp_path / "state"
    assert settings.spark.master == "local[2]"
    assert settings.spark.conf == {"spark.driver.memory": "3g"}
    shop = settings.subscription["shop"]
    assert shop.name == "shop"
    assert shop.connection == "host=db port=5432 dbname=shop user=pgbridge"
    assert shop.publications == ("shop_pub",)
    assert shop.warehouse == str(tmp_path / "lake")
    assert shop.model_dump(include=set(DEFAULTS)) == DEFAULTS


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
        ("batch_max_rows = 1", 1),
        ("batch_max_bytes = 1000", 1000),
        ("batch_max_age_s = 0", 0.0),
        ("batch_max_age_s = 2.5", 2.5),
        ("max_sync_workers = 4", 4),
        ("wal_receiver_timeout_s = 0", 0.0),
        ("retry_max_s = 1", 1.0),
    ],
)
def test_every_key_is_read(read, line, value):
    settings = read(with_key(line))
    assert getattr(settings.subscription["shop"], line.split(" = ")[0]) == value


def test_values_of_spark_settings_keep_their_kind(read):
    settings = read('[spark.conf]\n"a.b" = "text"\n"c" = 2\n"d" = true\n"e" = 0.5' + SHOP)
    assert settings.spark.conf == {"a.b": "text", "c": 2, "d": True, "e": 0.5}
    assert settings.spark.conf["d"] is True


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


@pytest.mark.parametrize("key", ["state_dir", "subscription.shop.warehouse"])
def test_home_of_nobody(refused, key):
    path = '"~nobody-of-that-name/x"'
    text = f"state_dir = {path}{SHOP}" if key == "state_dir" else SHOP.replace('"./lake"', path)
    assert refused(text) == [f"{key}: {path} has no home directory to begin with"]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_missing_file(tmp_path):
    """Says how to get one."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "none.toml")
    assert str(caught.value) == (
        f"configuration file {tmp_path / 'none.toml'} does not exist\n"
        "HINT:  write one with: pgbridge init --connection … --publication … --warehouse …"
    )


def test_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=f"configuration file {tmp_path} cannot be read: .*Is a directory"):
        load(tmp_path)
    (tmp_path / "latin1.toml").write_bytes(b"# B\xfcro")
    with pytest.raises(ConfigError, match=r"latin1\.toml cannot be read: 'utf-8' codec can't decode"):
        load(tmp_path / "latin1.toml")


def test_bad_toml(tmp_path):
    """With the line and column that the parser names."""
    (tmp_path / "bad.toml").write_text('state_dir = "x"\n[spark\n')
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML: .*\(at line 2, column \d+\)"):
        load(tmp_path / "bad.toml")


def test_same_key_twice(tmp_path):
    (tmp_path / "twice.toml").write_text(with_key("binary = true\nbinary = false"))
    with pytest.raises(ConfigError, match="Cannot overwrite a value"):
        load(tmp_path / "twice.toml")


@pytest.mark.parametrize(
    ("text", "key", "guess"),
    [
        (with_key('slot_nme = "x"'), "subscription.shop.slot_nme", "slot_name"),
        (with_key("copy-data = false"), "subscription.shop.copy-data", "copy_data"),
        ("sate_dir = 's'" + SHOP, "sate_dir", "state_dir"),
        ("[spark]\nmastr = 'x'" + SHOP, "spark.mastr", "master"),
        ("[subscriptions.shop]" + SHOP, "subscriptions", "subscription"),
    ],
)
def test_unknown_key_with_a_suggestion(refused, text, key, guess):
    (line,) = refused(text)
    assert line.startswith(f'{key}: unknown key; did you mean "{guess}"? (known keys: ')


def test_unknown_key_without_a_suggestion(refused):
    """All that would be known there are named; `name` is no key."""
    (line,) = refused(with_key("zzz = 1"))
    known = ", ".join(["connection", "publications", "warehouse", *DEFAULTS])
    assert line == f"subscription.shop.zzz: unknown key (known keys: {known})"


def test_a_server_for_filters_that_are_refused(refused):
    (line,) = refused(with_key('filter_connection = "host=x"'))
    assert line.endswith('filter_connection is for untranslatable_filters = "server"')


def test_name_is_no_key(refused):
    """It would contradict the table's own."""
    (line,) = refused(with_key('name = "other"'))
    assert line.startswith("subscription.shop.name: unknown key; the name is the table's")


@pytest.mark.parametrize("key", ["connection", "publications", "warehouse"])
def test_required_keys(refused, key):
    lines = [line for line in SHOP.splitlines() if not line.startswith(key)]
    assert refused("\n".join(lines)) == [f"subscription.shop.{key}: this key is required"]


@pytest.mark.parametrize("text", ["", "[subscription]", 'state_dir = "x"'])
def test_no_subscription(refused, text):
    (line,) = refused(text)
    assert line.startswith("subscription: ")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("streaming", '"parallel"', '"off" or "on"'),
        ("streaming", "true", '"off" or "on"'),
        ("messages", "true", '"off", "log" or "table"'),
        ("origin", '"local"', '"any" or "none"'),
        ("conflict", '"ignore"', '"error" or "apply_remote"'),
        ("schema_evolution", '"Evolve"', '"evolve" or "strict"'),
        ("unrepresentable", '""', '"error" or "null"'),
        ("untranslatable_filters", '"null"', '"refuse" or "server"'),
    ],
)
def test_value_outside_the_allowed_ones(refused, key, value, allowed):
    expected = f"subscription.shop.{key}: {value} is not allowed; allowed values: {allowed}"
    assert refused(with_key(f"{key} = {value}")) == [expected]


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("create_slot", '"yes"', "a boolean (true or false)"),
        ("enabled", "1", "a boolean (true or false)"),
        ("copy_data", '"true"', "a boolean (true or false)"),
        ("slot_name", "5", "a string"),
        ("batch_max_rows", "1.5", "an integer"),
        ("batch_max_rows", "true", "an integer"),
        ("batch_max_bytes", '"64MB"', "an integer"),
        ("batch_max_age_s", '"1"', "a number"),
        ("batch_max_age_s", "true", "a number"),
        ("batch_max_rows", "0", "greater than or equal to 1"),
        ("batch_max_bytes", "-1", "greater than or equal to 1"),
        ("batch_max_age_s", "-0.5", "greater than or equal to 0"),
        ("max_sync_workers", "0", "greater than or equal to 1"),
        ("wal_receiver_timeout_s", "-1", "greater than or equal to 0"),
        ("retry_max_s", "0", "greater than 0"),
        ("retry_max_s", "inf", "a finite number"),
        ("batch_max_age_s", "nan", "a finite number"),
    ],
)
def test_wrong_type_or_range(refused, key, value, wanted):
    assert refused(with_key(f"{key} = {value}")) == [f"subscription.shop.{key}: must be {wanted}, not {value}"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("state_dir = 5" + SHOP, "state_dir: must be a string, not 5"),
        ("[spark]\nmaster = 5" + SHOP, "spark.master: must be a string, not 5"),
        ("spark = 1" + SHOP, "spark: must be a table, not 1"),
        ("[spark]\nconf = 1" + SHOP, "spark.conf: must be a table, not 1"),
        ("subscription = 5", "subscription: must be a table, not 5"),
        ("[subscription]\nshop = 5", "subscription.shop: must be a table, not 5"),
        (SHOP.replace('"host=db dbname=shop"', "7"), "subscription.shop.connection: must be a string, not 7"),
        (SHOP.replace('"./lake"', "[]"), "subscription.shop.warehouse: must be a string, not []"),
        (SHOP.replace('"./lake"', '""'), "subscription.shop.warehouse: must be a folder or a URI, not empty"),
    ],
)
def test_wrong_shape(refused, text, line):
    assert refused(text) == [line]


@pytest.mark.parametrize("value", ['"shop_pub"', "[]", "[1]", '["a", ""]', "{}"])
def test_publications_are_a_list_of_names(refused, value):
    (line,) = refused(SHOP.replace('["shop_pub"]', value))
    assert line.startswith(
        "subscription.shop.publications: must be an array with the names of one or more publications"
    )


def test_publication_named_twice(refused):
    """As in CREATE SUBSCRIPTION."""
    line = 'subscription.shop.publications: publication "p" is named more than once'
    assert refused(SHOP.replace('["shop_pub"]', '["p", "q", "p"]')) == [line]


@pytest.mark.parametrize("name", ['"a b"', '"-x"', '"büro"', '""', '"a/b"'])
def test_subscription_name(refused, name):
    (line,) = refused(SHOP.replace("shop]", f"{name}]"))
    start = f"subscription.{name.strip(chr(34))}: a subscription's name has letters, digits and _"
    assert line.startswith(start)


@pytest.mark.parametrize("slot_name", ["Shop", "shop-1", "", "ключ", "a" * 64])
def test_slot_name_as_the_server_wants_it(refused, slot_name):
    """ReplicationSlotValidateName's rule, told before anything is started."""
    (line,) = refused(with_key(f'slot_name = "{slot_name}"'))
    assert line.startswith("subscription.shop.slot_name: ")
    assert line.endswith("is not allowed; a slot's name has lower case letters, digits and _, at most 63")


def test_name_that_is_too_long_for_a_slot(refused):
    """The remedy is the key that the message names."""
    name = "a" * 64
    (line,) = refused(SHOP.replace("shop]", f"{name}]"))
    assert line.startswith(f"subscription.{name}.slot_name: ")


def test_publication_definitions(tmp_path):
    """Beside the configuration file, and read with it."""
    (tmp_path / "f.sql").write_text("CREATE PUBLICATION p FOR TABLE t")
    path = tmp_path / "pgbridge.toml"
    path.write_text(with_key('publication_definitions = "f.sql"'))
    (shop,) = load(path).subscription.values()
    assert shop.publication_definitions == str(tmp_path / "f.sql")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('"none.sql"', "publication definitions "),
        ('"."', "publication definitions "),
        ("5", "must be a string, not 5"),
    ],
)
def test_publication_definitions_that_are_not_there(refused, value, message):
    (line,) = refused(with_key(f"publication_definitions = {value}"))
    assert line.startswith(f"subscription.shop.publication_definitions: {message}")


def test_publication_definitions_with_a_fault(tmp_path):
    (tmp_path / "f.sql").write_text("CREATE PUBLICATION p\nFOR t")
    path = tmp_path / "pgbridge.toml"
    path.write_text(with_key('publication_definitions = "f.sql"'))
    with pytest.raises(ConfigError) as error:
        load(path)
    place = f"{tmp_path / 'f.sql'}:2:5: invalid publication object list"
    assert str(error.value).startswith(f"{path}: subscription.shop.publication_definitions: {place}")


def test_spark_settings_without_quotes(refused):
    """TOML makes tables of the dots: the likeliest mistake in this file."""
    (line,) = refused('[spark.conf]\nspark.driver.memory = "3g"' + SHOP)
    assert line == 'spark.conf: the names of settings stand in quotes, as in "spark.driver.memory", not spark.…'


def test_spark_settings_of_a_wrong_type(refused):
    (line,) = refused('[spark.conf]\n"spark.jars" = ["a", "b"]' + SHOP)
    assert line == "spark.conf: \"spark.jars\" must be a string, a number or a boolean, not ['a', 'b']"


def test_every_fault_is_told_at_once(refused):
    """One line each, in the file's words: nobody has to run the command once a mistake."""
    lines = refused("state_dir = 5" + with_key('binary = "x"\norigin = "y"\nzzz = 1'))
    assert [line.split(":")[0] for line in lines] == [
        "state_dir",
        "subscription.shop.binary",
        "subscription.shop.origin",
        "subscription.shop.zzz",
    ]


def test_long_values_are_shortened(refused):
    (line,) = refused(with_key(f'binary = "{"x" * 500}"'))
    assert len(line) < 150
    assert line.endswith("…")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SHOP, 4),
        (with_key("max_sync_workers = 9"), 9),
        ("max_logical_replication_workers = 3" + SHOP, 2),
        ("max_logical_replication_workers = 1" + SHOP, 1),
        ("max_logical_replication_workers = 3" + with_key("enabled = false"), 3),
    ],
)
def test_copies_at_once(read, text, expected):
    """What the apply workers leave, one at least; without the key nobody's max_sync_workers is cut."""
    assert read(text).copies_at_once == expected
