"""A server's types are asked for as they come up, and once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.receive.server_facts import ServerTypes
from pgbridge.bridge.runtime.errors import PublisherError

if TYPE_CHECKING:
    from pgbridge.protocol.values.pg_type import TypeInfo

INT4, NUMERIC_9_2 = (23, -1), (1700, (9 << 16) + 2 + 4)


def test_builtin_types_need_no_server(asked):
    asked.connection.close()
    assert [str(resolved.arrow) for resolved in ServerTypes(asked)([INT4, NUMERIC_9_2])] == [
        "int32",
        "decimal128(9, 2)",
    ]


def test_types_of_the_server(asked, publisher):
    """A domain is decoded as what it is made of, with the typmod that it has; also once it was dropped."""
    publisher.execute("CREATE TYPE mood AS ENUM ('sad'); CREATE DOMAIN price AS numeric(12,2)")
    mood, price = (publisher.query(f"SELECT '{name}'::regtype::oid")[0][0] for name in ("mood", "price"))
    kept: list[TypeInfo] = []
    types = ServerTypes(asked, keep=kept.extend)
    assert [str(resolved.arrow) for resolved in types([(mood, -1), INT4])] == ["string", "int32"]
    assert [str(resolved.arrow) for resolved in types([(price, -1)])] == ["decimal128(12, 2)"]
    publisher.execute("DROP TYPE mood; DROP DOMAIN price")
    again = ServerTypes(asked, {info.oid: info for info in kept}, kept.extend)
    assert [str(resolved.arrow) for resolved in again([(price, -1), INT4, (mood, -1)])] == [
        *("decimal128(12, 2)", "int32", "string")
    ]
    assert [info.name for info in kept] == ["mood", "price"]
    asked.connection.close()
    assert [str(resolved.arrow) for resolved in types([(price, -1), (mood, -1)])] == ["decimal128(12, 2)", "string"]
    with pytest.raises(PublisherError):
        types([(4_000_000_000, -1)])  # nobody to ask any more
