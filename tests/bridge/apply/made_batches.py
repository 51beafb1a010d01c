"""Batches of a subscription whose origin is at 0/10, its applier, and faults."""

from __future__ import annotations

from contextlib import contextmanager

from bridge.apply import applier as module
from bridge.apply.applier import Applier
from bridge.apply.undo import BatchUndo
from bridge.batch.batch import Batch
from bridge.runtime import faults, log
from bridge.spark import session
from protocol.lsn import Lsn


def applier(spark, catalog, **options):
    return Applier(session.fork(spark), catalog, subscription="sub", origin_name="pgbridge_sub", **options)


def settling(spark, catalog, messages_path=None):
    """What a later process has for the batch that an earlier one has left."""
    return BatchUndo(
        session.fork(spark),
        catalog,
        subscription="sub",
        messages_path=messages_path,
        local=module.LocalTables(),  # type: ignore[attr-defined]  # perhaps that of tables in memory
        log=log.get("sub"),
    )


def batch(*tables):
    return Batch(Lsn(0x10), Lsn(0x20), Lsn(0x18), 7, 1, 1, list(tables))


class Cut(BaseException):
    """Stands for a crash: no error handler may catch it."""


@contextmanager
def failing(error, *points):
    """Within it, the first time that one of the points is reached raises the error."""
    left = set(points)

    def act(reached):
        if reached in left:
            left.remove(reached)
            raise error

    faults.install(act)
    try:
        yield
    finally:
        faults.install(lambda _: None)
    assert not left
