"""What `pgbridge refresh` says and asks for, where definitions are re-applied; the command's tests have the rest."""

from __future__ import annotations

from contextlib import closing

import pytest

from bridge.catalog import refresh
from bridge.catalog.catalog import Catalog, catalog_path
from bridge.catalog.catalog_rows import RelRow, sync_name
from bridge.commands.refresh import ask
from bridge.config.config import Subscription
from bridge.runtime.errors import ConfigError, PublicationError
from protocol.lsn import Lsn


@pytest.fixture
def catalog(tmp_path):
    """The subscription `shop` has a table; another one is being brought in."""
    with closing(Catalog(catalog_path(tmp_path / "state"))) as opened:
        opened.register("shop", enabled=True)
        opened.create_origin("shop", Lsn(1), "abc", [RelRow("public", "a", "r", Lsn(1), "/lake/public/a")])
        coming = RelRow("public", "b", "d", Lsn(0), "/lake/public/b")
        refresh.take_up(opened, "shop", 0, bring_in=[coming], follow=(), remove=())
        yield opened


@pytest.fixture
def subscription(publisher, tmp_path):
    """Makes subscriptions to a broad publication, with definitions."""
    publisher.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int); CREATE TABLE c (id int)")
    publisher.execute("CREATE PUBLICATION broad FOR ALL TABLES")

    def make(text):
        file = tmp_path / "definitions.sql"
        file.write_text(text)
        return Subscription(
            name="shop",
            connection=publisher.conninfo,
            publications=("broad",),
            warehouse="lake",
            publication_definitions=str(file),
        )

    return make


def test_a_copy_that_failed_is_tried_again(catalog, subscription):
    """At once, though the subscription has the published tables: the worker that waits ends for a request."""
    chosen = subscription("CREATE PUBLICATION p FOR TABLE a, b")
    nothing = ['subscription "shop": nothing to refresh, its tables are the published ones']
    assert ask(chosen, catalog, resync=[], copy_data=None, when="now") == nothing
    catalog.record_error(sync_name("shop"), "permission denied for table b", counter=None)
    lines = ['subscription "shop" is refreshed (now)', "  public.b: its copy is tried again"]
    assert ask(chosen, catalog, resync=[], copy_data=None, when="now") == lines
    assert [row.table for row in refresh.asked(catalog, "shop")] == [None]


def test_the_definitions_say_what_is_published(catalog, subscription):
    """Tables that are being brought in are the subscription's; the next request keeps that one is not published."""
    chosen = subscription("CREATE PUBLICATION p FOR TABLE b, c WITH (publish = 'insert')")
    assert ask(chosen, catalog, resync=[], copy_data=None, when="now") == [
        'subscription "shop" is refreshed (now)',
        "  public.c: added: copied, then follows the stream",
        "  public.a: removed: stops following the stream; its Delta table stays",
    ]
    ask(chosen, catalog, resync=["b"], copy_data=None, when="now")
    assert [(row.table, row.unpublished) for row in refresh.asked(catalog, "shop")] == [
        (None, False),
        (("public", "a"), True),
        (("public", "b"), False),
    ]


def test_what_was_asked_for_and_not_taken_up_yet_counts(catalog, subscription):
    """A table that will be the subscription's can be copied afresh, one that will be removed cannot."""
    chosen = subscription("CREATE PUBLICATION p FOR TABLE b, c")
    ask(chosen, catalog, resync=[], copy_data=False, when="now")
    assert ask(chosen, catalog, resync=["c"], copy_data=None, when="now") == [
        'subscription "shop" is refreshed (now)',
        "  public.c: added: the copy replaces what its Delta table has, then it follows the stream",
        "  public.a: removed: stops following the stream; its Delta table stays",
    ]
    with pytest.raises(ConfigError, match='table "a" is not part of subscription "shop"'):
        ask(chosen, catalog, resync=["a"], copy_data=None, when="now")


def test_definitions_that_cannot_be_re_applied(catalog, subscription):
    with pytest.raises(PublicationError):
        ask(subscription("CREATE PUBLICATION p FOR TABLE nowhere"), catalog, resync=[], copy_data=None, when="now")
    assert refresh.asked(catalog, "shop") == []


def test_what_cannot_be_held_is_left_out(catalog, subscription, publisher):
    publisher.execute("CREATE TABLE bare ()")
    assert ask(subscription("CREATE PUBLICATION p FOR ALL TABLES"), catalog, resync=[], copy_data=None, when="now") == [
        'subscription "shop" is refreshed (now)',
        "  public.c: added: copied, then follows the stream",
        '  public.bare: left out: table "public.bare" has no published column, and a Delta table needs one',
    ]
