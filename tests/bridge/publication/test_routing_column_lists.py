"""Column lists and generated columns of several publications: as the server's own publications have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from pgbridge.bridge.runtime.errors import PublicationError
from tests.bridge.publication.server_publications import (
    PARTITIONS,
    Decoder,
    Sent,
    entry_of,
    routing,
    tables_of,
)

if TYPE_CHECKING:
    from tests.fix_postgres import Publisher


def test_example_of_column_lists(publisher):
    """Only the list's columns, in the table's order."""
    publisher.execute("CREATE TABLE t1(id int, a text, b text, c text, d text, e text, PRIMARY KEY(id));")
    routed = tables_of(publisher, "CREATE PUBLICATION p1 FOR TABLE t1 (id, b, a, d);", "p1")
    assert entry_of(routed, "t1").column_names == ("id", "a", "b", "d")
    (sent,) = Decoder(publisher).sent(["p1"], "INSERT INTO t1 VALUES (1, 'a-1', 'b-1', 'c-1', 'd-1', 'e-1')")
    assert sent == [Sent("insert", "public.t1", ("id", "a", "b", "d"))]


@pytest.mark.parametrize(
    "text",
    [
        "CREATE PUBLICATION p FOR TABLE plain (a, b); CREATE PUBLICATION q FOR TABLE plain (a, c)",
        "CREATE PUBLICATION p FOR TABLE plain (a, b); CREATE PUBLICATION q FOR TABLE plain",
        "CREATE PUBLICATION p FOR TABLE plain (a, b); CREATE PUBLICATION q FOR ALL TABLES",
    ],
)
def test_different_column_lists(publisher, text):
    """The server's error, when a change comes."""
    publisher.execute(PARTITIONS + text)
    with pytest.raises(PublicationError) as refused:
        routing(publisher, text)
    with pytest.raises(psycopg.Error) as error:
        Decoder(publisher).sent(["p", "q"], "INSERT INTO plain VALUES (1)")
    assert refused.value.args[0] == error.value.diag.message_primary


def test_list_of_all_columns_is_no_different_list(publisher):
    publisher.execute(PARTITIONS)
    text = "CREATE PUBLICATION p FOR TABLE plain (c, b, a); CREATE PUBLICATION q FOR TABLE plain"
    assert entry_of(tables_of(publisher, text, "p", "q"), "plain").column_names == ("a", "b", "c")


def generated(publisher: Publisher) -> None:
    if publisher.query("SELECT current_setting('server_version_num')::int")[0][0] < 180000:
        pytest.skip("publish_generated_columns needs PostgreSQL 18")
    publisher.execute(
        "CREATE TABLE g (a int PRIMARY KEY, s int GENERATED ALWAYS AS (a * 2) STORED,"
        " v int GENERATED ALWAYS AS (a * 3) VIRTUAL)"
    )


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("CREATE PUBLICATION p FOR TABLE g", ("a",)),
        ("CREATE PUBLICATION p FOR TABLE g WITH (publish_generated_columns = stored)", ("a", "s")),
        ("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_generated_columns = stored)", ("a", "s")),
        ("CREATE PUBLICATION p FOR TABLE g (a, s)", ("a", "s")),
        ("CREATE PUBLICATION p FOR TABLE g (a) WITH (publish_generated_columns = stored)", ("a",)),
    ],
)
def test_generated_columns(publisher, text, columns):
    """A column list goes before the parameter; a virtual column is never published."""
    generated(publisher)
    assert entry_of(tables_of(publisher, text, "p"), "g").column_names == columns
    (sent,) = Decoder(publisher).sent(["p"], "INSERT INTO g VALUES (1)")
    assert sent == [Sent("insert", "public.g", columns)]


def test_different_publish_generated_columns(publisher):
    generated(publisher)
    text = (
        "CREATE PUBLICATION p FOR TABLE g; CREATE PUBLICATION q FOR TABLE g WITH (publish_generated_columns = stored)"
    )
    publisher.execute(text)
    with pytest.raises(PublicationError) as refused:
        routing(publisher, text)
    with pytest.raises(psycopg.Error) as error:
        Decoder(publisher).sent(["p", "q"], "INSERT INTO g VALUES (1)")
    assert refused.value.args[0] == error.value.diag.message_primary
