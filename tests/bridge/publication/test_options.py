"""The parameters of WITH, with PostgreSQL's words for what it does not take."""

from __future__ import annotations

import pytest

from bridge.publication.options import OptionError, publication_options
from bridge.publication.publication import ACTIONS


@pytest.mark.parametrize(
    ("name", "value", "field", "read"),
    [
        ("publish", "insert", "actions", {"insert"}),
        ("publish", " INSERT ,\tupdate,insert", "actions", {"insert", "update"}),
        ("publish", '"delete", truncate', "actions", {"delete", "truncate"}),
        ("publish", ", ".join(ACTIONS), "actions", set(ACTIONS)),
        ("publish", " ", "actions", set()),
        ("publish_via_partition_root", None, "via_root", True),
        ("publish_via_partition_root", "ON", "via_root", True),
        ("publish_via_partition_root", "1", "via_root", True),
        ("publish_via_partition_root", "false", "via_root", False),
        ("publish_generated_columns", "Stored", "generated_columns", "stored"),
        ("publish_generated_columns", "none", "generated_columns", "none"),
    ],
)
def test_value(name, value, field, read):
    assert publication_options({name: value}) == {field: read}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("publish", None, "publish requires a parameter"),
        ("publish", "insert, bla", 'unrecognized value for publication option "publish": "bla"'),
        ("publish", '"INSERT"', 'unrecognized value for publication option "publish": "INSERT"'),
        ("publish", "insert update", 'invalid list syntax in parameter "publish"'),
        ("publish", "insert,", 'invalid list syntax in parameter "publish"'),
        ("publish_via_partition_root", "yes", "publish_via_partition_root requires a Boolean value"),
        ("publish_via_partition_root", "2", "publish_via_partition_root requires a Boolean value"),
        (
            "publish_generated_columns",
            None,
            'invalid value for publication parameter "publish_generated_columns": ""',
        ),
        ("Publish", "insert", 'unrecognized publication parameter: "Publish"'),
    ],
)
def test_refused(name, value, message):
    with pytest.raises(OptionError) as error:
        publication_options({name: value})
    assert str(error.value) == message
