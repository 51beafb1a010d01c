"""The options of `format("pgoutput")`: defaults, names in any case, and errors that name the option."""

from __future__ import annotations

import pytest

from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.bridge.source.options import snapshot_options, stream_options

STREAM = {"connection": "dbname=shop", "publication": "shop", "slot": "orders_query"}
SNAPSHOT = {"connection": "dbname=shop", "publication": "shop", "table": "public.orders"}


def test_defaults():
    options = stream_options(STREAM)
    assert options.publications == ("shop",)
    assert (options.table, options.create_slot, options.max_bytes, options.max_rows) == (None, False, 1 << 30, None)
    assert options.subscription.slot_name == "orders_query"


def test_names_and_sizes():
    given = {**STREAM, "publication": 'a, "b, c" ,"d""e"', "MAXBYTESPERTRIGGER": "64m", "maxrowspertrigger": "10"}
    options = stream_options(given)
    assert options.publications == ("a", "b, c", 'd"e')
    assert (options.max_bytes, options.max_rows) == (64 << 20, 10)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"slots": "x"}, 'no option "slots" for readStream'),
        ({"snapshot": "x"}, 'no option "snapshot" for readStream'),
        ({"slot": ""}, 'option "slot" is missing'),
        ({"slot": "Orders"}, 'option "slot": "Orders" is no name of a slot'),
        ({"publication": ","}, 'option "publication": names with commas'),
        ({"publication": "a,a"}, 'option "publication": names with commas'),
        ({"table": "orders"}, 'option "table": "orders" has no schema; write for example "public.orders"'),
        ({"create_slot": "yes"}, 'option "create_slot" is false or true, not "yes"'),
        ({"unrepresentable": "nan"}, 'option "unrepresentable" is error or null, not "nan"'),
        ({"maxRowsPerTrigger": "0"}, 'option "maxRowsPerTrigger" is a number of at least 1, not "0"'),
        ({"maxRowsPerTrigger": "nan"}, 'option "maxRowsPerTrigger" is a number'),
        ({"maxBytesPerTrigger": "1 x"}, 'option "maxBytesPerTrigger" is a size'),
        ({"idleIntervalSeconds": "-1"}, 'option "idleIntervalSeconds" is a number'),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        stream_options({**STREAM, **given})


def test_a_snapshot_is_of_one_table_and_has_no_slot():
    assert snapshot_options({**SNAPSHOT, "snapshot": "00000003-1"}).snapshot == "00000003-1"
    with pytest.raises(ConfigError, match='option "table" is missing'):
        snapshot_options({"connection": "dbname=shop", "publication": "shop"})
    with pytest.raises(ConfigError, match='no option "slot" for read'):
        snapshot_options({**SNAPSHOT, "slot": "x"})


def test_the_connection_string_is_not_shown():
    assert "secret" not in repr(stream_options({**STREAM, "connection": "password=secret"}))
