"""A statement says in its header what it takes, what it gives and where it runs; the test server holds it to that."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from pgbridge import sql

FILES = sorted(Path(sql.__file__).parent.glob("*.sql"))
NAMES = [path.stem for path in FILES]

ARGUMENTS = {
    "application_names": ["an application"],
    "functions": [1299],
    "key_column": "oid",
    "oids": [20],
    "known": "",
    "name": "pg_catalog.pg_class",
    "names": ["wal_level"],
    "namespaces": ["pg_catalog"],
    "operators": [1327],
    "pids": [],
    "publications": ["a publication"],
    "relid": 1259,
    "relids": [1259],
    "slot_name": "no_such_slot",
    "slot_names": ["no_such_slot"],
    "wanted": ["logical"],
    "xid": "3",
}
"""A value for every parameter that a statement has."""

_PARAMETER = re.compile(r"%\((\w+)\)s(?:::([\w.]+(?:\[\])?))?")


class Header(NamedTuple):
    """What the comment at a statement's beginning says."""

    summary: str
    parameters: dict[str, str]
    columns: list[str]
    lowest_version: int


def header_of(text: str) -> Header:
    """Read a header. A parenthesis explains, and a semicolon ends the columns."""
    comment = re.match(r"(?:--.*\n)+", text)
    assert comment is not None
    lines = re.sub(r"\n--", " ", comment[0].removeprefix("--"))
    found = re.fullmatch(r"(.*?) Parameters: (.*?) Returns[^:]*: (.*?) Lowest version: (\d+).*", lines, re.DOTALL)
    assert found is not None, "the header has Parameters, Returns and Lowest version, in that order"
    summary, parameters, columns, version = (part.strip() for part in found.groups())
    pairs = [] if parameters == "none" else [part.split() for part in _outside_parentheses(parameters).split(",")]
    returned = _outside_parentheses(columns).split(";")[0].split(",")
    return Header(
        summary,
        dict(pairs),
        [column.split()[0] for column in returned if "ordered by" not in column],
        int(version),
    )


def _outside_parentheses(text: str) -> str:
    return re.sub(r"\([^()]*\)", "", text)


def test_there_are_statements():
    assert len(NAMES) >= 7


@pytest.mark.parametrize("name", NAMES)
def test_loads_as_it_stands(name):
    path = Path(sql.__file__).with_name(f"{name}.sql")
    assert sql.load(name) == path.read_text(encoding="utf-8")


def test_unknown_statement():
    with pytest.raises(FileNotFoundError):
        sql.load("no_such_statement")


@pytest.mark.parametrize("name", NAMES)
def test_header_is_whole(name):
    header = header_of(sql.load(name))
    assert header.summary.endswith(".")
    assert header.columns
    assert header.lowest_version >= 10


@pytest.mark.parametrize("name", NAMES)
def test_header_names_the_parameters(name):
    """Just those of the statement, with the types it casts them to."""
    text = sql.load(name)
    used = {name: kind.removeprefix("pg_catalog.") for name, kind in _PARAMETER.findall(text)}
    declared = header_of(text).parameters
    assert declared.keys() == used.keys()
    assert all(kind in {"", declared[name]} for name, kind in used.items())


@pytest.mark.parametrize("name", NAMES)
def test_runs_and_returns_what_its_header_names(name, postgresql):
    """With the search_path of the bridge's connections, in which nothing but pg_catalog is found unqualified."""
    text = sql.load(name)
    header = header_of(text)
    if postgresql.info.server_version // 10000 < header.lowest_version:
        pytest.skip(f"needs PostgreSQL {header.lowest_version}")
    postgresql.execute("SET search_path = pg_catalog")
    postgresql.execute('CREATE PUBLICATION "a publication"')
    cursor = postgresql.execute(text, {key: ARGUMENTS[key] for key in header.parameters})
    assert [column.name for column in cursor.description] == header.columns
    cursor.fetchall()


@pytest.mark.parametrize("name", NAMES)
def test_is_one_statement(name):
    """A second one would not be prepared, and its result not be read."""
    assert ";" not in re.sub(r"--.*|'[^']*'", "", sql.load(name))
