"""Row filters that a server computes: it has the verdicts that it has on a table, and takes what publications take."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.filter_server import FilterServer
from pgbridge.bridge.rowfilter.row_filter import RowFilterError
from pgbridge.bridge.rowfilter.server_filter import ServerColumn, ServerFilter, VerdictError
from pgbridge.bridge.runtime.errors import ConfigError, PublisherError
from pgbridge.protocol.codec.messages import Tuple, Value, ValueKind
from tests.bridge.rowfilter import compared, test_analysis, test_row_filter
from tests.bridge.rowfilter.random_filters import Filters
from tests.fix_postgres import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.fix_postgres import Server

COLUMNS = """
SELECT a.attname, a.atttypid, n.nspname || '.' || c.collname
  FROM pg_attribute a
       LEFT JOIN pg_collation c ON c.oid = a.attcollation LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
 WHERE a.attrelid = 'rows'::regclass AND a.attnum > 0 ORDER BY a.attnum
"""


def subscription(conninfo: str, **others: Any) -> Subscription:
    return Subscription(
        name="s",
        connection=conninfo,
        publications=("p",),
        warehouse="lake",
        **{"filter_server": "publisher", **others},
    )


class Table:
    """The table `rows`, and a server that is asked about its rows' values."""

    def __init__(self, connection: psycopg.Connection[Any], server: FilterServer) -> None:
        self.connection = connection
        self.server = server
        found = connection.execute(COLUMNS).fetchall()
        self.columns = {name: ServerColumn(name, oid, collation) for name, oid, collation in found}

    def accept(self, expression: str) -> ServerFilter:
        return self.server.accept(expression, self.columns, ("public", "rows"))

    def values(self, names: Sequence[str], *, binary: bool) -> list[Tuple]:
        """Values of all rows as a walsender would send them."""
        listed = ", ".join(['"id"', *(f'"{name}"' for name in names)])
        query = f'SELECT {listed} FROM "rows" ORDER BY "id"'.encode()
        result = self.connection.pgconn.exec_params(query, [], result_format=int(binary))
        kind = ValueKind.BINARY if binary else ValueKind.TEXT
        found = [[result.get_value(row, i + 1) for i in range(len(names))] for row in range(result.ntuples)]
        return [tuple(Value(ValueKind.NULL) if v is None else Value(kind, v) for v in row) for row in found]

    def verdicts(self, expression: str, *, binary: bool) -> list[bool]:
        accepted = self.accept(expression)
        types = [self.columns[name].type_oid for name in accepted.columns]
        found: list[bool] = self.server.verdicts(accepted, types, self.values(accepted.columns, binary=binary)).tolist()
        return found

    def expected(self, expression: str) -> list[bool] | str:
        return compared.Rows(self.connection, {}, None).expected(expression)  # type: ignore[arg-type]

    def refusal(self, expression: str) -> str:
        return compared.Rows(self.connection, {}, None).refusal(expression)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def table(postgresql_server: Server) -> Iterator[Table]:
    publisher = Publisher(postgresql_server, f"verdicts_{os.getpid()}")
    try:
        publisher.execute(
            "CREATE TYPE mood AS ENUM ('sad'); CREATE FUNCTION own(int) RETURNS bool LANGUAGE sql RETURN true"
        )
        with (
            postgresql_server.connect(publisher.name) as connection,
            FilterServer(subscription(publisher.conninfo)) as server,
        ):
            compared.fill(connection, 150, seed=5)
            connection.execute("ALTER TABLE rows ADD mood mood")
            connection.execute("SET extra_float_digits = 1; SET TimeZone = 'UTC'")
            yield Table(connection, server)
    finally:
        publisher.drop()


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 8))])
def test_random_filters(table, seed, binary):
    """Every expression, also a translated one, has the same verdicts as in the table, for text and binary values."""
    filters = Filters(random.Random(seed))
    expressions = [filters.condition(2) for _ in range(60)] + [filters.of_a_server() for _ in range(60)]
    computed = {}
    for one in dict.fromkeys(expressions):
        assert not table.refusal(one), one
        if isinstance(found := table.expected(one), list):
            computed[one] = found
    assert len(computed) > 90
    assert sum(len(set(found)) == 2 for found in computed.values()) > len(computed) * 0.6
    found = {one: table.verdicts(one, binary=binary) for one in computed}
    wrong = {one: found[one] for one in computed if found[one] != computed[one]}
    assert {one: computed[one] for one in wrong} == wrong


# of an empty text, repeat() has the server copy nothing a billion times, for most of a minute
RAISING = [one for one in test_row_filter.RAISING if not one[0].startswith("repeat")]


@pytest.mark.parametrize(("expression", "message"), RAISING)
def test_an_error_is_the_first_rows_that_has_it(table, expression, message):
    assert message in table.expected(expression)
    alone = []
    for i in range(150):
        query = f'SELECT {expression} FROM "rows" WHERE "id" = {i}'
        try:
            table.connection.execute(query.encode())
        except psycopg.Error:
            alone.append(i)
            break
    with pytest.raises(VerdictError, match=message) as caught:
        table.verdicts(expression, binary=False)
    assert [caught.value.row] == alone


REFUSED = [
    *(one for one, _ in test_analysis.REFUSED),
    "public.own(i4)", "mood = 'sad'", "mood IS NULL", "rows IS NOT NULL", "ctid = '(0,1)'",
    "tz = 'now'::text::timestamptz", "i4 IN (SELECT 1)", "i4 = 1) OR (true", "i4 = 1; DROP TABLE rows", "i4 = $1",
    "sum(i4) > 1", "b /* ", "i4", "count(*) OVER () > 1", "generate_series(1, i4) = 1", "nosuch = 1",
    "other.rows.i4 = 1", "ia[1] = 1", "t::date = day", "random() < 0.5", "i4 = 1 --", "", "txt = $$a", "now() > ts",
    "day = current_date", "i4::text = '1'",
]  # fmt: skip


@pytest.mark.parametrize("expression", REFUSED)
def test_what_a_publication_does_not_take_is_refused(table, expression):
    """In the server's words, if the server refuses it; and what the server takes is accepted."""
    theirs = table.refusal(expression) if expression not in {"i4 = 1 --", "i4 = 1) OR (true"} else "syntax error"
    if not theirs or expression == "i4 = 1 --":  # our words, for what is not translated only
        assert table.accept(expression)
        return
    with pytest.raises(RowFilterError) as caught:
        table.accept(expression)
    detail = theirs.partition(": ")[2]
    if detail.endswith("allowed.") and not detail.startswith("System"):  # which what is asked about does not have
        assert caught.value.reason == detail


def test_columns_are_those_it_depends_on(table):
    expression = "public.rows.txt ILIKE 'i4%' OR rows.\"Odd Name\" = 2 -- i4"
    accepted = table.accept(expression)
    assert sorted(accepted.columns) == ["Odd Name", "txt"]
    assert table.verdicts(expression, binary=False) == table.expected("txt ILIKE 'i4%' OR \"Odd Name\" = 2")


def test_what_the_clock_says_is_no_constant(table):
    """PostgreSQL takes it, for the time of CREATE PUBLICATION; the bridge reads the text at each start."""
    assert not table.refusal("ts > 'yesterday'")
    with pytest.raises(RowFilterError, match="mean the present time"):
        table.accept("ts > 'yesterday'")
    assert table.accept("txt > 'yesterday'")


def test_a_server_that_shows_more(table):
    """Messages that its settings add are not mistaken for the parse tree."""
    shown = ("debug_print_rewritten", "debug_print_plan")
    conninfo = make_conninfo(
        table.server._subscription.connection, options=" ".join(f"-c {name}=on" for name in (*shown, "log_duration"))
    )
    with FilterServer(subscription(conninfo)) as server:
        assert server.accept("txt ILIKE 'a%'", table.columns, ("public", "rows")).columns == ("txt",)


def test_a_lost_connection_is_no_verdict(table):
    with FilterServer(subscription(table.server._subscription.connection)) as server:
        other = Table(table.connection, server)
        accepted = other.accept("txt ILIKE 'a%'")
        table.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 's_filter' AND pid <> %s",
            (table.server._connection.info.backend_pid,),
        )
        with pytest.raises(PublisherError) as caught:
            server.verdicts(accepted, [25], [(Value(ValueKind.TEXT, b"a"),)])
    assert caught.value.retry


def test_texts_of_any_encoding(postgresql_server, publisher):
    """A SQL_ASCII database takes the bytes that it has sent; names and constants are read as elsewhere."""
    with postgresql_server.connect() as admin:
        admin.execute(
            f"CREATE DATABASE {publisher.name}_ascii TEMPLATE template0 ENCODING SQL_ASCII LOCALE 'C'".encode()
        )
    columns = {"größe": ServerColumn("größe", 25)}
    names = [b"M\xfcller", b"meyer", "Mül".encode(), b"\xe9"]
    conninfo = postgresql_server.conninfo(f"{publisher.name}_ascii")
    for where in ("publisher", conninfo):
        with FilterServer(subscription(conninfo, filter_server=where)) as server:
            for expression, passes in [
                ("größe LIKE 'M%'", [True, False, True, False]),
                ("größe LIKE '%ü%'", [False, False, True, False]),
                ("octet_length(größe) = 1", [False, False, False, True]),
            ]:
                accepted = server.accept(expression, columns, ("public", "t"))
                assert accepted.columns == ("größe",)
                rows = [(Value(ValueKind.TEXT, name),) for name in names]
                assert server.verdicts(accepted, [25], rows).tolist() == passes


def test_another_server_computes_alike_or_not_at_all(postgresql_server, publisher):
    with postgresql_server.connect() as admin:
        admin.execute(f"CREATE DATABASE {publisher.name}_c TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'".encode())
        admin.execute(f"CREATE DATABASE {publisher.name}_same TEMPLATE template0".encode())
    columns = {"t": ServerColumn("t", 25)}

    def accept(database: str) -> ServerFilter:
        made = subscription(publisher.conninfo, filter_server=postgresql_server.conninfo(database))
        with FilterServer(made) as server:
            return server.accept("t ILIKE 'a%'", columns, ("public", "t"))

    assert accept(f"{publisher.name}_same").columns == ("t",)
    with pytest.raises(ConfigError, match="may evaluate row filters differently: .*ctype is 'C', not") as caught:
        accept(f"{publisher.name}_c")
    assert 'filter_server = "publisher"' in caught.value.hint
    with FilterServer(subscription(publisher.conninfo, filter_server="publisher")) as server:
        assert server.accept("t ILIKE 'a%'", columns, ("public", "t")).columns == ("t",)
