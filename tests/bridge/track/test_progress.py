"""`durable_lsn` is confirmed to the server, which then drops the WAL before it: all of it must be durable.

A model server sends transactions and keepalives, a model applier makes batches durable in its own time, and a
model's crash loses everything that was not recorded, in every order that Hypothesis thinks of.

Skip LSNs are accepted and refused as in PostgreSQL, in its words.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pgbridge.bridge.runtime.errors import BridgeError
from pgbridge.bridge.track.progress import Progress, parse_skip_lsn
from pgbridge.protocol.lsn import Lsn

START = Lsn(0x1000)


def progress_at(lsn: int = START) -> Progress:
    return Progress(Lsn(lsn))


def test_begins_where_the_origin_is():
    progress = progress_at()
    assert (progress.received_lsn, progress.durable_lsn, progress.handed_over_lsn) == (START, START, START)
    assert progress.passed_lsn == START
    assert progress.quiet_lsn() is None
    assert not progress.pending


def test_transaction_is_pending_until_durable():
    progress = progress_at()
    progress.transaction(Lsn(0x1100))
    assert progress.pending
    assert (progress.received_lsn, progress.passed_lsn, progress.durable_lsn) == (0x1100, 0x1100, START)
    progress.durable(Lsn(0x10FF))
    assert progress.pending
    progress.durable(Lsn(0x1100))
    assert not progress.pending


def test_received_says_nothing_of_durable():
    progress = progress_at()
    progress.received(Lsn(0x5000))
    assert progress.received_lsn == 0x5000
    assert (progress.durable_lsn, progress.passed_lsn, progress.quiet_lsn()) == (START, START, None)


def test_positions_never_go_back():
    """Late news (a keepalive that was overtaken, a batch reported twice) changes nothing."""
    progress = progress_at()
    progress.transaction(Lsn(0x1100))
    progress.durable(Lsn(0x1100))
    progress.received(Lsn(0x1050))
    progress.transaction(Lsn(0x1050))
    progress.durable(Lsn(0x1050))
    assert (progress.received_lsn, progress.handed_over_lsn, progress.durable_lsn) == (0x1100, 0x1100, 0x1100)


def test_quiet_on_an_idle_server():
    progress = progress_at()
    progress.keepalive(Lsn(0x3000), in_transaction=False)
    assert progress.quiet_lsn() == 0x3000
    assert progress.passed_lsn == 0x3000
    assert progress.durable_lsn == START  # nothing is confirmed before the caller has recorded it
    progress.durable(Lsn(0x3000))
    assert progress.quiet_lsn() is None


def test_no_quiet_position_inside_a_transaction():
    """The server's position has then passed the commit of a transaction that is still on its way."""
    progress = progress_at()
    progress.keepalive(Lsn(0x3000), in_transaction=True)
    assert progress.received_lsn == 0x3000
    assert progress.quiet_lsn() is None
    assert progress.passed_lsn == START


def test_no_quiet_position_while_an_earlier_transaction_is_pending():
    progress = progress_at()
    progress.transaction(Lsn(0x1100))
    progress.keepalive(Lsn(0x3000), in_transaction=False)
    assert progress.quiet_lsn() is None
    progress.durable(Lsn(0x1100))
    assert progress.quiet_lsn() == 0x3000


def test_quiet_position_before_a_later_transaction():
    """A transaction after a keepalive lies beyond its position, and does not delay it."""
    progress = progress_at()
    progress.keepalive(Lsn(0x3000), in_transaction=False)
    progress.transaction(Lsn(0x3100))
    assert progress.quiet_lsn() == 0x3000
    assert progress.passed_lsn == 0x3100


def test_streamed_transaction_in_progress_holds_nothing_back():
    """It commits after its changes: everything that the server sent before one of them may be confirmed."""
    progress = progress_at()
    progress.transaction(Lsn(0x1100))
    progress.streamed(Lsn(0x1200))
    assert (progress.received_lsn, progress.passed_lsn) == (0x1200, 0x1200)
    assert progress.quiet_lsn() is None  # the transaction before it is not durable yet
    progress.durable(Lsn(0x1100))
    assert progress.quiet_lsn() == 0x1200
    progress.streamed(Lsn(0x1150))  # of another transaction, that is further behind
    assert progress.quiet_lsn() == 0x1200


@pytest.mark.parametrize("behind", [0x0FFF, 0x1000])
def test_quiet_position_is_ahead(behind):
    """A keepalive at or before the durable position changes nothing."""
    progress = progress_at()
    progress.keepalive(Lsn(behind), in_transaction=False)
    assert progress.quiet_lsn() is None
    assert progress.durable_lsn == START


@dataclass
class Sent:
    """A transaction in the model server's WAL."""

    end_lsn: int
    handed_over: bool = False


class StreamMachine(RuleBasedStateMachine):
    """One subscription over any number of connections.

    `wal` has every published transaction that ever committed on the server. `recorded` is the subscriber's
    catalog: what a crash leaves. `applied` are the ends of the transactions that are durable in the target.
    """

    def __init__(self) -> None:
        super().__init__()
        self.position = int(START)
        self.wal: list[Sent] = []
        self.applied: set[int] = set()
        self.recorded = START
        self.confirmed = START
        self.connect()

    def connect(self) -> None:
        """A new stream from the recorded position: the server sends the transactions that end after it."""
        self.progress = Progress(self.recorded)
        for transaction in self.wal:
            transaction.handed_over = transaction.end_lsn <= self.recorded
        self.in_transaction = False
        self.quiet: Lsn | None = None
        self.last_keepalive: int | None = None
        self.seen = (self.progress.received_lsn, self.progress.durable_lsn, self.progress.handed_over_lsn)

    @property
    def unsent(self) -> list[Sent]:
        return [transaction for transaction in self.wal if not transaction.handed_over]

    @property
    def pending(self) -> list[Sent]:
        return [t for t in self.wal if t.handed_over and t.end_lsn > self.progress.durable_lsn]

    # --- the server -----------------------------------------------------------------------------------------------

    @rule(size=st.integers(1, 300))
    def other_wal(self, size):
        """WAL with nothing published."""
        self.position += size

    @rule(size=st.integers(1, 300))
    def commit(self, size):
        self.position += size
        self.wal.append(Sent(self.position))

    @precondition(lambda self: self.unsent and not self.in_transaction)
    @rule()
    def begin_sending(self):
        self.in_transaction = True

    @precondition(lambda self: self.in_transaction)
    @rule(share=st.floats(0, 1))
    def part_of_a_transaction(self, share):
        end_lsn = self.unsent[0].end_lsn
        self.progress.received(Lsn(int(end_lsn * share)))

    @precondition(lambda self: self.in_transaction)
    @rule()
    def end_sending(self):
        transaction = self.unsent[0]
        self.progress.transaction(Lsn(transaction.end_lsn))
        transaction.handed_over = True
        self.in_transaction = False

    @precondition(lambda self: not self.in_transaction)
    @rule(back=st.integers(0, 200))
    def change_of_a_streamed_transaction(self, back):
        """One in progress, which commits later than anything here: its changes are from before where the server is."""
        at = max(self.quiet_position() - back, int(START))
        self.progress.streamed(Lsn(at))
        self.last_keepalive = max(at, self.last_keepalive or 0)

    @rule()
    def keepalive(self):
        """It carries how far the server has read: up to the end of what it is sending, or all it has."""
        read_to = self.unsent[0].end_lsn if self.in_transaction else self.quiet_position()
        self.progress.keepalive(Lsn(read_to), in_transaction=self.in_transaction)
        if not self.in_transaction:
            self.last_keepalive = max(read_to, self.last_keepalive or 0)

    def quiet_position(self) -> int:
        """Just before the next transaction that is to be sent."""
        return self.unsent[0].end_lsn - 1 if self.unsent else self.position

    # --- the applier ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.pending)
    @rule(count=st.integers(1, 4))
    def apply_and_record(self, count):
        """A batch of the oldest transactions handed over. It is durable and recorded before progress is told."""
        batch = self.pending[:count]
        self.applied.update(transaction.end_lsn for transaction in batch)
        self.recorded = max(self.recorded, Lsn(batch[-1].end_lsn))
        self.progress.durable(Lsn(batch[-1].end_lsn))

    @precondition(lambda self: self.pending)
    @rule(count=st.integers(1, 4))
    def crash_before_recording(self, count):
        """The batch is in the target, nobody knows: it is sent and applied again, which the target leaves out."""
        self.applied.update(transaction.end_lsn for transaction in self.pending[:count])
        self.crash()

    @rule()
    def look_for_quiet(self):
        self.quiet = self.progress.quiet_lsn()

    @precondition(lambda self: self.quiet is not None)
    @rule(crash=st.booleans())
    def record_quiet(self, crash):
        """The position that was seen is recorded, and then reported; anything may have come in between."""
        assert self.quiet is not None
        self.recorded = max(self.recorded, self.quiet)
        if crash:
            self.crash()
        else:
            self.progress.durable(self.quiet)
            self.quiet = None

    # --- both -----------------------------------------------------------------------------------------------------

    @rule()
    def confirm(self):
        """A status update: the server forgets what ends at or before it."""
        self.confirmed = max(self.confirmed, self.progress.durable_lsn)

    @rule()
    def crash(self):
        self.connect()

    # --- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def durable_covers_only_what_is_applied(self):
        covered = [t.end_lsn for t in self.wal if t.end_lsn <= self.progress.durable_lsn]
        assert set(covered) <= self.applied

    @invariant()
    def server_still_has_what_is_not_applied(self):
        assert all(t.end_lsn > self.confirmed for t in self.wal if t.end_lsn not in self.applied)

    @invariant()
    def restart_never_finds_the_slot_ahead(self):
        """`check_slot` would call that a moved slot."""
        assert self.confirmed <= self.recorded
        assert self.progress.durable_lsn <= self.recorded

    @invariant()
    def pending_is_what_was_handed_over(self):
        assert self.progress.pending == bool(self.pending)

    @invariant()
    def passed_covers_only_what_was_handed_over(self):
        assert all(t.handed_over for t in self.wal if t.end_lsn <= self.progress.passed_lsn)

    @invariant()
    def quiet_is_ahead_and_covers_only_what_is_durable(self):
        quiet = self.progress.quiet_lsn()
        if quiet is not None:
            assert quiet > self.progress.durable_lsn
            assert all(t.end_lsn in self.applied for t in self.wal if t.end_lsn <= quiet)

    @invariant()
    def quiet_is_found(self):
        """Or an idle publication's slot would hold the server's WAL for ever."""
        if self.last_keepalive is not None and not self.progress.pending:
            assert max(self.progress.durable_lsn, self.progress.quiet_lsn() or 0) >= self.last_keepalive

    @invariant()
    def positions_only_grow(self):
        now = (self.progress.received_lsn, self.progress.durable_lsn, self.progress.handed_over_lsn)
        assert all(new >= old for new, old in zip(now, self.seen, strict=True))
        assert self.progress.received_lsn >= self.progress.handed_over_lsn
        self.seen = now


TestStream = StreamMachine.TestCase
TestStream.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("remote", [None, 0, 0x14C0377, 0x14C0378])
def test_an_lsn_not_behind_the_origin(remote):
    """A commit record may begin where the one before it ends, which is the origin's LSN."""
    assert parse_skip_lsn(" 0/14C0378 ", None if remote is None else Lsn(remote)) == Lsn.parse("0/14C0378")


@pytest.mark.parametrize("text", ["none", "NONE"])
def test_none_takes_it_back(text):
    assert parse_skip_lsn(text, Lsn(5)) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0/14C0376", r"skip WAL location \(LSN 0/14C0376\) must be greater than origin LSN 0/14C0378"),
        ("0/0", r"invalid WAL location \(LSN\): 0/0"),
        ("14C0378", r"invalid WAL location \(LSN\): 14C0378"),
        ("", r"invalid WAL location \(LSN\): "),
    ],
)
def test_refused(text, message):
    with pytest.raises(BridgeError, match=message):
        parse_skip_lsn(text, Lsn.parse("0/14C0378"))
