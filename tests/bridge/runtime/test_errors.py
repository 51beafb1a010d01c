"""An error says what, where and what to do; and an operator can paste what it says into the next command."""

from __future__ import annotations

import re
import weakref

import pytest

from pgbridge.bridge.runtime import errors
from pgbridge.bridge.runtime.errors import (
    ApplyContext,
    ApplyError,
    BridgeError,
    PublisherError,
    SlotAdvanced,
    counts_in_copy,
    is_own,
    let_go,
    may_retry,
)
from pgbridge.protocol.lsn import Lsn
from tests.bridge.every_error import CONTEXT, POLICY, name

PROCESSING = 'processing remote data for replication origin "pgbridge_shop"'
TARGET = ' for replication target relation "public.t1"'


def test_one_family():
    """`except BridgeError` at the command line catches all of them."""
    assert BridgeError in CLASSES
    assert all(issubclass(item, BridgeError) for item in CLASSES)


CLASSES = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, Exception)]


@pytest.mark.parametrize(("error", "own", "retry"), POLICY, ids=name)
def test_whose_it_is_and_whether_it_is_retried_without_a_hand(error, own, retry):
    """The defaults are the careful ones: it is the subscription's own, and needs an operator."""
    assert (is_own(error), may_retry(error)) == (own, retry)


def test_what_is_counted_of_a_copy():
    """The subscription's own errors, and a server that refuses; not one that is away, and not one of its slot."""
    counted = [BridgeError("x"), PublisherError("permission denied")]
    assert all(map(counts_in_copy, counted))
    assert not any(map(counts_in_copy, [PublisherError("it is away", retry=True), SlotAdvanced("x")]))


def test_every_error_has_a_policy_and_a_place_in_the_tree():
    """The module's docstring has them all, each below what it derives from."""
    assert {type(error) for error, _, _ in POLICY} == {*CLASSES, RuntimeError}
    lines = [line for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    tree = {line.split()[0]: len(line) - len(line.lstrip()) for line in lines}
    assert tree == {item.__name__: 2 * len(item.__mro__) - 4 for item in CLASSES}


def test_retry_of_one_error_is_its_own():
    """An attribute of the class, set by one of them, would change all others."""
    PublisherError("x", retry=True)
    assert not PublisherError("y").retry
    assert not PublisherError.retry


def test_hint_comes_after_the_message():
    """As psql shows it."""
    error = PublisherError("publication does not exist", hint="run: CREATE PUBLICATION p;")
    assert str(error) == "publication does not exist\nHINT:  run: CREATE PUBLICATION p;"
    assert error.hint == "run: CREATE PUBLICATION p;"
    assert str(PublisherError("no hint")) == "no hint"


@pytest.mark.parametrize(
    ("context", "text"),
    [
        (
            CONTEXT,
            f'{PROCESSING} during message type "INSERT"{TARGET} in transaction 725, finished at 0/14C0378',
        ),
        (
            ApplyContext("pgbridge_shop", Lsn.parse("16/B374D848"), 7, "public.t1", "UPDATE", "a b"),
            f'{PROCESSING} during message type "UPDATE"{TARGET} column "a b" in transaction 7, finished at 16/B374D848',
        ),
        (
            ApplyContext("pgbridge_shop", Lsn(0x10)),
            f"{PROCESSING} finished at 0/10",
        ),
        (
            ApplyContext("pgbridge_shop", Lsn(0x10), relation="public.t1"),
            f"{PROCESSING}{TARGET} finished at 0/10",
        ),
    ],
    ids=["design", "column", "batch", "batch-and-table"],
)
def test_context_reads_as_postgresql(context, text):
    """The texts of `apply_error_callback`; without a transaction, a batch of several is meant."""
    assert str(context) == text


def test_finish_lsn_can_be_read_from_the_text():
    """As PostgreSQL's own t/029_on_error.pl takes it from its log, to feed it to SKIP."""
    error = ApplyError("duplicate key", CONTEXT, hint="pgbridge skip shop --lsn 0/14C0378")
    found = re.search(
        r'processing remote data for replication origin "pgbridge_\w+" during message type "INSERT"'
        r' for replication target relation "public.t1" in transaction \d+, finished at ([\dA-F]+/[\dA-F]+)',
        str(error),
    )
    assert found is not None
    assert Lsn.parse(found[1]) == error.context.finish_lsn


def test_apply_error_has_message_context_and_hint():
    error = ApplyError("duplicate key", CONTEXT, hint="look there")
    assert str(error).splitlines() == ["duplicate key", f"CONTEXT:  {CONTEXT}", "HINT:  look there"]
    assert error.context is CONTEXT


def test_what_an_errors_frames_held_is_let_go():
    """Also those of its causes, and of frames that hold the error itself: a batch of rows of any size."""

    class Rows:
        """What a batch has."""

    there: list[weakref.ref[Rows]] = []

    def fail() -> None:
        rows = Rows()
        there.append(weakref.ref(rows))
        try:
            int("x")
        except ValueError as error:
            cause = error
            raise KeyError from cause

    with pytest.raises(KeyError) as caught:
        fail()
    kept = caught.value
    assert there[0]() is not None
    let_go(kept)
    assert there[0]() is None
