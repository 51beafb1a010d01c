"""pgoutput gets the subscription's options; an option that the server lacks is refused, not silently dropped."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.stream.pgoutput_options import pgoutput_options
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.protocol.codec.walsender import start_replication
from pgbridge.protocol.lsn import INVALID

V18, V16, V15, V14, V13 = 180006, 160010, 150014, 140000, 130020


def subscription(**options: Any) -> Subscription:
    return Subscription(name="shop", connection="", publications=("p", "q"), warehouse="lake", **options)


def asked(version: int, *, binary_readable: bool = True, **options: Any) -> dict[str, Any]:
    """The options without publication_names, which are always sent."""
    found = {**pgoutput_options(subscription(**options), version, binary_readable=binary_readable)}
    assert found.pop("publication_names") == ("p", "q")
    return found


@pytest.mark.parametrize("version", [V14, V15, V16, V18])
def test_defaults(version):
    assert asked(version) == {"proto_version": 1, "binary": True, "messages": True}


def test_defaults_on_a_server_without_them():
    """The file does not name them: values come as text, and messages do not come."""
    assert asked(V13) == {"proto_version": 1}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"binary": False}, {"proto_version": 1, "messages": True}),
        ({"messages": "off"}, {"proto_version": 1, "binary": True}),
        ({"messages": "table"}, {"proto_version": 1, "binary": True, "messages": True}),
        ({"streaming": "on"}, {"proto_version": 2, "binary": True, "messages": True, "streaming": "on"}),
        # the server does not tell whose savepoint a message of a transaction in progress is
        ({"streaming": "on", "messages": "table"}, {"proto_version": 1, "binary": True, "messages": True}),
        ({"two_phase": True}, {"proto_version": 3, "binary": True, "messages": True, "two_phase": True}),
        (
            {"streaming": "on", "two_phase": True},
            {"proto_version": 3, "binary": True, "messages": True, "streaming": "on", "two_phase": True},
        ),
        ({"origin": "none"}, {"proto_version": 1, "binary": True, "messages": True, "origin": "none"}),
    ],
    ids=str,
)
def test_each_option(options, expected):
    assert asked(V18, **options) == expected


def test_text_where_a_type_has_no_binary_reader():
    """Also where binary was asked for: it means "where possible"."""
    assert "binary" not in asked(V18, binary_readable=False)
    assert "binary" not in asked(V18, binary_readable=False, binary=True)


REFUSED = [
    ("binary", True, False, V13, 14),
    ("streaming", "on", "off", V13, 14),
    ("messages", "log", "off", V13, 14),
    ("messages", "table", "off", V13, 14),
    ("two_phase", True, False, V14, 15),
    ("origin", "none", "any", V15, 16),
]


@pytest.mark.parametrize(("key", "value", "instead", "version", "since"), REFUSED)
def test_what_the_server_lacks_is_refused(key, value, instead, version, since):
    """With what the server is, what would have it, and what to write for this one; and all of that is true."""
    with pytest.raises(PublisherError) as caught:
        asked(version, **{key: value})
    assert str(caught.value) == (
        f"{key} = {json.dumps(value)} needs PostgreSQL {since} on the publisher, which is {version // 10000}\n"
        f"HINT:  set {key} = {json.dumps(instead)}"
    )
    assert not caught.value.retry
    assert key in asked(since * 10000, **{key: value})
    assert key not in asked(version, **{key: instead})


@pytest.mark.parametrize("key", ["streaming", "two_phase", "origin"])
def test_written_default_is_no_wish_where_it_asks_for_nothing(key):
    """`streaming = "off"` in the file is fine with every server."""
    default = Subscription.model_fields[key].default
    assert asked(V13, **{key: default}) == {"proto_version": 1}


@pytest.mark.parametrize(
    "options",
    [{}, {"binary": False, "messages": "off"}, {"streaming": "on", "two_phase": True, "origin": "none"}],
    ids=["defaults", "least", "most"],
)
def test_the_server_takes_them(publisher, options):
    """The walsender reads all of it."""
    publisher.execute("CREATE PUBLICATION p; CREATE PUBLICATION q")
    ((version,),) = publisher.query("SELECT current_setting('server_version_num')::int")
    try:
        wanted = pgoutput_options(subscription(**options), version, binary_readable=True)
    except PublisherError as error:
        pytest.skip(str(error))
    name = f"{publisher.name}_slot"
    publisher.query(
        "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)", (name, "two_phase" in options)
    )
    with psycopg.connect(publisher.conninfo, autocommit=True, replication="database") as walsender:
        walsender.execute(start_replication(name, INVALID, wanted).encode())
        assert walsender.pgconn.transaction_status == TransactionStatus.ACTIVE
        walsender.pgconn.finish()
