"""The operators, functions, casts and types are those of a server."""

from __future__ import annotations

import pytest

from bridge.rowfilter.types.pg_catalog import CASTS, CATEGORY, FUNCTIONS, OPERATORS, PREFERRED

TYPES = """SELECT typname, typcategory::text, typispreferred FROM pg_type
    WHERE oid < 10000 AND typtype IN ('b', 'r') AND typcategory <> 'A'"""
ROWS = """SELECT o.oprname, ARRAY[l.typname, r.typname]::text[], t.typname, p.provolatile = 'i'
    FROM pg_operator o LEFT JOIN pg_type l ON l.oid = oprleft JOIN pg_type r ON r.oid = oprright
    JOIN pg_type t ON t.oid = oprresult JOIN pg_proc p ON p.oid = oprcode WHERE o.oid < 10000"""
FUNCTION_ROWS = """SELECT proname, ARRAY(SELECT y.typname FROM unnest(proargtypes) WITH ORDINALITY u(o, n)
    JOIN pg_type y ON y.oid = u.o ORDER BY n)::text[], t.typname, provolatile = 'i'
    FROM pg_proc p JOIN pg_type t ON t.oid = prorettype WHERE p.oid < 10000 AND pronamespace = 11"""
CAST_ROWS = """SELECT s.typname, t.typname, castcontext::text, castmethod::text, coalesce(provolatile = 'i', true)
    FROM pg_cast c JOIN pg_type s ON s.oid = castsource JOIN pg_type t ON t.oid = casttarget
    LEFT JOIN pg_proc p ON p.oid = castfunc WHERE c.oid < 16384 AND castsource <> casttarget"""


@pytest.fixture
def query(postgresql):
    if postgresql.info.server_version < 180000:
        pytest.skip("generated from PostgreSQL 18")
    return lambda text: postgresql.execute(text).fetchall()


def test_operators_and_functions(query):
    found: dict[str, set[tuple[tuple[str, ...], str, bool]]] = {}
    for name, (left, right), result, immutable in query(ROWS):
        key, types = (name, (left, right)) if left else (f"prefix {name}", (right,))
        found.setdefault(key, set()).add((types, result, immutable))
    assert {name: found[name] for name in OPERATORS} == {name: set(rows) for name, rows in OPERATORS.items()}
    found = {}
    for name, types, result, immutable in query(FUNCTION_ROWS):
        found.setdefault(name, set()).add((tuple(types), result, immutable))
    assert {name: found[name] for name in FUNCTIONS} == {name: set(rows) for name, rows in FUNCTIONS.items()}


def test_casts_and_categories(query):
    assert {(source, target): tuple(rest) for source, target, *rest in query(CAST_ROWS)} == dict(CASTS)
    rows = query(TYPES)
    assert {name: category for name, category, _ in rows} == dict(CATEGORY)
    assert {name for name, _, preferred in rows if preferred} == PREFERRED
