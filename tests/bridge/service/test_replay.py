"""`pgbridge replay` refuses what it cannot do before it starts Spark. `tests/oracle/test_skip.py` replays."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from typing import Any

import pytest

from bridge.catalog.catalog import Catalog, boot_id, catalog_path
from bridge.catalog.catalog_rows import BatchIntent
from bridge.catalog.lock import locked
from bridge.config.config import Config, Subscription
from bridge.runtime.errors import SkipError, StateError
from bridge.service.replay import _check_begun, replay
from bridge.skipped import replayable
from protocol.lsn import Lsn
from tests.bridge.skipped.test_skipped_transactions import CHANGES, of

NO_SPARK: Any = None
SKIPPER = replayable.Skipper("pgbridge/1/shop/x", {})
SHOP = Subscription(name="shop", connection="", publications=("pub",), warehouse="/lake")


@contextmanager
def no_spark(*_):
    raise AssertionError("Spark was started")
    yield


@pytest.fixture
def shop(tmp_path):
    """A state directory with a subscription, and the transaction that finished at 0/18."""
    folder = tmp_path / "skipped" / "0-18" / "shop"
    folder.mkdir(parents=True)
    replayable.write(of(CHANGES), folder, SKIPPER)
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("shop", enabled=True)
        catalog.create_origin("shop", Lsn(0x20), "abc", [])
    return Config(state_dir=tmp_path, subscription={"shop": SHOP})


def refused(shop, text="0/18", kind=SkipError):
    with pytest.raises(kind) as caught:
        list(replay(shop, SHOP, text, started=no_spark))
    return str(caught.value)


def test_no_lsn(shop):
    assert "0/18x" in refused(shop, "0/18x")


def test_no_such_transaction(shop):
    found = refused(shop, "0/19")
    assert 'no transaction that finished at 0/19 was skipped by subscription "shop" (kept are: 0/18)' in found
    assert "pgbridge skip shop --lsn 0/19" in found


def test_replayed_before(shop):
    done = shop.state_dir / "skipped" / "0-18" / "shop" / "replay" / "replayed.json"
    done.write_text(json.dumps({"time": "yesterday"}))
    assert refused(shop) == "the transaction that finished at 0/18 was replayed at yesterday"


def test_a_daemon_is_running(shop):
    with locked(shop.state_dir):
        said = refused(shop, kind=StateError)
        assert "another pgbridge daemon" in said
        assert said.endswith("HINT:  stop the daemon by SIGTERM, then repeat the command")


def test_a_batch_is_unfinished(shop):
    with closing(Catalog(catalog_path(shop.state_dir))) as catalog:
        catalog.begin_batch("shop", BatchIntent(Lsn(0x20), Lsn(0x30)))
    assert "a batch that was begun and not finished" in refused(shop, kind=StateError)


@pytest.mark.parametrize("found", [{"boot_id": "another", "flushing": False}, {"boot_id": boot_id(), "flushing": True}])
def test_an_attempt_that_may_not_have_reached_the_disk(tmp_path, found):
    begun = tmp_path / "begun.json"
    begun.write_text(json.dumps(found))
    with pytest.raises(SkipError, match="may not have reached the disk(.|\n)*pgbridge refresh shop --resync TABLE"):
        _check_begun(begun, "shop")
    begun.write_text(json.dumps({"boot_id": boot_id(), "flushing": False}))
    _check_begun(begun, "shop")


def test_nothing_published(shop, tmp_path):
    folder = tmp_path / "skipped" / "0-28" / "shop"
    folder.mkdir(parents=True)
    replayable.write(of(None), folder, SKIPPER)
    assert list(replay(shop, SHOP, "0/28", started=no_spark)) == [
        "the transaction that finished at 0/28 has no changes that are published"
    ]
