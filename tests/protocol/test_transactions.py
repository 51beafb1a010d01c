"""What a transaction knows of itself: its rows, its weight in memory, and what was moved out of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from protocol.lsn import Lsn
from protocol.messages import LogicalMessage
from protocol.transactions import ROW_OVERHEAD_BYTES, Ending, Transaction


@dataclass
class Elsewhere:
    """Where changes were moved."""

    rows: int


def test_weigh_counts_each_row_once():
    """However often it is asked, and whatever came in between."""
    transaction = Transaction(725)
    transaction.rows += [b"abc", memoryview(b"de")]
    assert transaction.weigh() == 5 + 2 * ROW_OVERHEAD_BYTES
    assert transaction.weigh() == 5 + 2 * ROW_OVERHEAD_BYTES
    transaction.rows.append(b"f")
    assert transaction.weigh() == 6 + 3 * ROW_OVERHEAD_BYTES
    assert transaction.rows_bytes == 6


def test_move_leaves_the_list_that_the_receive_loop_appends_to():
    transaction = Transaction(725)
    append = transaction.rows.append
    message = LogicalMessage(transactional=True, lsn=Lsn(1), prefix="", content=b"")
    append(b"abc")
    transaction.events.append((1, message))
    transaction.weigh()
    transaction.move(Elsewhere(1))
    assert (transaction.rows, transaction.events, transaction.weigh()) == ([], [], 0)
    append(b"defg")
    assert transaction.weigh() == 4 + ROW_OVERHEAD_BYTES
    assert transaction.n_rows == 2


@pytest.mark.parametrize("ending", Ending)
def test_only_what_committed_has_rows_to_apply(ending):
    """A batch is not filled by transactions that bring nothing."""
    transaction = Transaction(725, rows=[b"a"], moved=Elsewhere(4), ending=ending)
    assert transaction.n_rows == (5 if ending is Ending.COMMIT else 0)
