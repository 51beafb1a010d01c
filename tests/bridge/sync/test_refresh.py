"""What was asked for becomes the tables' states; a table that cannot be taken is left out, and keeps back no other."""

from __future__ import annotations

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog_rows import RelRow, sync_name
from pgbridge.bridge.catalog.refresh import RefreshRow
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.runtime import log
from pgbridge.bridge.sync.refresh import Plan, Refresh, plan
from pgbridge.bridge.sync.tablesync import TableSync
from pgbridge.protocol.lsn import Lsn

A, B, C = (("public", name) for name in "abc")
WHOLE, UNCOPIED = RefreshRow(1, None, copy_data=True), RefreshRow(2, None, copy_data=False)


def resync(*tables):
    return [RefreshRow(number, table, copy_data=True) for number, table in enumerate(tables, 3)]


def test_a_plan_of_added_and_removed_tables():
    then = frozenset({A, B})
    assert plan([WHOLE], {A, B}, {A, C}) == Plan(copied=(B,), removed=(C,), subscribed=then)
    assert plan([UNCOPIED], {A, B}, {A, C}) == Plan(uncopied=(B,), removed=(C,), subscribed=then)


def test_added_without_its_rows_and_copied_afresh():
    """Whichever was asked for first."""
    assert plan([UNCOPIED, *resync(A)], {A, B}, set()) == plan([*resync(A), UNCOPIED], {A, B}, set())
    then = Plan(copied=(A,), uncopied=(B,), subscribed=frozenset({A, B}), replacing=(A,))
    assert plan([UNCOPIED, *resync(A)], {A, B}, set()) == then


def test_the_last_word_on_copying_counts():
    assert plan([WHOLE, UNCOPIED], {B, A}, set()).uncopied == (A, B)
    assert plan([UNCOPIED, WHOLE], {B, A}, set()).copied == (A, B)


def test_nothing_changes_but_what_is_copied_afresh():
    """Without a request for the publications as a whole nothing is added or removed."""
    assert plan(resync(A, A), {A, B}, {A, C}) == Plan(resynced=(A,), subscribed=frozenset({A, C}))
    assert plan([], {A}, {B}).empty


def test_removed_and_published_again_before_it_is_taken_up():
    """The stream lacks the changes in between, so the table is copied afresh; without a copy it goes on as it is."""
    gone = RefreshRow(1, A, copy_data=True, unpublished=True)
    both = frozenset({A, B})
    assert plan([WHOLE, gone], {B}, {A, B}) == Plan(removed=(A,), subscribed=frozenset({B}))
    assert plan([WHOLE, gone], {A, B}, {A, B}) == Plan(resynced=(A,), subscribed=both)
    assert plan([WHOLE, gone, WHOLE], {A, B}, {A, B}) == Plan(resynced=(A,), subscribed=both)
    assert plan([WHOLE, gone, UNCOPIED], {A, B}, {A, B}) == Plan(subscribed=both)
    assert plan([WHOLE, gone], {A, B}, {B}) == Plan(copied=(A,), subscribed=both)


def test_a_changelog_is_only_replaced_by_a_request_that_names_it():
    """Published again, it goes on with a gap, which the plan tells."""
    gone, both = RefreshRow(1, A, copy_data=True, unpublished=True), frozenset({A, B})
    assert plan([WHOLE, gone], {A, B}, {A, B}, {A}) == Plan(gaps=(A,), subscribed=both)
    assert plan([WHOLE, gone], {A, B}, {A, B}, {B}) == Plan(resynced=(A,), subscribed=both)
    assert plan([WHOLE, gone, *resync(A)], {A, B}, {A, B}, {A}) == Plan(resynced=(A,), subscribed=both)
    assert plan([WHOLE, gone], {B}, {A, B}, {A}) == Plan(removed=(A,), subscribed=frozenset({B}))


def joins(*tables, copy_data=True):
    return [RefreshRow(number, table, copy_data, joins=True) for number, table in enumerate(tables, 5)]


def test_a_table_that_joins_is_added_and_nothing_else():
    """It copies over nothing that is there; one that is followed by now, or has left again, is let be."""
    then = frozenset({A, B, C})
    assert plan(joins(B), {A, B}, {A, C}) == Plan(copied=(B,), subscribed=then)
    assert plan(joins(B, copy_data=False), {A, B}, {A, C}) == Plan(uncopied=(B,), subscribed=then)
    assert plan(joins(A, C), {A, B}, {A, C}).empty
    assert plan([UNCOPIED, *joins(B)], {A, B}, {A}) == Plan(copied=(B,), subscribed=frozenset({A, B}))
    assert plan([*joins(B), *resync(B)], {A, B}, {A}).replacing == (B,)
    assert plan(joins(B), {A, B}, {A}, formerly={B}).replacing == (B,)


def test_what_cannot_be_copied_afresh():
    """It is not published any more. One that is named and not subscribed is added; one that is removed is just that."""
    added = {"copied": (B,), "replacing": (B,)}
    assert plan(resync(B, C), {A, B}, {A, C}) == Plan(**added, unknown=(C,), subscribed=frozenset({A, B, C}))
    all_three = plan([WHOLE, *resync(A, B, C)], {A, B}, {A, C})
    assert all_three == Plan(**added, removed=(C,), resynced=(A,), subscribed=frozenset({A, B}))
    assert plan(resync(C), {A, B}, {A, C}).empty


def test_a_table_that_was_removed_before_is_copied_over_its_own_rows():
    """A changelog keeps them, unless the request names the table."""
    assert plan([WHOLE], {A, B}, {B}, formerly={A}).replacing == (A,)
    assert plan([UNCOPIED], {A, B}, {B}, formerly={A}).replacing == ()
    assert plan([WHOLE], {A, B}, {B}, keeping={A}, formerly={A}).replacing == ()
    assert plan([WHOLE, *resync(A)], {A, B}, {B}, keeping={A}, formerly={A}).replacing == (A,)


@pytest.fixture
def begun(publisher, memory_pipeline):
    """A bridge that has the tables `here` and `gone` of the publication, which now has `here`, `new` and `for.eign`.

    At the place of the last one there is a Delta table with somebody's row.
    """
    publisher.execute("CREATE TABLE here (id int PRIMARY KEY, t text); CREATE TABLE new (id int PRIMARY KEY, t text)")
    publisher.execute('CREATE TABLE "for.eign" (id int PRIMARY KEY, t text); INSERT INTO "for.eign" VALUES (1, \'x\')')
    publisher.execute('CREATE PUBLICATION pub FOR TABLE here, new, "for.eign"')

    def make(**options):
        bridge = memory_pipeline(**options)
        path = f"{bridge.subscription.warehouse}/public"
        rels = [RelRow("public", name, "r", Lsn(1), f"{path}/{name}") for name in ("here", "gone")]
        bridge.catalog.create_origin(bridge.subscription.name, Lsn(1), "abc", rels)
        bridge.spark.put_foreign(f"{path}/for.eign", {"id": pa.int32(), "t": pa.string()}, (9, "somebody's"))
        return bridge

    return make


def taken(bridge, *tables, copy_data=True):
    """Ask, and take up; what was logged."""
    name = bridge.subscription.name
    refresh.ask(bridge.catalog, name, tables or [None], copy_data=copy_data)
    sync = TableSync(Context(bridge.subscription, bridge.spark, bridge.catalog, log.get()))
    with capture_logs() as events, Publisher(bridge.subscription.connection, application_name="test") as publisher:
        published = {(table.namespace, table.name): table for table in publisher.tables(["pub"])}
        Refresh(name, bridge.catalog, sync, log.get()).take_up(
            refresh.asked(bridge.catalog, name), published, publisher
        )
    assert refresh.asked(bridge.catalog, name) == []
    return [event for event in events if event["log_level"] in {"warning", "error"}]


def states(bridge):
    """Of the tables that follow, and of those that are to be brought in."""
    name = bridge.subscription.name
    return [{rel.name: rel.state for rel in bridge.catalog.rels(n)} for n in (name, sync_name(name))]


def test_added_and_removed(begun):
    """Rows that are nobody's business are not replaced."""
    bridge = begun()
    events = taken(bridge)
    assert states(bridge) == [{"here": "r"}, {"new": "i"}]
    assert [event["event"] for event in events] == [
        "table cannot be added",
        "table is removed: it is no longer published; its Delta table stays",
    ]
    assert "has rows already" in events[0]["error"]
    assert "target.adopt = true" in events[0]["error"]
    error = bridge.catalog.last_error(bridge.subscription.name)
    assert error.relation == "public.for.eign"
    assert bridge.catalog.subscription(bridge.subscription.name).sync_error_count == 1


def test_adopted(begun):
    bridge = begun(target__adopt=True)
    taken(bridge)
    assert states(bridge) == [{"here": "r"}, {"new": "i", "for.eign": "i"}]


def test_without_a_copy_they_follow_at_once(begun):
    """With what their Delta tables hold; one that is not there is made."""
    bridge = begun()
    taken(bridge, copy_data=False)
    assert states(bridge) == [{"here": "r", "new": "r", "for.eign": "r"}, {}]
    assert bridge.rows("new") == []
    assert bridge.rows("public.for.eign") == [{"id": 9, "t": "somebody's"}]
    assert bridge.catalog.subscription(sync_name(bridge.subscription.name)) is None


def test_a_table_is_added_over_the_rows_that_its_delta_table_has(begun):
    """By name it replaces anybody's rows; after it was removed only its own."""
    bridge = begun()
    assert taken(bridge, ("public", "for.eign")) == []
    assert states(bridge) == [{"gone": "r", "here": "r"}, {"for.eign": "d"}]
    refresh.take_up(
        bridge.catalog, bridge.subscription.name, 0, bring_in=(), follow=(), remove=[("public", "for.eign")]
    )
    assert states(bridge) == [{"gone": "r", "here": "r"}, {}]
    assert [event["event"] for event in taken(bridge)] == [
        "table is removed: it is no longer published; its Delta table stays"
    ]
    assert states(bridge) == [{"here": "r"}, {"new": "i", "for.eign": "d"}]


def test_copied_afresh(begun):
    """It leaves the stream until then; also from among those that are being brought in."""
    bridge = begun()
    events = taken(bridge, ("public", "here"), ("public", "unknown"))
    assert states(bridge) == [{"gone": "r"}, {"here": "d"}]
    (event,) = events
    assert event["event"] == "table cannot be copied afresh: it is not published"
    assert event["relation"] == "public.unknown"
    here = bridge.catalog.rels(sync_name(bridge.subscription.name))[0]
    bridge.catalog.put_rel(sync_name(bridge.subscription.name), RelRow("public", "here", "f", Lsn(5), here.path))
    taken(bridge, ("public", "here"))
    assert states(bridge) == [{"gone": "r"}, {"here": "d"}]


def test_a_target_that_does_not_fit(begun):
    bridge = begun()
    new = f"{bridge.subscription.warehouse}/public/new"
    bridge.spark.put_foreign(new, {"id": pa.string(), "t": pa.string()})
    events = taken(bridge, copy_data=False)
    assert states(bridge) == [{"here": "r", "for.eign": "r"}, {}]
    assert 'column "id" of target "public.new" is string' in events[0]["error"]
