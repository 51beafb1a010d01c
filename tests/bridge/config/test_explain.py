"""Every mistake in a configuration file is named with its key, its value and what is allowed."""

from __future__ import annotations

import json

import pytest

from pgbridge.bridge.config.config import Subscription, load
from pgbridge.bridge.config.explain import MOVED
from pgbridge.bridge.runtime.errors import ConfigError
from tests.bridge.configurations import DEFAULTS, SHOP, with_key

EACH = "; each subscription is a table [subscription.NAME]"
SECRET = "s3cr3t"


@pytest.fixture
def refused(tmp_path):
    """Reads a configuration that is refused; gives the message's lines, each without the file it begins with."""

    def refused(text: str) -> list[str]:
        (tmp_path / "pgbridge.toml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            load(tmp_path / "pgbridge.toml")
        lines = str(caught.value).splitlines()
        prefix = f"{tmp_path / 'pgbridge.toml'}: "
        assert all(line.startswith(prefix) for line in lines)
        return [line.removeprefix(prefix) for line in lines]

    return refused


def shop(folder, line):
    """A configuration file with one more key."""
    (folder / "pgbridge.toml").write_text(with_key(line))
    return folder / "pgbridge.toml"


@pytest.mark.parametrize("key", ["state_dir", "subscription.shop.warehouse"])
def test_home_of_nobody(refused, key):
    path = '"~nobody-of-that-name/x"'
    text = f"state_dir = {path}{SHOP}" if key == "state_dir" else SHOP.replace('"./lake"', path)
    assert refused(text) == [f"{key}: the home directory of {path} is unknown"]


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
    assert line == f'{key}: unknown key; did you mean "{guess}"?'


def test_unknown_key_without_a_suggestion(refused):
    """All that would be known there are named; `name` is no key."""
    (line,) = refused(with_key("zzz = 1"))
    known = ", ".join(["connection", "publications", "warehouse", *DEFAULTS])
    assert line == f"subscription.shop.zzz: unknown key; known keys: {known}"


def test_a_server_for_filters(refused):
    (line,) = refused(with_key(f'filter_server = "{SECRET}"'))
    assert line == 'subscription.shop.filter_server: must be "publisher" or a connection string'


@pytest.mark.parametrize("old", MOVED)
def test_a_key_that_has_moved(refused, tmp_path, old):
    """The line says where it is now, and a file with it there is read."""
    (line,) = refused(with_key(f"{old} = 1"))
    *tables, key = MOVED[old].split(".")
    assert line.startswith(f"subscription.shop.{old}: unknown key; ")
    assert f"in the table [subscription.shop.{tables[0]}]" in line if tables else f"write {key} = " in line
    place: object = load(shop(tmp_path, "")).subscription["shop"]
    for part in (*tables, key):
        assert part in type(place).model_fields  # type: ignore[attr-defined]
        place = getattr(place, part)
    load(shop(tmp_path, f"{MOVED[old]} = {json.dumps('publisher' if place is None else place)}"))


def test_moved_keys_are_read_nowhere_else(refused):
    (line,) = refused(f"adopt = true{SHOP}")
    assert line.startswith("adopt: unknown key; known keys")
    assert not MOVED.keys() & Subscription.model_fields.keys()


def test_the_top_level_is_short():
    """With its tables; the name is the table's own."""
    assert len(Subscription.model_fields) - 1 <= 25


def test_name_is_no_key(refused):
    """It would contradict the table's own."""
    (line,) = refused(with_key('name = "other"'))
    assert line.startswith("subscription.shop.name: unknown key; the table has the name")


@pytest.mark.parametrize("key", ["connection", "publications", "warehouse"])
def test_required_keys(refused, key):
    lines = [line for line in SHOP.splitlines() if not line.startswith(key)]
    assert refused("\n".join(lines)) == [f"subscription.shop.{key}: this key is required"]


@pytest.mark.parametrize("text", ["", "[subscription]", 'state_dir = "x"'])
def test_no_subscription(refused, text):
    (line,) = refused(text)
    assert line == "subscription: at least one table [subscription.NAME] is required"


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
        ("target.jsonb", '"null"', '"string" or "variant"'),
        ("target.vector", '"list"', '"string" or "array"'),
        ("target.geometry", '"ewkb"', '"string" or "wkb"'),
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
        ("batch.max_rows", "1.5", "an integer"),
        ("batch.max_rows", "true", "an integer"),
        ("batch.max_bytes", '"64MB"', "an integer"),
        ("batch.max_age_s", '"1"', "a number"),
        ("batch.max_age_s", "true", "a number"),
        ("batch.max_rows", "0", "greater than or equal to 1"),
        ("batch.max_bytes", "-1", "greater than or equal to 1"),
        ("batch.max_age_s", "-0.5", "greater than or equal to 0"),
        ("workers.max_sync_workers", "0", "greater than or equal to 1"),
        ("workers.wal_receiver_timeout_s", "-1", "greater than or equal to 0"),
        ("workers.retry_max_s", "0", "greater than 0"),
        ("workers.retry_max_s", "inf", "a finite number"),
        ("batch.max_age_s", "nan", "a finite number"),
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
        ("subscription = 5", f"subscription: must be a table, not 5{EACH}"),
        ("[subscription]\nshop = 5", f"subscription.shop: must be a table, not 5{EACH}"),
        (SHOP.replace('"host=db dbname=shop"', "7"), "subscription.shop.connection: must be a string, not 7"),
        (SHOP.replace('"./lake"', "[]"), "subscription.shop.warehouse: must be a string, not []"),
        (SHOP.replace('"./lake"', '""'), "subscription.shop.warehouse: must be a folder or a URI, not empty"),
    ],
)
def test_wrong_shape(refused, text, line):
    assert refused(text) == [line]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            f'[subscription]\nconnection = "password={SECRET}"',
            f"subscription.connection: must be a table, not a string{EACH}",
        ),
        (SHOP.replace('"host=db dbname=shop"', f'["password={SECRET}"]'), "must be a string, not an array"),
        (SHOP.replace('"host=db dbname=shop"', f'{{ password = "{SECRET}" }}'), "must be a string, not a table"),
        (SHOP.replace('"host=db dbname=shop"', f'"host=db" password = "{SECRET}"'), "is not valid TOML"),
        (SHOP.replace('"host=db dbname=shop"', f"'host=db password='{SECRET}''"), "is not valid TOML"),
        (with_key(f'password = "{SECRET}"'), "subscription.shop.password: unknown key"),
    ],
)
def test_no_error_shows_a_password(tmp_path, text, line):
    path = tmp_path / "pgbridge.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert line in str(error.value)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("value", ['"shop_pub"', "[]", "[1]", '["a", ""]', "{}"])
def test_publications_are_a_list_of_names(refused, value):
    (line,) = refused(SHOP.replace('["shop_pub"]', value))
    assert line.startswith(
        "subscription.shop.publications: must be an array with the names of one or more publications"
    )


def test_publication_named_twice(refused):
    """As in CREATE SUBSCRIPTION."""
    line = 'subscription.shop.publications: publication name "p" used more than once'
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
    assert line.endswith("is not allowed; a slot's name has 1 to 63 lower case letters, digits and _")


def test_name_that_is_too_long_for_a_slot(refused):
    """The remedy is the key that the message names."""
    name = "a" * 64
    (line,) = refused(SHOP.replace("shop]", f"{name}]"))
    assert line.startswith(f"subscription.{name}.slot_name: ")


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
    assert line == 'spark.conf: put the names of settings in quotes, as in "spark.driver.memory", not spark.…'


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


@pytest.mark.parametrize("hours", [1, 167])
def test_a_retention_that_readers_could_meet_is_refused(refused, hours):
    (line,) = refused(with_key(f"target.vacuum_retention_h = {hours}"))
    assert line.endswith(
        "must be 0, for no VACUUM, or at least 168, Delta's own least: readers may still use what is younger, "
        f"not {hours}"
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('listen = "0.0.0.0:9187"', "set token_file, or allow_anonymous = true"),
        ('listen = "db.example.org:9187"', "set token_file, or allow_anonymous = true"),
        ('listen = "9187"', "http.listen: must be host:port"),
        ("port = 1", "http.port: unknown key"),
        ('allow_anonymous = "yes"', "http.allow_anonymous"),
    ],
)
def test_http(refused, table, message):
    """What would show the status to a network is refused, unless it is asked for in words."""
    (line,) = refused(f"[http]\n{table}\n{SHOP}")
    assert message in line
