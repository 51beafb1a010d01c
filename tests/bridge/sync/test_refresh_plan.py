"""What requests come to, taken together."""

from __future__ import annotations

from bridge.sync.refresh_plan import Plan, plan
from bridge.track.refresh import RefreshRow

A, B, C = (("public", name) for name in "abc")
WHOLE, UNCOPIED = RefreshRow(1, None, copy_data=True), RefreshRow(2, None, copy_data=False)


def resync(*tables):
    return [RefreshRow(number, table, copy_data=True) for number, table in enumerate(tables, 3)]


def test_added_and_removed():
    then = frozenset({A, B})
    assert plan([WHOLE], {A, B}, {A, C}) == Plan(copied=(B,), removed=(C,), subscribed=then)
    assert plan([UNCOPIED], {A, B}, {A, C}) == Plan(uncopied=(B,), removed=(C,), subscribed=then)


def test_added_without_its_rows_and_copied_afresh():
    """Whichever was asked for first."""
    assert plan([UNCOPIED, *resync(A)], {A, B}, set()) == plan([*resync(A), UNCOPIED], {A, B}, set())
    assert plan([UNCOPIED, *resync(A)], {A, B}, set()) == Plan(copied=(A,), uncopied=(B,), subscribed=frozenset({A, B}))


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


def test_what_cannot_be_copied_afresh():
    """It is not published any more, or not subscribed; one that is added or removed at the same time is just that."""
    assert plan(resync(B, C), {A, B}, {A, C}) == Plan(unknown=(B, C), subscribed=frozenset({A, C}))
    all_three = plan([WHOLE, *resync(A, B, C)], {A, B}, {A, C})
    assert all_three == Plan(copied=(B,), removed=(C,), resynced=(A,), subscribed=frozenset({A, B}))
    assert plan(resync(B), {A, B}, {A, C}).empty
