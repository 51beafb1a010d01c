"""`filter_server = "publisher"`: what only a server can tell, against a native subscription to the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.oracle.documentation import Case, Run
from tests.oracle.test_documentation import carried_out, check

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.fix_postgres import Server

KEYED: Final = Case(
    "keyed",
    "the identity is the key, and a filter's columns are of it; infinity, which no Delta table holds, is in rows that "
    "do not pass",
    """
    CREATE TABLE t (name text, n int, day date, PRIMARY KEY (name, n));
    """,
    "CREATE PUBLICATION keyed_p FOR TABLE keyed.t WHERE (name ILIKE 'ä%' OR (n, name) > (5, 'x'));",
    ("t",),
    """
    INSERT INTO t VALUES ('Ärger', 1, '2020-01-01'), ('ärmel', 2, NULL), ('b', 3, 'infinity'), ('zz', 6, '2021-01-01')
    """,
    (
        "INSERT INTO t VALUES ('ÄÄ', 3, '2022-02-02'), ('c', 4, '-infinity'), ('y', 9, NULL)",
        "UPDATE t SET name = 'd' WHERE n = 1; UPDATE t SET name = 'Äpfel', day = '2023-01-01' WHERE name = 'b'",
        "UPDATE t SET day = '2024-01-01' WHERE name IN ('ärmel', 'c'); DELETE FROM t WHERE name IN ('zz', 'd')",
        """
        INSERT INTO t SELECT (ARRAY['ä', 'Ä', 'a', 'é'])[n % 4 + 1], n - 2000,
                             (ARRAY['2020-01-01', NULL, 'infinity', '-infinity'])[n % 4 + 1]::date
          FROM generate_series(1, 900) AS n
        """,
        "DELETE FROM t WHERE n < -1500",
    ),
)

WHOLE: Final = Case(
    "whole",
    "REPLICA IDENTITY FULL, several publications of which one is translated, TOAST that does not change, values of "
    "every form",
    """
    CREATE TABLE t (id int PRIMARY KEY, title text, tags text[], span interval, doc jsonb, amount numeric, body text);
    ALTER TABLE t REPLICA IDENTITY FULL;
    ALTER TABLE t ALTER body SET STORAGE EXTERNAL;
    """,
    """
    CREATE PUBLICATION whole_p1 FOR TABLE whole.t WHERE (lower(title) = 'straße' AND length(body) > 10);
    CREATE PUBLICATION whole_p2 FOR TABLE whole.t
     WHERE (span > '1 mon 3 days' OR 'x' = ANY (tags) OR doc #>> '{a,b}' = 'c');
    CREATE PUBLICATION whole_p3 FOR TABLE whole.t WHERE (amount = 7);
    """,
    ("t",),
    """
    INSERT INTO t SELECT n, (ARRAY['Straße', 'STRASSE', 'STRAßE'])[n % 3 + 1], '{y}', '1 day', '{}', n,
                         repeat(chr(60 + n), 3000)
      FROM generate_series(1, 9) AS n
    """,
    (
        "INSERT INTO t VALUES (20, 'no', '{x,NULL}', '40 days', NULL, 'NaN', 'b')",
        "INSERT INTO t VALUES (21, 'no', NULL, '33 days'), (24, 'no', NULL, '1 day')",
        "INSERT INTO t VALUES (22, 'no', NULL, '1 mon 72:00:00.000001', NULL, 7.00), (23, NULL, '{}', NULL, NULL, 1.5)",
        "UPDATE t SET title = 'STRAßE' WHERE id IN (1, 3); UPDATE t SET title = 'x' WHERE id = 2",
        'UPDATE t SET doc = \'{"a": {"b": "c"}}\' WHERE id IN (4, 23); UPDATE t SET amount = 8 WHERE id = 7',
        "UPDATE t SET tags = '{z,x}' WHERE id IN (6, 7); UPDATE t SET span = '1 mon 2 days' WHERE id IN (20, 22)",
        "UPDATE t SET doc = NULL WHERE id = 23; DELETE FROM t WHERE id IN (5, 21)",
    ),
)


def test_as_a_native_subscription(spark: SparkSession, postgresql_server: Server, tmp_path: Path):
    """The copy and every kind of change, one batch of them too large for memory."""
    run = Run("server_filters", (KEYED, WHOLE))
    options = {"filter_server": "publisher", "batch__max_bytes": 40_000}
    with carried_out(run, spark, postgresql_server, tmp_path, **options) as done:
        assert {len(done.native.rows(f"{name}.t")) > 3 for name in ("keyed", "whole")} == {True}
        for case in done.run.cases:
            check(spark, done, case)
