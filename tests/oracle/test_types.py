"""Every type the whole way: what PostgreSQL's text output says of a value is what Delta has, by copy and by stream.

The values are those of `tests.protocol.sampled`, a column for each type, in a few wide tables; the forms that they
are sent in are read exhaustively without Spark, and once all of it goes through Delta.
"""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from psycopg import sql

from pgbridge.bridge.publication.published_table import unsupported_tables
from pgbridge.bridge.receive.connection import connect
from pgbridge.bridge.receive.publisher import Publisher as Server
from pgbridge.bridge.runtime.errors import ApplyError, SyncError
from pgbridge.protocol.bulk.columns import RowMessages
from pgbridge.protocol.bulk.copy import CopyDecoder, copy_expression
from pgbridge.protocol.codec.messages import Relation
from pgbridge.protocol.codec.pgoutput import decode
from pgbridge.protocol.errors import UnrepresentableValue
from pgbridge.protocol.values.types import ColumnType, resolve
from tests.oracle import second_reader
from tests.oracle.native import text_rows
from tests.protocol import independent
from tests.protocol.sampled import EXTENSION_SAMPLES, OWN_TYPES, SAMPLES, TEXT_ONLY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import psycopg
    from pyspark.sql import SparkSession

    from tests.fix_postgres import Publisher

DELTA_TYPES = {
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "oid": "bigint",
    "real": "float",
    "double precision": "double",
    "numeric(12,2)": "decimal(12,2)",
    "numeric(5,5)": "decimal(5,5)",
    "numeric(4,0)": "decimal(4,0)",
    "numeric(1,0)": "decimal(1,0)",
    "numeric(1,1)": "decimal(1,1)",
    "numeric(18,0)": "decimal(18,0)",
    "numeric(18,1)": "decimal(18,1)",
    "numeric(18,3)": "decimal(18,3)",
    "numeric(18,9)": "decimal(18,9)",
    "numeric(18,18)": "decimal(18,18)",
    "numeric(19,0)": "decimal(19,0)",
    "numeric(38,0)": "decimal(38,0)",
    "numeric(38,10)": "decimal(38,10)",
    "numeric(38,38)": "decimal(38,38)",
    "numeric(30,5)": "decimal(30,5)",
    "bytea": "binary",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamp(0)": "timestamp_ntz",
    "timestamptz": "timestamp",
    "price": "decimal(10,2)",
    "dear_price": "decimal(10,2)",
    "positive": "int",
    "tags": "array<string>",
    "prices": "array<decimal(10,2)>",
    "places": "array<string>",
    "moods": "array<string>",
}
"""CONTRACT.md's column types, and its rule for domains; every other type is a string."""


def delta_type(declaration: str) -> str:
    """A declaration's, with CONTRACT.md's rule for arrays."""
    if declaration.endswith("[]"):
        return f"array<{delta_type(declaration.removesuffix('[]'))}>"
    return DELTA_TYPES.get(declaration, "string")


NAMES = [
    "CAPS", "a b", "a.b", "${x}", "a,b;c", "{x}", "(y)", "tab\tx", "line\nbreak", "a=b", "back`tick", 'quo"te', "ap'os",
    "Ünï→😀", "%41", "[0]", "#?*", " lead", "trail ", "SELECT", "t", "s", "new_0", "match_0", "action", "born", "op",
    "seq", "unchanged_1", "_metadata", "_change_type",
]  # fmt: skip
"""Column names that SQL, Parquet, Delta, Spark or the bridge could stumble over."""


def quoted(*names: str) -> str:
    """A name as an SQL identifier."""
    return sql.Identifier(*names).as_string()


class Wide(NamedTuple):
    """A table with an id and a column for each declaration; what its values are changed to is in `<name>_next`."""

    namespace: str
    name: str
    columns: list[str]
    samples: dict[str, list[str]]

    @property
    def sql(self) -> str:
        """Its name in statements."""
        return quoted(self.namespace, self.name)

    @property
    def next(self) -> str:
        """The other one's."""
        return quoted(self.namespace, f"{self.name}_next")

    @property
    def rows(self) -> int:
        """As many as the longest list of literals has, and one with its NULL."""
        return 1 + max(map(len, self.samples.values()))

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Make both; in the other one every value stands a row further on."""
        typed = zip(self.columns, self.samples, strict=True)
        declared = ", ".join(f"{quoted(column)} {declaration}" for column, declaration in typed)
        cycles: list[list[str | None]] = [[None, *literals] for literals in self.samples.values()]
        values = ", ".join(f"%s::{declaration}" for declaration in self.samples)
        for shift, name in enumerate((self.sql, self.next)):
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, {declared})".encode())
            rows = [[row, *(cycle[(row + shift) % len(cycle)] for cycle in cycles)] for row in range(self.rows)]
            with connection.cursor() as cursor:
                cursor.executemany(f"INSERT INTO {name.replace('%', '%%')} VALUES (%s, {values})".encode(), rows)

    def change(self, connection: psycopg.Connection[Any]) -> None:
        """Give every row but the first another's values, delete that one, and insert one."""
        columns = ", ".join(map(quoted, self.columns))
        connection.execute(
            f"UPDATE {self.sql} t SET ({columns}) = (SELECT {columns} FROM {self.next} n WHERE n.id = t.id)"
            f" WHERE id > 0; DELETE FROM {self.sql} WHERE id = 0;"
            f" INSERT INTO {self.sql} SELECT 1000, {columns} FROM {self.next} WHERE id = 0".encode()
        )


def wide_tables(connection: psycopg.Connection[Any]) -> tuple[Wide, Wide]:
    """What can be sent in binary form, and the rest; the latter has names of all kinds, too."""
    with connection.transaction():
        for statement in OWN_TYPES:
            connection.execute(statement.encode())
    connection.execute("SET search_path = public, pgbridge_samples")
    samples = dict(SAMPLES)
    for declaration, (extension, literals) in EXTENSION_SAMPLES.items():
        if connection.execute("SELECT FROM pg_available_extensions WHERE name = %s", (extension,)).fetchone():
            connection.execute(f"CREATE EXTENSION IF NOT EXISTS {extension} SCHEMA pgbridge_samples".encode())
            samples[declaration] = literals
    if connection.info.server_version < 170000:
        samples["interval"] = [literal for literal in samples["interval"] if "infinity" not in literal]
    textual = {d: literals for d, literals in samples.items() if d in TEXT_ONLY or d.startswith(("hstore", "ltree"))}
    typed = {d: literals for d, literals in samples.items() if d not in textual}
    names = [*NAMES, *(f"c{i}" for i in range(len(textual)))][: len(textual)]
    assert set(NAMES) <= set(names)
    connection.execute('CREATE SCHEMA "My.Schema"')
    tables = (
        Wide("public", "typed", [f"c{i}" for i in range(len(typed))], typed),
        Wide("My.Schema", 'Ödd "t" a.b%41 / :#?*${x}', names, textual),
    )
    for table in tables:
        table.create(connection)
    return tables


@pytest.fixture
def tables(publisher):
    """The tables, in the publisher's database."""
    publisher.execute(f"ALTER DATABASE {publisher.name} SET lc_monetary = 'C'")
    with publisher.connect() as connection:
        return wide_tables(connection)


def types_of(publisher: Publisher, table: str) -> dict[str, ColumnType]:
    """How the table's columns are read, by name."""
    columns = publisher.query(
        "SELECT attname, atttypid, atttypmod FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0", (table,)
    )
    with Server(publisher.conninfo, application_name="test") as server:
        catalog = server.types(oid for _, oid, _ in columns)
    return {name: resolve(oid, typmod, catalog) for name, oid, typmod in columns}


def expected(publisher: Publisher, table: Wide) -> dict[str, list[Any]]:
    """What PostgreSQL's text output says, by declaration, in the order of the ids; what no column holds is NULL."""
    types = types_of(publisher, table.sql)
    rows = sorted(text_rows(publisher.conninfo, table.sql), key=lambda row: int(row[0] or 0))
    values = dict(zip(types, zip(*rows, strict=True), strict=True))
    return {
        declaration: [independent.nulled(independent.read(text, types[column])) for text in values[column]]
        for declaration, column in zip(table.samples, table.columns, strict=True)
    }


def assert_same(found: dict[str, list[Any]], wanted: dict[str, list[Any]]) -> None:
    """By declaration, so that one that is wrong names itself."""
    assert found.keys() == wanted.keys()
    wrong = {
        declaration: [pair for pair in zip(found[declaration], wanted[declaration], strict=True) if pair[0] != pair[1]]
        for declaration in wanted
        if independent.comparable(found[declaration]) != independent.comparable(wanted[declaration])
    }
    assert wrong == {}


def sent(publisher: Publisher, slot_name: str, *, binary: bool) -> list[bytes]:
    """The messages that a slot has for a session with the bridge's settings; they stay in the slot."""
    with connect(publisher.conninfo, application_name="test") as connection:
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'pub', 'binary', %s)",
            (slot_name, str(binary)),
        ).fetchall()
    return [bytes(data) for (data,) in rows]


def decoded(messages: list[bytes], name: str, types: list[ColumnType], **options: Any) -> Any:
    """The row messages of one relation, as Arrow."""
    relations = [message for message in map(decode, messages) if isinstance(message, Relation)]
    relation = next(relation for relation in relations if relation.name == name)
    rows = RowMessages([m for m in messages if m[:1] in b"IUD" and decode(m).relation_id == relation.relation_id])  # type: ignore[union-attr]
    return rows.decode(relation, types, **options)


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_the_stream_has_what_the_text_output_says(publisher, tables, binary):
    """New and old rows of every type, in the form that is asked for."""
    carried = tables[:1] if binary else tables
    for table in carried:
        publisher.execute(f"ALTER TABLE {table.sql} REPLICA IDENTITY FULL")
    publisher.execute(f"CREATE PUBLICATION pub FOR TABLE {', '.join(table.sql for table in carried)}")
    slot_name = f"{publisher.name}_slot"
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot_name,))
    before = [expected(publisher, table) for table in carried]
    with publisher.connect() as connection:
        for table in carried:
            table.change(connection)
    messages = sent(publisher, slot_name, binary=binary)
    for table, old in zip(carried, before, strict=True):
        types = types_of(publisher, table.sql)
        assert all(type_.binary for type_ in types.values()) is (table is tables[0])
        rows = decoded(messages, table.name, list(types.values()), unrepresentable="null")
        rows.validate(full=True)
        assert bytes(rows["op"].to_pylist()) == b"U" * (table.rows - 1) + b"DI"
        for kind, wanted in (("new", expected(publisher, table)), ("old", old)):
            by_id = rows.sort_by(f"{kind}_0")  # NULLs, of the deleted or inserted row, come last
            declared = enumerate(table.samples, 1)
            assert_same({d: by_id[f"{kind}_{i}"].to_pylist()[: table.rows] for i, d in declared}, wanted)


UNHELD = {
    "date": ["infinity", "-infinity", "0001-12-31 BC", "4714-11-24 BC", "10000-01-01", "5874897-12-31"],
    "timestamp": ["infinity", "-infinity", "0044-03-15 00:00:00 BC", "10000-01-01 00:00:00",
                  "294276-12-31 23:59:59.999999"],
    "timestamptz": ["infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "10000-01-01 00:00:00+00",
                    "294276-12-31 23:59:59.999999+00"],
    "numeric(12,2)": ["NaN"],
    "numeric(38,0)": ["NaN"],
    "integer[]": ["{{1,2},{3,4}}", "{{{1}}}", "[0:2]={7,8,9}", "[-5:-5]={NULL}", "[2:2][3:3]={{1}}"],
    "text[]": ["{{a,NULL},{b,c}}", "[0:1][1:2]={{a,b},{c,d}}"],
    "date_domain": ["infinity"],
    "arrays_domain": ["{{1},{2}}", "[2:3]={1,2}"],
}  # fmt: skip
"""Values of PostgreSQL that the Delta column cannot hold."""

UNHELD_ELEMENTS = {
    "date[]": ("{2024-01-01,NULL,infinity}", 3, "infinity"),
    "timestamp[]": ('{"10000-01-01 00:00:00"}', 1, "10000-01-01 00:00:00"),
    "numeric(5,1)[]": ("{1.5,NaN}", 2, "NaN"),
    "date_domain[]": ("{-infinity}", 1, "-infinity"),
    "arrays_domain[]": ('{"{1}","{{2}}"}', 2, "{{2}}"),
    "arrays_domain[] ": ('{"{}","{1}","[0:0]={2}"}', 3, "[0:0]={2}"),
}
"""Arrays of which an element is one: the literal, which element it is, and its text."""


def test_a_value_that_no_column_holds_is_an_error_or_null_and_in_a_key_an_error(publisher):
    """In the copy and in both forms of the stream, the error names the column and shows the value as text."""
    publisher.execute("CREATE DOMAIN date_domain AS date; CREATE DOMAIN arrays_domain AS int[]")
    cases = [(declaration, text, f"value {text!r}", "") for declaration, texts in UNHELD.items() for text in texts]
    cases += [(d, literal, f"value {text!r}", f"element {n}: ") for d, (literal, n, text) in UNHELD_ELEMENTS.items()]
    names = [f"{declaration} {i}" for i, (declaration, *_) in enumerate(cases)]
    declared = ", ".join(f'"{name}" {declaration}' for name, (declaration, *_) in zip(names, cases, strict=True))
    publisher.execute(f"CREATE TABLE t ({declared}); CREATE PUBLICATION pub FOR TABLE t")
    slot_name = f"{publisher.name}_slot"
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot_name,))
    publisher.execute(f"INSERT INTO t VALUES ({', '.join(['%s'] * len(cases))})", tuple(case[1] for case in cases))
    types = types_of(publisher, "t")

    def copy(unrepresentable: Any, key: Collection[int] = ()) -> list[Any]:
        with connect(publisher.conninfo, application_name="test") as connection:
            select = ", ".join(copy_expression(name, type_) for name, type_ in types.items())
            with connection.cursor().copy(f"COPY (SELECT {select} FROM public.t) TO STDOUT (FORMAT binary)") as data:
                messages = [bytes(message) for message in data]
        decoder = CopyDecoder([*types.values()], names, unrepresentable=unrepresentable, key=[names[i] for i in key])
        return [*decoder.decode(messages).to_pylist()[0].values()]

    def stream(unrepresentable: Any, key: Collection[int] = (), *, binary: bool) -> list[Any]:
        messages = sent(publisher, slot_name, binary=binary)
        row = decoded(messages, "t", [*types.values()], unrepresentable=unrepresentable, key=key).to_pylist()[0]
        return [row[f"new_{i}"] for i in range(len(cases))]

    for read in (copy, partial(stream, binary=False), partial(stream, binary=True)):
        with pytest.raises(UnrepresentableValue, match="^column \"date 0\": value 'infinity' cannot be"):
            read("error")
        for (declaration, _, _, element), value in zip(cases, read("null"), strict=True):
            assert (value[-1] if element else value) is None, declaration
        for i, (_, _, value, element) in enumerate(cases):
            with pytest.raises(UnrepresentableValue) as caught:
                read("null", [i])
            assert str(caught.value).startswith(f'column "{names[i]}": {value} cannot be represented: {element}')


KEYS = """
    CREATE TABLE keys (v int, b bool, s smallint, i int, l bigint, o oid, r real, d double precision, n numeric(12,2),
        huge numeric(38,10), free numeric, y bytea, day date, ts timestamp, tz timestamptz, t text, c char(5), u uuid,
        e inet, a int[], x text[], at timestamp[], span interval,
        PRIMARY KEY (b, s, i, l, o, r, d, n, huge, free, y, day, ts, tz, t, c, u, e, a, x, at, span));
    INSERT INTO keys VALUES (1, 'f', -32768, -2147483648, -9223372036854775808, 0, '-Infinity', 'NaN', -9999999999.99,
        '-9999999999999999999999999999.9999999999', '-Infinity', '', '0001-01-01', '0001-01-01', '0001-01-01 00:00+00',
        '', '', '00000000-0000-0000-0000-000000000000', '::', '{}', '{NULL}', '{0001-01-01}', '-1 day');
    INSERT INTO keys VALUES (2, 't', 32767, 2147483647, 9223372036854775807, 4294967295, 'NaN', 'Infinity',
        9999999999.99, '9999999999999999999999999999.9999999999', 'NaN', '\\xff00', '9999-12-31',
        '9999-12-31 23:59:59.999999', '9999-12-31 23:59:59.999999+00', repeat('x', 31) || repeat('😀', 9), 'a b',
        'ffffffff-ffff-ffff-ffff-ffffffffffff', '255.255.255.255/8', '{1,NULL}', '{"",NULL,"a,b"}',
        '{"9999-12-31 23:59:59.999999",NULL}', '1 mon');
    INSERT INTO keys SELECT 3, b, 0, i, l, o, '-0', '-0', 0, huge, 0.00, y, '1582-10-10', '1500-02-28 00:00:00.000001',
        '1899-12-31 23:59:59.999999+00', t || 'y', c, u, e, a, x, at, span FROM keys WHERE v = 2;
    INSERT INTO keys SELECT 10 + v, b, s, i, l - sign(l)::int, o, r, d, n, huge, free, y, day, ts, tz, t, c, u, e, a,
        x, at, span FROM keys
"""
"""A key over a column of every type that has an order, and rows at its ends, some different in one column only."""

CHANGE_KEYS = """
    UPDATE keys SET v = v + 100;
    UPDATE keys SET r = 0, d = 0, free = 0.0 WHERE v = 103;
    DELETE FROM keys WHERE v IN (111, 112)
"""


def rows_in(publisher: Publisher, table: str) -> list[list[Any]]:
    """What PostgreSQL's text output says of a table, in the order of the first column, a number."""
    types = types_of(publisher, table)
    rows = sorted(text_rows(publisher.conninfo, table), key=lambda row: int(row[0] or 0))
    return [
        independent.comparable(independent.read(text, type_) for text, type_ in zip(row, types.values(), strict=True))
        for row in rows
    ]


def rows_at(spark: SparkSession, path: str) -> list[list[Any]]:
    """What a Delta table holds, in the order of the first column."""
    rows = spark.read.format("delta").load(path).toArrow().to_pylist()
    return sorted((independent.comparable(row.values()) for row in rows), key=lambda row: int(row[0]))


def delta_columns(spark: SparkSession, path: str, table: Wide) -> dict[str, list[Any]]:
    """A Delta table's values by declaration, in the order of the ids."""
    found = spark.read.format("delta").load(path).toArrow().sort_by("id")
    return {d: found[column].to_pylist() for d, column in zip(table.samples, table.columns, strict=True)}


def other_readings(path: str, table: Wide) -> Iterator[dict[str, list[Any]]]:
    """The same as readers have it that share no code with Spark."""
    readings = [second_reader.by_duckdb(path)]
    if second_reader.needs_nothing(path):
        readings.append(second_reader.by_delta_rs(path))
    for rows in readings:
        assert rows is not None
        found = rows.sort_by("id")
        yield {d: found[column].to_pylist() for d, column in zip(table.samples, table.columns, strict=True)}


@pytest.mark.parametrize(
    ("binary", "publications"),
    [(True, ("typed", "odd")), pytest.param(False, ("all",), marks=pytest.mark.soak)],
    ids=["binary", "text"],
)
def test_every_type_and_every_name_goes_all_the_way(
    spark, publisher, pipeline, tables, monkeypatch, binary, publications
):
    """Rows that were there before the copy, and the same changed through the stream. Executors copy the last ones.

    A subscription without types that have only a text form has values in binary form, where it asks for that.
    """
    typed, odd = tables
    publisher.execute(KEYS)
    publisher.execute(f"CREATE PUBLICATION typed FOR TABLE typed, keys; CREATE PUBLICATION odd FOR TABLE {odd.sql}")
    publisher.execute(f'CREATE PUBLICATION "all" FOR TABLE typed, keys, {odd.sql}')
    options = {"binary": binary, "unrepresentable": "null"}
    bridges = [
        pipeline(publications=(publication,), slot_name=f"{publisher.name}_{publication}", **options)
        for publication in publications
    ]

    def assert_equal() -> None:
        for table, bridge in ((typed, bridges[0]), (odd, bridges[-1])):
            path = bridge.path(f"{table.namespace}.{table.name}")
            fields = spark.read.format("delta").load(path).schema.fields
            assert [field.name for field in fields] == ["id", *table.columns]
            found = {d: f.dataType.simpleString() for d, f in zip(table.samples, fields[1:], strict=True)}
            assert found == {d: delta_type(d) for d in table.samples}
            wanted = expected(publisher, table)
            assert_same(delta_columns(spark, path, table), wanted)
            if table is typed:  # the path of the other one neither reader can open
                for reading in other_readings(path, table):
                    assert_same(reading, wanted)
        assert rows_at(spark, bridges[0].path("keys")) == rows_in(publisher, "keys")

    for bridge in bridges:
        if bridge is bridges[-1]:
            monkeypatch.setattr("pgbridge.bridge.spark.driver.Local.copied_bytes", -1)
        bridge.catch_up()
    assert_equal()
    with publisher.connect() as connection, connection.transaction():  # one transaction, one batch
        for table in tables:
            table.change(connection)
        connection.execute(CHANGE_KEYS)
    for bridge in bridges:
        bridge.catch_up()
    assert_equal()


def test_a_value_that_no_column_holds_stops_copy_and_stream_and_names_the_table(spark, publisher, pipeline):
    """Of a key, that is; beside it the same value is NULL, as the policy has it."""
    publisher.execute(
        """CREATE TABLE "Late days" (day date PRIMARY KEY, v timestamptz); CREATE PUBLICATION pub FOR TABLE "Late days";
        INSERT INTO "Late days" VALUES ('infinity', '-infinity')"""
    )
    bridge = pipeline(unrepresentable="null", disable_on_error=True)
    said = "column \"day\": value 'infinity' cannot be represented: the column holds the years 0001 to 9999 only\n"
    with pytest.raises(SyncError) as stopped:
        bridge.catch_up()
    begin = (
        f'cannot copy table "public.Late days": table "public.Late days": {said}HINT:  rows are found by this column'
    )
    assert str(stopped.value).startswith(begin)
    assert bridge.catalog.last_error(bridge.subscription.name).message == str(stopped.value)

    publisher.execute("UPDATE \"Late days\" SET day = '9999-12-31'")
    bridge.catalog.set_enabled(bridge.subscription.name, enabled=True)
    bridge.catch_up()
    assert bridge.rows("Late days") == [{"day": dt.date(9999, 12, 31), "v": None}]
    publisher.execute("UPDATE \"Late days\" SET day = 'infinity'")
    with pytest.raises(ApplyError) as caught:
        bridge.catch_up()
    assert str(caught.value).startswith(said)
    context = caught.value.context
    assert (context.relation, context.column, context.command) == ("public.Late days", "day", "UPDATE")
    assert "row filter" in caught.value.hint


@pytest.mark.parametrize(("one", "other"), [("Id", "ID"), ("straße", "STRAßE"), ("k", "\N{KELVIN SIGN}")])
def test_a_table_whose_columns_differ_only_in_case_is_left_out(publisher, one, other):
    """As Spark compares names, which is not as Python folds them."""
    publisher.execute(f"CREATE TABLE t ({quoted(one)} int PRIMARY KEY, {quoted(other)} int)")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE t")
    with Server(publisher.conninfo, application_name="test") as asked:
        (table,) = asked.tables(("pub",))
    (why,) = unsupported_tables({("public", "t"): table}, ()).values()
    assert f'columns "{one}" and "{other}" of table "public.t" differ only in case' in why.reason
