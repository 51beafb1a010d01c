"""In databases of other encodings a filter has the server's verdicts, or is refused with the reason."""

from __future__ import annotations

from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgbridge.bridge.batch.reapplied_routes import ReappliedRoutes
from pgbridge.bridge.lake.changes.verdicts import EntryFilterCompiler
from pgbridge.bridge.lake.source import as_frame
from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.publication.routing import Routing
from pgbridge.bridge.receive.publications import read_relations
from pgbridge.bridge.receive.publisher import Publisher as Server
from pgbridge.bridge.rowfilter.row_filter import C_COLLATION, FilterColumn, RowFilterError
from pgbridge.bridge.rowfilter.types.encodings import encoding_of
from pgbridge.protocol.bulk.copy import decode_copy_binary
from pgbridge.protocol.values.types import resolve
from tests.bridge.rowfilter.compared import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_postgres import Publisher

COLUMNS = {"t": 'text COLLATE "C"', "c": 'char(5) COLLATE "C"', "x": "bytea", "ta": "text[]", "j": "jsonb"}

CASES: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    "LATIN1": (
        ["", "a", "abc", "é", "Éa", "ÿ", "ü b", "aéé", "z", "~", "a_c", "À", "ß", "b"],
        [
            "t = 'é'", "t <> 'é'", "t < 'é'", "t >= 'b'", "c < 'é'", "length(t) = 1", "length(c) = 2",
            "substr(t, 2) = 'éé'", "left(t, 1) = 'é'", "t LIKE 'é%'", "t LIKE '_'", "t ~ '^[à-ÿ]'", "t ~ 'é.'",
            "t ~ '^.$'", "t ~* 'É'", "reverse(t) = 'éa'", "position('é' in t) = 2", "lower(t) = 'Éa'",
            "upper(t) = 'é'", "'é' = ANY (ta)", "ta @> ARRAY['é']", "replace(t, 'é', 'x') = 'axx'",
            "btrim(t, 'éa') = ''", "greatest(t, 'b') = 'é'", "starts_with(t, 'é')", "t IN ('é', 'a', 'ÿ')",
            "t::varchar(1) = 'é'", r"x = '\xe9'", "octet_length(x) = 1", "t || 'é' = 'éé'", "j ->> 'é' = 'é'",
            "t ILIKE '%A%'", "(t, c) = ('é', 'é')", "t BETWEEN 'b' AND 'é'", "x = 'a'", "octet_length('a') = 1",
        ],
        {
            "octet_length(t) = 1": "octet_length counts bytes in the database's encoding, LATIN1, not in UTF8",
            "octet_length(c) = 5": "octet_length counts bytes in the database's encoding, LATIN1, not in UTF8",
            "x = 'é'": "the bytes of this text depend on the database's encoding, LATIN1; write them as '\\x…'",
            "coalesce(x, 'é') = 'a'": "the bytes of this text depend on the database's encoding, LATIN1; "
            "write them as '\\x…'",
        },
    ),
    "SQL_ASCII": (
        ["", "a", "abc", "é", "Éa", "日本", "本", "aéé", "z", "a_c", "\U0001d518", "\ue000", "b"],
        [
            "t = 'é'", "t < 'é'", "t >= '日'", "octet_length(t) = 2", "octet_length(c) = 5", "t LIKE 'é%'",
            "t LIKE '%本'", "t LIKE '%é%'", "lower(t) = 'Éa'", "upper(t) = 'ABC'", "replace(t, 'é', 'x') = 'axx'",
            "x = 'é'", "t || 'é' = 'éé'", "greatest(t, 'b') = '日本'", "starts_with(t, '日')", "'本' = ANY (ta)",
            "t IN ('é', '本')", "c = '本'", "least(t, 'é') = 'é'",
        ],
        {
            one: f"{what} is not translated: a character of the database's encoding, SQL_ASCII, may not be one in UTF8"
            for one, what in {
                "length(t) = 1": "length", "char_length(t) = 1": "char_length", "length(c) = 1": "length",
                "substr(t, 2) = 'a'": "substr", "left(t, 1) = 'é'": "left", "position('é' in t) = 2": "position",
                "reverse(t) = 'a'": "reverse", "btrim(t, 'é') = ''": "btrim", "t LIKE '_'": "_ in a pattern",
                "t ~ '^é'": "a regular expression", "t::varchar(1) = 'é'": "the length of a type",
            }.items()
        },
    ),
    "EUC_KR": (
        ["", "a", "가", "나다", "★", "가a", "z", "힝", "ß"],
        [
            "t = '가'", "length(t) = 1", "left(t, 1) = '가'", "t LIKE '_a'", "t ~ '^.$'", "t LIKE '나%'", "t = 'a'",
            "starts_with(t, '가')", "position('a' in t) = 2",
        ],
        {
            "t < '나'": "the order of text depends on the database's encoding, EUC_KR",
            "greatest(t, 'b') = '가'": "the order of text depends on the database's encoding, EUC_KR",
            "t > ALL (ta)": "the order of text depends on the database's encoding, EUC_KR",
            "t ~ '[가-나]'": "this regular expression depends on the codes of the database's encoding, EUC_KR",
            "octet_length(t) = 2": "octet_length counts bytes in the database's encoding, EUC_KR, not in UTF8",
        },
    ),
    "EUC_JP": (
        ["", "a", "abc", "∠", "日本", "a日"],
        ["t = 'a'", "t <> 'abc'", "t LIKE 'a%'", "length(t) = 2", "t IN ('a', 'abc')", "t IS NULL", "'a' = ANY (ta)"],
        dict.fromkeys(
            ("t = '日'", "t = c", "replace(t, 'a', 'b') = '日'", "t IN ('a', '日')"),
            "comparing text is not translated: different characters of the database's encoding, EUC_JP, "
            "may be the same in UTF8",
        ),
    ),
}  # fmt: skip
"""Encoding -> texts, filters that are translated, and filters that are refused, with the reason."""


@pytest.fixture
def database(publisher: Publisher, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """A database of the encoding of the test's parameter, with a table of texts in every type that has text."""
    encoding = request.param
    name = f"{publisher.name}_{encoding.lower()}"
    publisher.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'")
    with closing(psycopg.connect(publisher.server.conninfo(name), autocommit=True, client_encoding="UTF8")) as opened:
        declared = ", ".join(f'"{column}" {declaration}' for column, declaration in COLUMNS.items())
        opened.execute(f"CREATE TABLE rows (id int, {declared})".encode())
        for i, text in enumerate(CASES[encoding][0]):
            opened.execute(
                "INSERT INTO rows VALUES (%s, %s, %s, convert_to(%s, current_setting('server_encoding')),"
                " ARRAY[%s, 'x'], jsonb_build_object(%s::text, %s::text))",
                (i, text, text if len(text.encode()) <= 5 else None, *[text] * 4),
            )
        opened.execute("INSERT INTO rows VALUES (100)")
        yield opened


@pytest.mark.parametrize("database", CASES, indirect=True)
def test_verdicts_are_the_servers_or_refused(database, spark):
    encoding = database.info.parameter_status("server_encoding")
    names = ["id", *COLUMNS]
    types = [resolve(oid, -1) for oid in (23, 25, 1042, 17, 1009, 3802)]
    with database.cursor().copy("COPY rows TO STDOUT (FORMAT binary)") as copy:
        table = decode_copy_binary([bytes(message) for message in copy], types, names)
    columns = {
        name: FilterColumn(type_, C_COLLATION if COLUMNS.get(name, "").endswith('"C"') else None)
        for name, type_ in zip(names, types, strict=True)
    }
    rows = Rows(database, columns, as_frame(spark, table), encoding)
    _, taken, refused = CASES[encoding]
    rows.check(taken)
    for expression, reason in refused.items():
        assert rows.refusal(expression) == ""
        with pytest.raises(RowFilterError) as caught:
            rows.translate(expression)
        assert caught.value.reason == reason


@pytest.mark.parametrize("database", ["LATIN1"], indirect=True)
def test_definitions_on_such_a_database_are_refused_at_start(publisher, database):
    """The database's encoding decides, whatever the encoding of the connection is."""
    conninfo = publisher.server.conninfo(database.info.dbname)

    def routes(row_filter: str) -> None:
        text = f"CREATE PUBLICATION p FOR TABLE rows WHERE ({row_filter}) WITH (publish = 'insert')"
        with Server(conninfo, application_name="test") as server:
            found = Routing(parse(text, "f.sql"), read_relations(server))
            compiler = EntryFilterCompiler(
                lambda wanted: [resolve(*one) for one in wanted], None, found.relations.encoding
            )
            ReappliedRoutes({}, found, compiler, lambda: found)

    routes("length(t) = 1 AND octet_length(x) = 1")
    with pytest.raises(RowFilterError, match="octet_length counts bytes in the database's encoding, LATIN1"):
        routes("octet_length(t) = 1")


def test_what_is_known_of_encodings(publisher):
    """The properties of each encoding are those of its characters, all of which are converted."""
    publisher.execute(
        """CREATE FUNCTION in_utf8(raw bytea, encoding text) RETURNS text LANGUAGE plpgsql AS $$
        BEGIN RETURN convert_from(raw, encoding); EXCEPTION WHEN others THEN RETURN NULL; END $$"""
    )
    ((names,),) = publisher.query("SELECT array_agg(pg_encoding_to_char(i)) FROM generate_series(0, 34) i")
    high = range(0xA1, 0xFF)
    pairs = [bytes(pair) for pair in product(high, repeat=2)]
    checked = set()
    for name in set(names) - {"UTF8", "SQL_ASCII", "MULE_INTERNAL"}:
        characters = [bytes([one]) for one in range(1, 256)]
        if name.startswith("EUC_"):
            characters += pairs
        if name == "EUC_TW":
            characters += [b"\x8e\xa1" + pair for pair in pairs[:500]]
        query = "SELECT raw, in_utf8(raw, %s) FROM unnest(%s::bytea[]) raw"
        rows = [(bytes(raw), text) for raw, text in publisher.query(query, (name, characters)) if text is not None]
        texts = [text for _, text in sorted(rows)]
        encoding = encoding_of(name)
        assert encoding.characters == all(len(text) == 1 for text in texts), name
        assert encoding.one_to_one == (len(set(texts)) == len(texts) and encoding.characters), name
        assert encoding.ordered == (texts == sorted(texts)), name
        assert not encoding.octets, name
        checked.add(name)
    assert len(checked) == 32
