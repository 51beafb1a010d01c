"""`pgbridge refresh` from the shell: what it prints, and what it asks the worker for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.catalog.lock import locked
from pgbridge.protocol.lsn import Lsn
from tests.fix_cli import TWO, catalog_of

if TYPE_CHECKING:
    from pathlib import Path

    from pgbridge.bridge.catalog.refresh import RefreshRow


@pytest.fixture
def shop(pgbridge, tmp_path, publisher):
    """The same with a server that publishes t1 and t2; the subscription `shop` has t1 and gone."""
    publisher.execute("CREATE TABLE t1 (a int PRIMARY KEY); CREATE TABLE t2 (a int PRIMARY KEY)")
    publisher.execute("CREATE PUBLICATION shop_pub FOR TABLE t1, t2")
    (tmp_path / "pgbridge.toml").write_text(TWO.replace("host=/nonexistent", publisher.conninfo, 1))
    with catalog_of(tmp_path) as catalog:
        catalog.register("shop", enabled=True)
        rels = [RelRow("public", name, "r", Lsn(0x100), f"/lake/public/{name}") for name in ("t1", "gone")]
        catalog.create_origin("shop", Lsn(0x100), "abc", rels)
    return pgbridge


def asked(folder: Path) -> list[RefreshRow]:
    with catalog_of(folder) as catalog:
        return refresh.asked(catalog, "shop")


def test_refresh(shop, tmp_path):
    """It says what will be done, and leaves it to the worker."""
    done = (
        'subscription "shop" is refreshed (at the daemon\'s next start)\n'
        "  public.t2: added: copied, then follows the stream\n"
        "  public.gone: removed: stops following the stream; its Delta table stays\n"
    )
    assert shop("refresh", "shop") == (0, done, "")
    first = [(None, True, False), (("public", "gone"), True, True)]
    assert [(row.table, row.copy_data, row.unpublished) for row in asked(tmp_path)] == first
    with locked(tmp_path / "state"):
        code, out, _ = shop("refresh", "shop", "--no-copy-data")
    assert (code, out.splitlines()[:2]) == (
        0,
        [
            'subscription "shop" is refreshed (now)',
            "  public.t2: added without a copy: follows the stream at once",
        ],
    )
    second = [(None, False, False), (("public", "gone"), False, True)]
    assert [(row.table, row.copy_data, row.unpublished) for row in asked(tmp_path)] == [*first, *second]


def test_a_table_that_is_published_again_before_the_first_refresh_is_carried_out(shop, tmp_path, publisher):
    """Its changes in between are not in the stream: it is copied again."""
    assert "public.gone: removed" in shop("refresh", "shop").out
    publisher.execute("CREATE TABLE gone (a int PRIMARY KEY); ALTER PUBLICATION shop_pub ADD TABLE gone")
    assert "  public.gone: copied again: one commit replaces its rows" in shop("refresh", "shop").out
    assert "is refreshed" in shop("refresh", "shop", "--no-copy-data").out
    assert [row.copy_data for row in asked(tmp_path) if row.table is None] == [True, True, False]  # the last one counts


def test_refresh_with_copy_data_off_in_the_configuration(shop, tmp_path):
    file = tmp_path / "pgbridge.toml"
    file.write_text(file.read_text().replace("[subscription.hr]", "copy_data = false\n[subscription.hr]"))
    assert "follows the stream at once" in shop("refresh", "shop").out
    assert "added: copied" in shop("refresh", "shop", "--copy-data").out
    assert [row.copy_data for row in asked(tmp_path) if row.table is None] == [False, True]


def test_resync(shop, tmp_path):
    text = "  public.t1: copied again: one commit replaces its rows, then it follows the stream\n"
    for name in ("t1", "public.t1"):
        code, out, _ = shop("refresh", "shop", "--resync", name)
        assert code == 0
        assert out.endswith(text)
    assert [row.table for row in asked(tmp_path)] == [("public", "t1")] * 2


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("other.t1", 'table "other.t1" is not part of subscription "shop"'),
        ("gone", 'table "public.gone" is no longer published'),
    ],
)
def test_resync_of_what_cannot_be(shop, tmp_path, table, message):
    code, out, err = shop("refresh", "shop", "--resync", "t1", "--resync", table)
    assert (code, out) == (2, "")
    assert err.startswith(f"pgbridge: {message}\nHINT:  ")
    assert asked(tmp_path) == []


def test_refresh_with_nothing_to_do(shop, tmp_path, publisher):
    publisher.execute(
        "ALTER PUBLICATION shop_pub DROP TABLE t2; CREATE TABLE gone (); ALTER PUBLICATION shop_pub ADD TABLE gone"
    )
    assert shop("refresh", "shop") == (
        0,
        'subscription "shop": nothing to refresh, its tables are the published ones\n',
        "",
    )
    assert asked(tmp_path) == []


def test_refresh_before_the_first_start(two, tmp_path):
    code, out, err = two("refresh", "shop")
    assert (code, err) == (0, "")
    assert out == 'subscription "shop" has not started yet: its first start subscribes to all published tables\n'
    assert asked(tmp_path) == []


def test_refresh_without_the_server(shop, tmp_path):
    """As ALTER SUBSCRIPTION … REFRESH PUBLICATION, which asks the publisher, too."""
    (tmp_path / "pgbridge.toml").write_text(TWO)
    code, out, err = shop("refresh", "shop")
    assert (code, out) == (1, "")
    assert err.startswith("pgbridge: ")
    assert asked(tmp_path) == []
