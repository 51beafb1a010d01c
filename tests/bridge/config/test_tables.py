"""What the file may say of one published table, and what each mistake is answered with."""

import pytest

from pgbridge.bridge.config.config import load
from pgbridge.bridge.config.tables import TargetTables
from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT, Layout
from tests.bridge.configurations import SHOP


@pytest.fixture
def read(tmp_path):
    """Reads the keys of one table of the subscription `shop`."""

    def read(keys):
        path = tmp_path / "pgbridge.toml"
        path.write_text(f'{SHOP}\n[subscription.shop.tables."public.t"]\n{keys}\n')
        return load(path).subscription["shop"]

    return read


def test_a_table_has_a_mode_or_a_layout_or_both(read):
    shop = read('cluster_by = ["day", "id"]')
    assert (shop.mode_of("public.t"), shop.layout_of("public.t")) == ("mirror", Layout(cluster_by=("day", "id")))
    shop = read('mode = "history"\npartition_by = ["region"]')
    assert (shop.mode_of("public.t"), shop.layout_of("public.t")) == ("history", Layout(partition_by=("region",)))
    assert (shop.mode_of("public.other"), shop.layout_of("public.other")) == ("mirror", NO_LAYOUT)


def test_what_does_not_become_a_string():
    assert TargetTables().parsed == set()
    assert TargetTables(jsonb="variant", vector="array", geometry="wkb").parsed == {"jsonb", "vector", "geometry"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            "",
            "at least one of the keys mode, rename, cluster_by, partition_by, properties, mask, rename_columns is",
        ),
        ('cluster_by = ["a"]\npartition_by = ["b"]', "cluster_by or partition_by, not both: remove one of them"),
        ('cluster_by = ["a", "b", "c", "d", "e"]', "at most 4 columns, not 5"),
        ("partition_by = []", "must be an array with the names of one or more columns"),
        ('partition_by = "region"', 'must be an array with the names of one or more columns, not "region"'),
        ('partition_by = ["a", 1]', "must be an array with the names of one or more columns"),
        ('cluster_by = ["a", "a"]', 'column name "a" used more than once'),
        ('clustered_by = ["a"]', 'did you mean "cluster_by"?'),
        (
            "properties = {delta.enableChangeDataFeed = true}",
            'in quotes, as in "delta.enableChangeDataFeed", not delta.',
        ),
        ('properties = {"delta.checkpointInterval" = [1]}', "must be a string, a number or a boolean"),
        ('properties = {"pgbridge.created" = false}', "pgbridge says by properties of this name which tables"),
        ('properties = {"delta.appendonly" = "TRUE"}', "rows are changed and deleted"),
        ('properties = {"delta.appendOnly" = false, "delta.appendonly" = false}', "is there twice"),
        ('properties = {"delta.deletedFileRetentionDuration" = "interval 3 days"}', "need files for a week"),
        ('properties = {"delta.setTransactionRetentionDuration" = "interval 5 milliseconds"}', "Delta then forgets"),
        ('properties = {"delta.isolationLevel" = "WriteSerializable"}', "would not notice rows"),
        ('properties = {"delta.setTransactionRetentionDuration" = "interval 2 hours"}', "Delta then forgets"),
        ('properties = "delta.appendOnly"', "a table"),
        ('rename = "orders"', 'must be a schema and a table, as in "public.orders"'),
        ('rename = "sales."', "must be a schema and a table"),
        ('rename = ".orders"', "a schema's name is not empty"),
        ('rename = "pgbridge.commits"', '"pgbridge" is where pgbridge keeps tables of its own'),
        ('rename = "PGBridge.commits"', '"PGBridge" is where pgbridge keeps tables of its own'),
        ('rename = "lake.pgbridge_commits"', "begins as the names of pgbridge's own tables"),
        ('mode = "mirrored"', 'allowed values: "mirror", "changelog", "history" or "soft_deletes"'),
    ],
)
def test_mistakes_are_named_with_their_place(read, keys, message):
    with pytest.raises(ConfigError) as caught:
        read(keys)
    assert message in str(caught.value)
    assert "subscription.shop.tables.public.t" in str(caught.value)


def test_where_a_new_delta_table_is(read):
    """A table's own name goes before the name of its schema."""
    shop = read('rename = "sales.all.orders"\n[subscription.shop.target.schemas]\npublic = "raw"')
    assert shop.place_of("public", "t") == (shop.warehouse, "sales", "all.orders")
    assert shop.place_of("public", "other") == (shop.warehouse, "raw", "other")
    assert shop.place_of("hr", "t") == (shop.warehouse, "hr", "t")
    assert read('mode = "history"').place_of("public", "t") == (shop.warehouse, "public", "t")
    for schema, words in (("", "is not empty"), ("pgbridge", "keeps tables of its own")):
        with pytest.raises(ConfigError, match=words):
            read(f'mode = "history"\n[subscription.shop.target.schemas]\npublic = "{schema}"')
