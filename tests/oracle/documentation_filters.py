"""Cases of the section on row filters, but for partitions: NULL, what an UPDATE becomes, several publications."""

from __future__ import annotations

from typing import Final

from tests.oracle.documentation import Case

EXAMPLE: Final = Case(
    "example",
    "publication p1: INSERT, and UPDATE as UPDATE, as INSERT and as DELETE",
    "CREATE TABLE t1(a int, b int, c text, PRIMARY KEY(a,c))",
    "CREATE PUBLICATION example_p1 FOR TABLE example.t1 WHERE (a > 5 AND c = 'NSW');",
    ("t1",),
    "",
    (
        "INSERT INTO t1 VALUES (2, 102, 'NSW')",
        "INSERT INTO t1 VALUES (3, 103, 'QLD')",
        "INSERT INTO t1 VALUES (4, 104, 'VIC')",
        "INSERT INTO t1 VALUES (5, 105, 'ACT')",
        "INSERT INTO t1 VALUES (6, 106, 'NSW')",
        "INSERT INTO t1 VALUES (7, 107, 'NT')",
        "INSERT INTO t1 VALUES (8, 108, 'QLD')",
        "INSERT INTO t1 VALUES (9, 109, 'NSW')",
        "UPDATE t1 SET b = 999 WHERE a = 6",
        "UPDATE t1 SET a = 555 WHERE a = 2",
        "UPDATE t1 SET c = 'VIC' WHERE a = 9",
    ),
    shown={"t1": [("555", "102", "NSW"), ("6", "999", "NSW")]},
)

PUBLICATIONS: Final = Case(
    "publications",
    "publications p1, p2 and p3 together: one without a filter makes the others redundant (t1), two "
    "filters are ORed (t2); WHERE is the table's that it follows; rows that satisfy any of them are copied; an UPDATE "
    "becomes nothing, INSERT, DELETE or UPDATE (t3)",
    """
    CREATE TABLE t1(a int, b int, c text, PRIMARY KEY(a,c));
    CREATE TABLE t2(d int, e int, f int, PRIMARY KEY(d));
    ALTER TABLE t2 REPLICA IDENTITY FULL;
    CREATE TABLE t3(g int, h int, i int, PRIMARY KEY(g));
    """,
    """
    CREATE PUBLICATION publications_p1 FOR TABLE publications.t1 WHERE (a > 5 AND c = 'NSW');
    CREATE PUBLICATION publications_p2 FOR TABLE publications.t1, publications.t2 WHERE (e = 99);
    CREATE PUBLICATION publications_p3 FOR TABLE publications.t2 WHERE (d = 10), publications.t3 WHERE (g = 10);
    """,
    ("t1", "t2", "t3"),
    """
    INSERT INTO t1 VALUES (2, 102, 'NSW'), (6, 106, 'NSW'), (8, 108, 'QLD');
    INSERT INTO t2 VALUES (1, 99, 1), (2, 98, 2), (10, 98, 3), (11, NULL, 4), (12, 99, 5);
    INSERT INTO t3 SELECT n, n, n FROM generate_series(8, 10) AS n;
    """,
    (
        "INSERT INTO t1 VALUES (3, 103, 'QLD'); UPDATE t1 SET a = 5 WHERE a = 6; DELETE FROM t1 WHERE a = 8",
        "INSERT INTO t2 VALUES (13, 99, 6), (14, 9, 7), (15, NULL, 8); UPDATE t2 SET e = NULL WHERE d IN (10, 12)",
        "UPDATE t2 SET e = 99 WHERE d IN (2, 11); DELETE FROM t2 WHERE d IN (1, 14)",
        "UPDATE t3 SET h = -h; UPDATE t3 SET g = 20 WHERE g = 10; UPDATE t3 SET h = 0 WHERE g = 20",
        "UPDATE t3 SET g = 10 WHERE g = 9; UPDATE t3 SET g = 11 WHERE g = 10; DELETE FROM t3 WHERE g = 11",
        "UPDATE t3 SET g = 10, i = 1 WHERE g = 8; UPDATE t3 SET g = 21, h = 2 WHERE g = 10",
        "UPDATE t3 SET g = 10, i = 3 WHERE g = 21; UPDATE t3 SET i = 4 WHERE g = 10; DELETE FROM t3 WHERE g = 20",
    ),
)

NULLS: Final = Case(
    "nulls",
    "if the filter evaluates to false or NULL the row is not replicated; for the old row and for the new one, under "
    "REPLICA IDENTITY FULL",
    """
    CREATE TABLE t (id int PRIMARY KEY, n int, m int);
    ALTER TABLE t REPLICA IDENTITY FULL;
    """,
    "CREATE PUBLICATION nulls_p FOR TABLE nulls.t WHERE (n > 10);",
    ("t",),
    """
    INSERT INTO t SELECT 10 * a + b, (ARRAY[5, 15, NULL])[a], 0
      FROM generate_series(1, 3) AS a, generate_series(1, 3) AS b
    """,
    (
        "UPDATE t SET n = (ARRAY[5, 16, NULL])[id % 10], m = 1",
        "INSERT INTO t VALUES (1, NULL, 1), (2, 20, 2), (3, 5, 3); DELETE FROM t WHERE id IN (1, 13, 31, 32)",
        "UPDATE t SET id = id + 100 WHERE id IN (2, 3); UPDATE t SET n = NULL WHERE id = 22",
    ),
)

PER_ACTION: Final = Case(
    "per_action",
    "filters are ORed for the same publish operation; the copy takes those of any operation",
    "CREATE TABLE t (id int PRIMARY KEY, n int)",
    """
    CREATE PUBLICATION per_action_insert FOR TABLE per_action.t WHERE (id > 5) WITH (publish = 'insert');
    CREATE PUBLICATION per_action_both FOR TABLE per_action.t WHERE (id = 3) WITH (publish = 'insert, update');
    CREATE PUBLICATION per_action_unfiltered FOR TABLE per_action.t WITH (publish = 'delete');
    """,
    ("t",),
    "INSERT INTO t SELECT n, n FROM generate_series(1, 4) AS n",
    (
        "INSERT INTO t VALUES (5, 5), (6, 6), (7, 7); UPDATE t SET n = -n",
        "DELETE FROM t WHERE id IN (3, 1, 6); INSERT INTO t VALUES (3, 33); UPDATE t SET id = 13 WHERE id = 3",
        "UPDATE t SET id = 3 WHERE id = 5; UPDATE t SET n = 0 WHERE id = 3; DELETE FROM t WHERE id = 2",
    ),
)

TOAST: Final = Case(
    "toast",
    "with values that an UPDATE does not send, because they are unchanged and stored out of line: the filter sees "
    "them in the old tuple, and the INSERT that an UPDATE becomes takes them from there, or has NULL",
    """
    CREATE TABLE keyed (id int, flag int, body text, PRIMARY KEY (id, flag));
    CREATE TABLE whole (id int PRIMARY KEY, n int, body text);
    ALTER TABLE keyed ALTER body SET STORAGE EXTERNAL;
    ALTER TABLE whole ALTER body SET STORAGE EXTERNAL;
    ALTER TABLE whole REPLICA IDENTITY FULL;
    """,
    """
    CREATE PUBLICATION toast_p FOR TABLE toast.keyed WHERE (flag = 1), toast.whole WHERE (n > 10 AND length(body) > 5);
    """,
    ("keyed", "whole"),
    """
    INSERT INTO keyed SELECT n, n % 2, repeat(chr(64 + n), 3000) FROM generate_series(1, 6) AS n;
    INSERT INTO whole SELECT n, 10 * (n % 2) + n, repeat(chr(64 + n), 3000) FROM generate_series(1, 6) AS n;
    """,
    (
        "UPDATE keyed SET flag = 1 - flag WHERE id < 5; UPDATE keyed SET id = id + 10 WHERE id > 4",
        "UPDATE keyed SET body = 'short', flag = 1 WHERE id = 3",
        "UPDATE whole SET n = n + 9 WHERE id < 3; UPDATE whole SET n = 1 WHERE id IN (3, 4)",
        "UPDATE whole SET n = 20 WHERE id = 6; UPDATE whole SET id = 15 WHERE id = 5",
        "UPDATE whole SET body = 'tiny' WHERE id = 1; INSERT INTO whole VALUES (9, 30, repeat('z', 3000))",
    ),
)

TOAST_KEY: Final = Case(
    "toast_key",
    "with a value in the replica identity that an UPDATE does not send, because it is unchanged and stored out of line",
    """
    CREATE TABLE t (id int, body text, n int, PRIMARY KEY (id, body));
    ALTER TABLE t ALTER body SET STORAGE EXTERNAL;
    """,
    "CREATE PUBLICATION toast_key_p FOR TABLE toast_key.t WHERE (length(body) > 2200 AND id < 100);",
    ("t",),
    "INSERT INTO t SELECT n, repeat(chr(64 + n), 2100 + 30 * n), n FROM generate_series(1, 6) AS n",
    (
        "UPDATE t SET n = -n",
        "UPDATE t SET id = 100 + id WHERE id > 5",
        "UPDATE t SET id = id - 50 WHERE id > 100",
        "UPDATE t SET body = repeat('y', 2300) WHERE id = 1",
    ),
)

CASES: Final = (EXAMPLE, PUBLICATIONS, NULLS, PER_ACTION, TOAST, TOAST_KEY)
