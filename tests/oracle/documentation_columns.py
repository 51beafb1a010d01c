"""Cases of the section on column lists, and of generated columns."""

from __future__ import annotations

from typing import Final

from tests.oracle.documentation import Case

EXAMPLE: Final = Case(
    "columns",
    "only the list's columns are replicated; its order does not matter, nor that of the subscriber's columns",
    "CREATE TABLE t1(id int, a text, b text, c text, d text, e text, PRIMARY KEY(id))",
    "CREATE PUBLICATION columns_p1 FOR TABLE columns.t1 (id, b, a, d);",
    ("t1",),
    changes=(
        "INSERT INTO t1 VALUES(1, 'a-1', 'b-1', 'c-1', 'd-1', 'e-1')",
        "INSERT INTO t1 VALUES(2, 'a-2', 'b-2', 'c-2', 'd-2', 'e-2')",
        "INSERT INTO t1 VALUES(3, 'a-3', 'b-3', 'c-3', 'd-3', 'e-3')",
    ),
    subscriber="CREATE TABLE t1(id int, b text, a text, d text, PRIMARY KEY(id))",
    shown={"t1": [("1", "b-1", "a-1", "d-1"), ("2", "b-2", "a-2", "d-2"), ("3", "b-3", "a-3", "d-3")]},
)

LISTED: Final = Case(
    "listed",
    "a list of all columns does not have one that is added later; the copy, UPDATE and DELETE have the list's columns, "
    "a filter beside it",
    "CREATE TABLE t (id int PRIMARY KEY, n int)",
    "CREATE PUBLICATION listed_p FOR TABLE listed.t (n, id) WHERE (id > 1);",
    ("t",),
    "INSERT INTO t VALUES (1, 1), (2, 2), (4, 4)",
    (
        "INSERT INTO t VALUES (5, 5)",
        "ALTER TABLE t ADD COLUMN secret text",
        "UPDATE t SET secret = 'other'; UPDATE t SET n = 5, secret = 'third' WHERE id = 2",
        "UPDATE t SET id = 3 WHERE id = 1; UPDATE t SET id = 0 WHERE id = 2; DELETE FROM t WHERE id = 4",
        "INSERT INTO t VALUES (9, NULL, NULL)",
    ),
)

_GENERATED: Final = ("by_parameter", "in_list")
GENERATED: Final = Case(
    "generated",
    "generated columns are published where a list names them, or without a list where publish_generated_columns = "
    "stored; virtual ones are not; a filter may look at one that is not published",
    "".join(
        f"CREATE TABLE {table} (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED,"
        " half int GENERATED ALWAYS AS (n / 2) STORED, thrice int GENERATED ALWAYS AS (n * 3) VIRTUAL);"
        for table in _GENERATED
    ),
    """
    CREATE PUBLICATION generated_p FOR TABLE generated.by_parameter WITH (publish_generated_columns = stored);
    CREATE PUBLICATION generated_q FOR TABLE generated.in_list (id, twice) WHERE (half > 1) WITH (publish = 'insert');
    """,
    _GENERATED,
    "".join(f"INSERT INTO {table} VALUES (1, 1), (2, 9), (3, 3);" for table in _GENERATED),
    (
        "".join(f"INSERT INTO {table} VALUES (4, 2), (5, 5);" for table in _GENERATED),
        "".join(f"UPDATE {table} SET n = 7 WHERE id = 1; DELETE FROM {table} WHERE id = 2;" for table in _GENERATED),
    ),
    subscriber="""
    CREATE TABLE by_parameter (id int PRIMARY KEY, n int, twice int, half int);
    CREATE TABLE in_list (id int PRIMARY KEY, twice int)
    """,
    since=180000,
)

CASES: Final = (EXAMPLE, LISTED, GENERATED)
