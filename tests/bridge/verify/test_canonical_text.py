"""The server's text of each value; `test_verification` holds it against Spark's text of what Delta has."""

from __future__ import annotations

import psycopg
import pytest

from bridge.receive.publisher import Publisher as Server
from bridge.verify.canonical_text import source_row, source_text, target_row, target_text
from protocol.values.types import resolve
from tests.protocol.sampled import OWN_TYPES, SAMPLES


@pytest.fixture
def typed(publisher):
    """A connection with the samples' types, and what reads a declaration's texts."""
    with publisher.connect() as connection:
        connection.prepare_threshold = None  # the table is another one each time
        for statement in OWN_TYPES:
            connection.execute(statement)
        connection.commit()
        with Server(publisher.conninfo, application_name="test") as server:

            def texts(declaration, literals):
                # a column, because a literal has no type modifier
                connection.execute("DROP TABLE IF EXISTS public.one")
                connection.execute(f"CREATE TABLE public.one (n int, v {declaration})")
                for number, literal in enumerate(literals):
                    connection.execute("INSERT INTO public.one VALUES (%s, %s)", (number, literal))
                connection.commit()
                ((oid, typmod),) = connection.execute(
                    "SELECT atttypid, atttypmod FROM pg_attribute "
                    "WHERE attrelid = 'public.one'::regclass AND attname = 'v'"
                ).fetchall()
                type_ = resolve(oid, typmod, server.types({oid}))
                found = connection.execute(f"SELECT {source_text('v', type_, type_.arrow)} FROM public.one ORDER BY n")
                return [text for (text,) in found.fetchall()]

            yield texts


def test_every_type_has_texts(typed):
    """The server computes all of them, and different values have different texts."""
    for declaration, literals in SAMPLES.items():
        distinct = list(dict.fromkeys(literals))
        try:
            found = typed(declaration, [*distinct, None])
        except psycopg.Error as error:
            pytest.fail(f"{declaration}: {error}")
        assert found[-1] is None, declaration


def test_texts_of_values(typed):
    assert typed("date", ["1970-01-02", "0001-01-01", "10000-01-01", "infinity"]) == ["1", "-719162", None, None]
    assert typed("timestamptz", ["1970-01-01 00:00:00.000001+00", "-infinity"]) == ["1", None]
    assert typed("timestamp", ["9999-12-31 23:59:59.999999"]) == ["253402300799999999"]
    assert typed("float8", ["-0", "NaN", "1"]) == [str(-(2**63)), "NaN", str(0x3FF << 52)]
    assert typed("numeric(9, 2)", ["1", "NaN"]) == ["1.00", None]
    assert typed("text", ["", "ünï", "~"]) == ["0:", "3:ünï", "1:~"]
    assert typed("int[]", ["{}", "{1,NULL}", "{{1}}", "[0:0]={1}"]) == ["A:0", "A1\x1e~:2", None, None]
    assert typed("bytea", [r"\x00ff"]) == ["00ff"]


def test_a_row_is_one_hash():
    assert source_row(["a", "b"]).startswith("md5(convert_to(concat_ws(E'\\x1f', coalesce(a, '~')")
    assert target_row(["a", "b"]).count("coalesce") == 2


def test_a_row_of_many_columns_is_one_hash(publisher):
    """A function of PostgreSQL has 100 arguments at most, and a table up to 1600 columns."""
    for number in (1, 90, 91, 1600):
        texts = [str(n) for n in range(number)]
        row = source_row(f"'{text}'" for text in texts)
        ((hashed, expected),) = publisher.query(f"SELECT {row}, md5('{chr(0x1F).join(texts)}')")
        assert hashed == expected


def test_spark_reads_the_name_as_it_is():
    import pyarrow as pa

    assert target_text("`a b`", pa.date32()) == "cast(unix_date(`a b`) AS string)"
