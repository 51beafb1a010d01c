"""A position is where a batch ends; what is gone is named. Whole subscriptions are in `test_snapshot`."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from pgbridge.bridge.catalog.commits import CommitRecord
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamp_options
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.snapshots import point_in_time
from pgbridge.protocol.lsn import Lsn

ORIGIN = "pgbridge/1/sub/inc"


def record(number, kind, start_lsn, end_lsn, path="/lake/a"):
    return CommitRecord(number, kind, None, Lsn(start_lsn), Lsn(end_lsn), None, number, 1, (("n", "a", path),), 1e9)


def test_a_table_that_joins_ahead_of_the_stream_is_no_position(spark, tmp_path):
    found = [record(1, "joined", 0x10, 0x10), record(2, "batch", 0x10, 0x20), record(3, "joined", 0x20, 0x28, "/b")]
    pending = [(ORIGIN, one) for one in found]

    def at(lsn):
        return point_in_time.point_of(spark, str(tmp_path), Lsn(lsn), subscription="sub", pending=pending)

    assert at(0x1F).lsn == 0x10
    assert at(0x2F).lsn == 0x20
    assert [table.path for table in at(0x2F).tables] == ["/lake/a"]
    assert at(0x2F).tables[0].qualified_name == "n.a"
    with pytest.raises(TargetError, match="begin at 0/10"):
        at(0xF)


def test_a_history_that_is_cut_off(spark, tmp_path):
    path = str(tmp_path / "t")
    for end in (0x10, 0x20, 0x30):
        stamp = CommitStamp(f"{ORIGIN}/0", Lsn(end - 0x10), Lsn(end))
        spark.range(1).write.format("delta").mode("append").options(**stamp_options(stamp)).save(path)
    spark.sql(f"OPTIMIZE delta.`{path}`").collect()

    def version(lsn, *, later=False):
        table = point_in_time.TableAt("n", "t", path, None, later)
        return point_in_time.version_at(spark, table, Lsn(lsn))

    assert (version(0x20), version(0x30), version(0x3F)) == (1, 3, 3)
    log = tmp_path / "t" / "_delta_log"
    for old in range(2):
        (log / f"{old:020}.json").unlink()
    with pytest.raises(TargetError, match="begins with version 2"):
        version(0x20, later=True)
    assert version(0x30) == 3
    (log / f"{2:020}.json").unlink()  # the last batch's own commit
    assert version(0x30) == 3
    with pytest.raises(TargetError, match="begins with version 3"):
        version(0x30, later=True)
    shutil.rmtree(path)
    with pytest.raises(TargetError, match="has no history"):
        version(0x30)


class Session:
    """A session that takes the statements down."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def sql(self, statement: str) -> Session:
        self.statements.append(statement)
        return self

    def collect(self) -> None:
        """Run nothing."""


@pytest.mark.parametrize(
    ("first", "second", "view"),
    [
        (("app", "orders_old"), ("app_orders", "old"), "`app_orders_old`"),
        (("public", "T"), ("public", "t"), "`public_t`"),
    ],
)
def test_two_tables_that_would_be_one_view(first, second, view):
    """No view is made: the last one would have silently stood for both."""
    session: Any = Session()
    one, other = (
        point_in_time.TableAt(namespace, name, "/lake/t", None, later=False) for namespace, name in (first, second)
    )
    with pytest.raises(TargetError) as raised:
        point_in_time.create_views(session, "`as_of`", "sub", [(one, 1), (other, 2)], {})
    names = (one.qualified_name, other.qualified_name)
    tables = " and ".join(f'"{name}" of subscription "sub"' for name in names)
    assert str(raised.value.message) == f"the tables {tables} would both be the view `as_of`.{view}"
    assert session.statements == []


def test_a_view_that_another_subscription_has():
    """Of one command, which makes the views of several subscriptions in one namespace."""
    session: Any = Session()
    table, taken = point_in_time.TableAt("public", "t", "/lake/t", None, later=False), dict[str, str]()
    point_in_time.create_views(session, "`as_of`", "a", [(table, 1)], taken)
    assert [one.split(" AS ")[0] for one in session.statements] == [
        "CREATE NAMESPACE IF NOT EXISTS `as_of`",
        "CREATE OR REPLACE VIEW `as_of`.`public_t`",
    ]
    with pytest.raises(TargetError, match='"public.t" of subscription "a" and "public.t" of subscription "b"'):
        point_in_time.create_views(session, "`as_of`", "b", [(table, 1)], taken)
