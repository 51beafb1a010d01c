"""Rules that a server's events hardly show; `tests/bridge/sync/test_catalog_look.py` has the events themselves."""

from __future__ import annotations

import json

import pytest

from pgbridge.bridge.publication.catalog_picture import parse
from pgbridge.bridge.publication.differences import EVENTS, KINDS, STATES, Difference, Remedies, compare
from pgbridge.bridge.publication.routing_then import Former

T = ("public", "t")
REMEDIES = Remedies("pgbridge refresh s", lambda table: f"pgbridge refresh s --resync {table}", ("p",))


def catalog(*, name="t", published=True, actions="iudt", relid=1, identity="d", members=("9",), rule=None):
    table = {"name": ["public", name], "identity": identity, "nullable": [], "types": [], "partitions": []}
    return parse(
        json.dumps(
            {
                "publications": {"p": [8, actions, False]},
                "published": [[relid, "p", members, None, rule]] if published else None,
                "tables": {relid: {**table, "ancestors": []}},
                "types": None,
            }
        )
    )


def compared(before, now, standing=()):
    return compare({T: 1}, {T: before.table(1)}, now, now.targets, standing, REMEDIES)


def test_kinds_are_states_or_events():
    assert set(STATES).isdisjoint(EVENTS)
    assert set(KINDS) == {*STATES, *EVENTS}


def test_what_is_followed_first_counts_as_followed():
    """So after an upgrade, when nothing is known of the time of the copy."""
    now = catalog()
    outcome = compare({T: 1}, {}, now, now.targets, (), REMEDIES)
    assert (outcome.differences, outcome.followed) == ((), {T: now.table(1)})


def test_what_holds_from_now_on_is_noted_once():
    before, now = catalog(actions="i"), catalog(identity="f", rule="filter", members=["10"])
    outcome = compared(before, now)
    assert outcome.differences == ()
    assert [note.message.partition(":")[0] for note in outcome.notes] == [
        'the row filter of table "public.t" in publication "p" was altered',
        'the replica identity of table "public.t" was altered',
        'UPDATE and DELETE and TRUNCATE of table "public.t" are published',
    ]
    again = compare({T: 1}, outcome.followed, now, now.targets, (), REMEDIES)
    assert (again.differences, again.notes, again.followed) == ((), (), {})


def test_a_table_that_took_the_name_of_one_that_was_renamed():
    now = parse(
        json.dumps(
            {
                **catalog(relid=2).document,
                "tables": {**catalog(relid=2).document["tables"], **catalog(name="old").document["tables"]},
            }
        )
    )
    (one,) = compared(catalog(), now).differences
    assert one.kind == "replaced"
    assert one.message.startswith('table "public.t" was renamed to "public.old", and another table has its name')


@pytest.mark.parametrize("kind", ["unpublished", "actions"])
def test_an_event_stays_until_the_table_is_copied(kind):
    """And what was not published for a while is an event once it is again."""
    standing = [Difference(kind, T, "", "…", "…"), Difference("type", T, "x", "…", "…")]
    assert {one.kind for one in compared(catalog(), catalog(), standing).differences} == {"gap", "type"}


@pytest.mark.parametrize(
    ("before", "now", "kinds"),
    [
        ({}, {"members": ["10"]}, ["gap"]),
        ({}, {"members": ["10"], "rule": "filter"}, []),
        ({}, {"members": ["9", "10"]}, []),
        ({"members": ["9/700"]}, {"members": ["9/712"]}, ["gap"]),
        ({"members": ["9/700"]}, {"members": ["10/700"]}, ["gap"]),
        ({"members": ["9/700"]}, {"members": ["9/700", "10"]}, []),
        ({"members": None}, {"members": None}, []),
        ({"members": ["8"]}, {"members": ["9/700"]}, []),  # as it was kept before schemas were members
        ({"members": ["7"]}, {"members": ["9/700"]}, ["gap"]),
    ],
)
def test_a_table_that_came_again(before, now, kinds):
    """Nothing that had it in the stream has it there now, and the rules are the same. The publication is 8."""
    outcome = compared(catalog(**before), catalog(**now))
    assert [one.kind for one in outcome.differences] == kinds
    kept = {T: catalog(**before).table(1), **outcome.followed}
    assert kept[T].members == catalog(**now).table(1).members


def test_a_member_has_the_rules_that_it_had():
    """A filter's digest is of another form than the one that was kept; so after an upgrade, before version 17."""
    before, now = catalog(rule="with its locations"), catalog(rule="without")
    outcome = compared(before, now)
    assert (outcome.differences, outcome.notes, outcome.followed) == ((), (), {T: now.table(1)})
    assert len(compared(before, catalog(rule="without", members=["10"])).notes) == 1


def test_other_tables_need_not_be_followed():
    now = catalog()
    assert [one.kind for one in compare({}, {}, now, now.targets, (), REMEDIES).differences] == ["not_followed"]
    assert compare({}, {}, now, now.targets, (), REMEDIES, others=[T]).differences == ()


def test_a_partition_that_is_gone_is_kept_until_the_stream_has_passed():
    """What was written to it before the look comes later, perhaps."""

    def root(xid, lsn=0):
        document = catalog().document
        partitions = [[2, "public.leaf", 1, True, False, False, xid]] if xid else []
        tables = {"1": {**document["tables"]["1"], "partitions": partitions}}
        return parse(json.dumps({**document, "tables": tables}), lsn)

    def after(followed, now, applied_lsn=0):
        compared = compare({T: 1}, followed, now, now.targets, (), REMEDIES, applied_lsn=applied_lsn)
        return {**followed, **compared.followed}

    seen = after({}, root("7"))
    seen = after(seen, root("9", 50))
    assert seen[T].formers == (Former(2, 1, 7, 50),)
    seen = after(seen, root("", 60), applied_lsn=49)
    assert seen[T].formers == (Former(2, 1, 7, 50), Former(2, 1, 9, 60))
    assert after(seen, root("", 70), applied_lsn=50)[T].formers == (Former(2, 1, 9, 60),)
