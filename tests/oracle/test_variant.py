"""Columns of jsonb as VARIANT equal PostgreSQL's values, whatever changes their rows."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal

import pytest

from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.lake.location import read_table
from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.protocol.values.readers import TOO_MANY_DIGITS
from tests.bridge.configurations import altered

TABLES = ("docs", "bag")
ALL = (*TABLES, "versions", "changes")
SETUP = """
    CREATE DOMAIN document AS jsonb;
    CREATE TABLE docs (id int PRIMARY KEY, n int, doc document, big jsonb, many jsonb[], plain json);
    ALTER TABLE docs ALTER big SET STORAGE EXTERNAL;
    CREATE TABLE bag (LIKE docs); ALTER TABLE bag REPLICA IDENTITY FULL;
    CREATE TABLE versions (LIKE docs INCLUDING ALL); CREATE TABLE changes (LIKE docs INCLUDING ALL);
    CREATE PUBLICATION pub FOR ALL TABLES;
"""
ROWS = """
    INSERT INTO {0} SELECT g, g, jsonb_build_object('id', g / 2, 'b', 1.50, 'a', ARRAY[NULL, 'x"é\\n', g::text]),
        to_jsonb(repeat('x', 3000)), ARRAY['1'::jsonb, NULL, '{{"k": [1]}}'], '{{"b": 1, "a":  1.0}}'
        FROM generate_series(1, 6) g;
    INSERT INTO {0} VALUES (7, 7, 'null', NULL, NULL, 'null'),
        (8, 8, '-12345678901234567890.123456789012345678', '[]', '{{}}', '1'),
        (9, 9, '{{"": 99999999999999999999999999999999999999, "deep": [[[{{"e": 0.00000000001}}]]]}}', NULL, NULL, NULL)
"""
CHANGES = """
    UPDATE {0} SET n = -n WHERE id = 1;
    UPDATE {0} SET doc = doc || '{{"new": true}}' WHERE id IN (2, 3); DELETE FROM {0} WHERE id = 4;
    UPDATE {0} SET id = id + 100 WHERE id IN (5, 6); UPDATE {0} SET big = NULL, doc = '2' WHERE id = 105;
    UPDATE {0} SET big = 'null' WHERE id = 7; INSERT INTO {0} VALUES (20, 20, '"s"', '{{}}', '{{}}', '1')
"""
MORE = """
    INSERT INTO bag SELECT id, n, doc, big, many, plain FROM bag WHERE id IN (1, 2); DELETE FROM bag WHERE id = 106;
    DELETE FROM bag WHERE ctid IN (SELECT min(ctid) FROM bag WHERE id = 2);
    UPDATE bag SET doc = '1.0' WHERE ctid IN (SELECT min(ctid) FROM bag WHERE id = 1);
"""
ALTERED = """
    ALTER TABLE {0} ADD extra jsonb DEFAULT '{{"a": 1.5}}'; UPDATE {0} SET extra = '[1]' WHERE id = 2;
    INSERT INTO {0} VALUES (30, 30, '{{}}', NULL, NULL, NULL, '3')
"""
EMPTIED = """
    TRUNCATE {0}; INSERT INTO {0} VALUES (1, 1, '[0]', '1', NULL, NULL, 'null');
    INSERT INTO {0} VALUES (2, 2, '{{"a": 1}}')
"""
COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"


def canonical(text):
    """A document's value: names in order, numbers without the zeros at their end."""

    def ordered(value):
        if isinstance(value, dict):
            return sorted((name, ordered(one)) for name, one in value.items())
        if isinstance(value, list):
            return [ordered(one) for one in value]
        return value.normalize() if isinstance(value, Decimal) else value

    number = Decimal
    return repr(ordered(json.loads(text, parse_int=number, parse_float=number)))


def documents(spark, path, where="true", prefix=""):
    """Number, and documents, of a Delta table's rows; and which of them are VARIANT."""
    rows = read_table(spark, path).filter(where)
    if prefix:
        rows = rows.select(f"{prefix}.*")
    names = [name for name in ("doc", "big", "extra") if name in rows.columns]
    variants = {name for name in names if rows.schema[name].dataType.simpleString() == "variant"}
    texts = [f"to_json({name}) AS {name}" if name in variants else name for name in names]
    found = rows.selectExpr("id", "n", *texts, "many", "plain").collect()
    return Counter(
        (row["id"], row["n"], *(row[name] and canonical(row[name]) for name in names), repr(row["many"]), row["plain"])
        for row in found
    ), variants


def published(publisher, table, where="true"):
    """The same of the published table."""
    names = [name for (name,) in publisher.query(COLUMNS, (table,)) if name in {"doc", "big", "extra"}]
    texts = ", ".join(f"{name}::text" for name in names)
    rows = publisher.query(f"SELECT id, n, many::text[], plain::text, {texts} FROM {table} WHERE {where}")
    return Counter(
        (id_, n, *(text and canonical(text) for text in documents), repr(many), plain)
        for id_, n, many, plain, *documents in rows
    )


def test_documents(spark, publisher, pipeline):
    """In a mirror with a key and one without, in a history and a changelog; a table that is there stays as it is."""
    publisher.execute(SETUP)
    for table in ALL:
        publisher.execute(ROWS.format(table))
    modes = {"public.versions": Table(mode="history"), "public.changes": Table(mode="changelog")}
    bridge = pipeline(target__jsonb="variant", tables=modes)
    variants = {"doc", "big", "extra"}

    def compare(where="true"):
        for table in TABLES:
            found = documents(spark, bridge.path(table), where)
            assert found == (published(publisher, table, where), variants), table
        found = documents(spark, bridge.path("versions"), f"valid_to_lsn IS NULL AND {where}")
        assert found == (published(publisher, "versions", where), variants)

    def execute(statements, tables=ALL):
        for table in tables:
            publisher.execute(statements.format(table))

    bridge.catch_up()
    execute(CHANGES)
    publisher.execute(MORE)
    bridge.catch_up()  # images of the same batch as ALTER TABLE would lack the column, too
    execute(ALTERED)
    bridge.catch_up()
    compare()
    images, kinds = documents(spark, bridge.path("changes"), "operation <> 'DELETE' AND unchanged IS NULL", "new")
    others = [row for row in published(publisher, "changes") if row not in images]
    assert (kinds, {id_ for id_, *_ in others}) == (variants, {1, 2, 3, 106}), "`unchanged` says what these lack"
    execute(EMPTIED, TABLES)
    publisher.execute(f"UPDATE docs SET doc = '[1, {{\"n\": 1{'0' * 37}1.5}}]' WHERE id = 1")
    bridge.subscription = altered(bridge.subscription, target__jsonb="string")
    with pytest.raises(ApplyError, match=f"cannot be represented: {TOO_MANY_DIGITS}") as caught:
        bridge.catch_up()
    assert (caught.value.context.column, "unrepresentable" in caught.value.hint) == ("doc", True)
    bridge.subscription = bridge.subscription.model_copy(update={"unrepresentable": "null"})
    bridge.catch_up()
    compare("id <> 1")
    assert read_table(spark, bridge.path("docs")).filter("doc IS NULL").select("id").collect() == [(1,)]
