"""Gaps between the server's publications and those of a definitions file."""

from __future__ import annotations

import pytest

from pgbridge.bridge.publication.reapply import gaps
from pgbridge.bridge.publication.replica_identity import refusals
from tests.bridge.publication.server_publications import routing

TABLES = """
    CREATE TABLE t (a int PRIMARY KEY, b int, c int);
    CREATE TABLE root (a int PRIMARY KEY, b int) PARTITION BY RANGE (a);
    CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9);
    CREATE TABLE rest PARTITION OF root DEFAULT;
"""
ALL = "CREATE PUBLICATION s FOR ALL TABLES"
VIA_ROOT = "publish_via_partition_root"


@pytest.mark.parametrize(
    ("wanted", "server", "found"),
    [
        ("t WHERE (a > 5)", ALL, []),
        (f"t (a), root WHERE (a > 1) WITH ({VIA_ROOT})", ALL, []),
        (f"root WITH ({VIA_ROOT})", f"{ALL} WITH ({VIA_ROOT})", []),
        ("t", "CREATE PUBLICATION s FOR TABLE low", ['- no publication on the server publishes table "public.t"']),
        (
            "t",
            f"{ALL} WITH (publish = 'insert')",
            ['- the publications on the server do not publish UPDATE, DELETE, TRUNCATE of table "public.t"'],
        ),
        ("t WITH (publish = 'insert')", f"{ALL} WITH (publish = 'insert')", []),
        (
            "t",
            "CREATE PUBLICATION s FOR TABLE t WHERE (a > 1)",
            ['- the publications on the server have a row filter on table "public.t"'],
        ),
        (
            "t",
            "CREATE PUBLICATION s FOR TABLE t (a, b)",
            ['! the publications on the server do not publish column "c" of table "public.t"'],
        ),
        (
            "t (a) WHERE (c > 1) WITH (publish = 'insert')",
            "CREATE PUBLICATION s FOR TABLE t (a, b)",
            ['! the publications on the server do not publish column "c" of table "public.t"'],
        ),
        ("t (a, b)", "CREATE PUBLICATION s FOR TABLE t (a, b)", []),
        (
            "low",
            f"{ALL} WITH ({VIA_ROOT})",
            [
                (
                    '! the server publishes changes of table "public.low" as "public.root", '
                    'but the definitions publish them as "public.low"'
                ),
                '! the stream has the changes of partition "public.',
            ],
        ),
    ],
)
def test_gaps(publisher, wanted, server, found):
    """`!` is fatal."""
    publisher.execute(TABLES)
    missing = gaps(routing(publisher, f"CREATE PUBLICATION p FOR TABLE {wanted}"), routing(publisher, server))
    lines = [("! " if gap.fatal else "- ") + gap.message for gap in missing]
    assert len(lines) == len(found)
    assert all(line.startswith(start) for line, start in zip(lines, found, strict=True))


def test_virtual_columns(publisher):
    """PostgreSQL computes them before it filters; what it sends has none."""
    if publisher.query("SELECT current_setting('server_version_num')::int")[0][0] < 180000:
        pytest.skip("virtual generated columns need PostgreSQL 18")
    publisher.execute("CREATE TABLE g (a int PRIMARY KEY, v int GENERATED ALWAYS AS (a * 2) VIRTUAL)")
    server = routing(publisher, f"{ALL} WITH (publish_generated_columns = stored)")
    for options in ("", " WITH (publish = 'insert')"):
        wanted = routing(publisher, f"CREATE PUBLICATION p FOR TABLE g WHERE (v > 4){options}")
        assert refusals(wanted) == []
        (gap,) = gaps(wanted, server)
        assert gap.fatal
        assert gap.message.startswith('a row filter uses virtual generated column "v" of table "public.g"')
    assert gaps(routing(publisher, "CREATE PUBLICATION p FOR TABLE g WHERE (v > 4) WITH (publish = '')"), server) == []
