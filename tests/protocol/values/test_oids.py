"""The table of built-in types against a server's."""

from __future__ import annotations

import sql
from protocol.values import oids

GENERATED_BY = 18


def test_rows_are_a_servers(postgresql_server):
    """A server of the table's version has exactly its rows; on another one, the types in both are equal."""
    with postgresql_server.connect() as connection:
        major = connection.info.server_version // 10000
        known = connection.execute(
            "SELECT oid FROM pg_type WHERE oid < 10000 AND typtype IN ('b', 'c', 'r', 'm')"
        ).fetchall()
        rows = connection.execute(sql.load("types"), {"oids": [oid for (oid,) in known]}).fetchall()
    assert all(
        (namespace, basetype, typmod) == ("pg_catalog", 0, -1) for _, _, namespace, _, basetype, typmod, *_ in rows
    )
    found = {
        (oid, name, typtype, element, subtype, delimiter)
        for oid, name, _, typtype, _, _, element, subtype, delimiter in rows
    }
    if major == GENERATED_BY:
        assert found == set(oids.ROWS)
    else:
        shared = {row[0] for row in found} & {row[0] for row in oids.ROWS}
        assert {row for row in found if row[0] in shared} == {row for row in oids.ROWS if row[0] in shared}


def test_parts_are_in_the_table():
    """Elements and subtypes of the table's types are in the table, so that BUILTIN needs no other catalog."""
    known = {oid for oid, *_ in oids.ROWS}
    assert len(known) == len(oids.ROWS)
    assert {part for _, _, _, element, subtype, _ in oids.ROWS for part in (element, subtype) if part} <= known
