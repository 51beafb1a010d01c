"""An LSN to skip is set, replaced and taken back; one that cannot be is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.catalog.catalog_rows import sync_name
from pgbridge.bridge.catalog.lock import locked
from pgbridge.protocol.lsn import Lsn
from tests.fix_cli import catalog_of

if TYPE_CHECKING:
    from pathlib import Path


def skip_lsn(folder: Path) -> str | None:
    with catalog_of(folder) as catalog:
        return str(catalog.skip_lsn("shop")) if catalog.skip_lsn("shop") else None


def test_skip(two, tmp_path):
    """Set, replaced, taken back; with and without the daemon."""
    done = 'subscription "shop" will skip the transaction that finished at 0/14C0378 (at the daemon\'s next start)\n'
    assert two("skip", "shop", "--lsn", "0/14C0378") == (0, done, "")
    assert skip_lsn(tmp_path) == "0/14C0378"
    with locked(tmp_path / "state"):
        assert two("skip", "shop", "--lsn", "0/14C0400").out.endswith("at 0/14C0400 (now)\n")
    assert two("skip", "shop", "--lsn", "none") == (0, 'subscription "shop" skips no transaction\n', "")
    assert skip_lsn(tmp_path) is None


def test_the_worker_whose_error_it_is_skips(two, tmp_path):
    """That of added tables is behind the subscription, which has passed the transaction."""
    two("status")
    with catalog_of(tmp_path) as catalog:
        catalog.create_origin("shop", Lsn(0x900), "abc", [])
        sync = sync_name("shop")
        catalog.register(sync, enabled=True)
        catalog.create_origin(sync, Lsn(0x100), "def", [])
        catalog.record_error(sync, "no", counter=None, finish_lsn=Lsn(0x200))
        assert two("skip", "shop", "--lsn", "0/200").code == 0
        assert (catalog.skip_lsn("shop"), catalog.skip_lsn(sync)) == (None, Lsn(0x200))
        assert two("skip", "shop", "--lsn", "0/300").code == 1
        assert two("skip", "shop", "--lsn", "none").code == 0
        assert catalog.skip_lsn(sync) is None


@pytest.mark.parametrize(
    ("lsn", "text", "code"),
    [
        ("0/90", "skip WAL location (LSN 0/90) must be greater than origin LSN 0/100", 1),
        ("x", "invalid WAL location (LSN): x", 2),
    ],
)
def test_skip_refuses_what_cannot_be(two, tmp_path, lsn, text, code):
    two("status")
    with catalog_of(tmp_path) as catalog:
        catalog.create_origin("shop", Lsn(0x100), "abc", [])
    assert two("skip", "shop", "--lsn", lsn) == (code, "", f"pgbridge: {text}\n")
    assert skip_lsn(tmp_path) is None
