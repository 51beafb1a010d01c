"""An error at a row of a run names its transaction, of several the right one."""

from __future__ import annotations

import numpy as np
import pytest

from bridge.apply.batch.block_decoder import Decoding
from bridge.apply.batch.decode_block import decode_blocks
from bridge.errors import ApplyError
from protocol.lsn import Lsn
from tests.bridge.apply.batch.test_decode_block import transaction


def test_errors_have_the_rows_transaction():
    (run,) = decode_blocks([transaction(1, 2), transaction(2, 3)])
    work = Decoding(run, {}, "pgbridge_x")
    error = work.failed("no", 2, relation="public.t", column="id", hint="why")
    assert (error.context.xid, error.context.finish_lsn, error.context.command) == (2, Lsn(200), "INSERT")
    assert (error.context.relation, error.context.column, error.hint) == ("public.t", "id", "why")
    assert work.failed("no", 1).context.xid == 1


def test_rows_since_an_lsn():
    (run,) = decode_blocks([transaction(1, 2), transaction(2, 3)])
    work = Decoding(run, {}, "pgbridge_x")
    assert work.since(np.array([0, 2, 4]), Lsn(200)).tolist() == [2, 4]


def test_what_is_no_row_message():
    broken = transaction(3, 1)
    broken.rows.extend(broken.rows.part(0, 1).without_prefix(10))
    (run,) = decode_blocks([broken])
    with pytest.raises(ApplyError, match="row") as caught:
        Decoding(run, {}, "pgbridge_x")
    assert caught.value.context.finish_lsn == Lsn(300)
