"""Files that a server makes from its catalog: `python -m tests.generated_catalogs URI` writes them anew.

`protocol/values/oids.tsv` has the built-in types: oid, name, typtype, element of an array, subtype of a range or
multirange, delimiter. `bridge/rowfilter/types/pg_catalog.tsv` has operators, functions, casts and categories; of
operators and functions those names that the file has already.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from pgbridge import sql

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT: Final = Path(__file__).parents[1]
OIDS: Final = ROOT / "protocol/values/oids.tsv"
PG_CATALOG: Final = ROOT / "bridge/rowfilter/types/pg_catalog.tsv"
VERSION: Final = 18
"""The major version of the server that made them."""

_BUILT_IN: Final = "SELECT oid FROM pg_type WHERE oid < 10000 AND typtype IN ('b', 'c', 'r', 'm')"
_OPERATORS: Final = """SELECT CASE WHEN oprleft = 0 THEN 'prefix ' ELSE '' END || oprname,
    CASE WHEN oprleft = 0 THEN ARRAY[r.typname] ELSE ARRAY[l.typname, r.typname] END::text[], t.typname,
    p.provolatile = 'i'
    FROM pg_operator o LEFT JOIN pg_type l ON l.oid = oprleft JOIN pg_type r ON r.oid = oprright
    JOIN pg_type t ON t.oid = oprresult JOIN pg_proc p ON p.oid = oprcode WHERE o.oid < 10000 ORDER BY o.oid"""
_FUNCTIONS: Final = """SELECT proname, ARRAY(SELECT y.typname FROM unnest(proargtypes) WITH ORDINALITY u(o, n)
    JOIN pg_type y ON y.oid = u.o ORDER BY n)::text[], t.typname, provolatile = 'i'
    FROM pg_proc p JOIN pg_type t ON t.oid = prorettype WHERE p.oid < 10000 AND pronamespace = 11 ORDER BY p.oid"""
_CASTS: Final = """SELECT s.typname, t.typname, castcontext::text, castmethod::text, coalesce(provolatile = 'i', true)
    FROM pg_cast c JOIN pg_type s ON s.oid = castsource JOIN pg_type t ON t.oid = casttarget
    LEFT JOIN pg_proc p ON p.oid = castfunc WHERE c.oid < 16384 AND castsource <> casttarget ORDER BY c.oid"""
_CATEGORIES: Final = """SELECT typcategory::text, typname, typispreferred FROM pg_type
    WHERE oid < 10000 AND typtype IN ('b', 'r') AND typcategory <> 'A' ORDER BY oid"""


def built_in_types(connection: psycopg.Connection[Any]) -> str:
    """The text of `OIDS`, as a server has it."""
    oids = [oid for (oid,) in connection.execute(_BUILT_IN)]
    rows = connection.execute(sql.load("types").encode(), {"oids": oids})
    kept = [(oid, name, *rest) for oid, name, _, *rest in rows]
    return "".join("\t".join(map(str, (oid, name, typtype, *rest))) + "\n" for oid, name, typtype, _, _, *rest in kept)


def operators_and_casts(connection: psycopg.Connection[Any], names: Iterable[tuple[str, str]]) -> str:
    """The text of `PG_CATALOG`, as a server has it, with these (kind, name) of operators and functions."""
    entries: dict[tuple[str, str], list[str]] = {key: [] for key in names if key[0] in {"operator", "function"}}
    for kind, query in ("operator", _OPERATORS), ("function", _FUNCTIONS):
        for name, arguments, result, immutable in connection.execute(query):
            if (kind, name) in entries:
                entries[kind, name].append(",".join([*arguments, result]) + _mark(not immutable))
    for category, name, preferred in connection.execute(_CATEGORIES):
        entries.setdefault(("category", category), []).append(name + _mark(preferred))
    for source, target, context, method, immutable in connection.execute(_CASTS):
        entries.setdefault(("cast", ""), []).append(f"{source},{target},{context}{method}" + _mark(not immutable))
    return "".join(f"{kind}\t{name}\t{' '.join(texts)}\n" for (kind, name), texts in entries.items())


def names_in(text: str) -> list[tuple[str, str]]:
    """The (kind, name) of each line of `PG_CATALOG`."""
    return [(kind, name) for kind, name, _ in (line.split("\t") for line in text.splitlines())]


def _mark(marked: bool) -> str:
    return "!" if marked else ""


if __name__ == "__main__":
    with psycopg.connect(sys.argv[1]) as server:
        OIDS.write_text(built_in_types(server), encoding="utf-8")
        known = names_in(PG_CATALOG.read_text(encoding="utf-8"))
        PG_CATALOG.write_text(operators_and_casts(server, known), encoding="utf-8")
