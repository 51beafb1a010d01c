"""Batches of a subscription whose origin is at 0/10, its applier, and faults."""

from __future__ import annotations

from contextlib import contextmanager

from pgbridge.bridge.apply import applier as module
from pgbridge.bridge.apply.applier import Applier
from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.apply.undo import BatchUndo
from pgbridge.bridge.batch.batch import Batch
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.runtime import faults, log
from pgbridge.bridge.spark import session
from pgbridge.protocol.lsn import Lsn


def context(spark, catalog, name="sub", **options):
    """What the parts of a subscription's worker share."""
    subscription = Subscription(name=name, connection="", publications=("pub",), warehouse="/lake", **options)
    return Context(subscription, spark, catalog, log.get(name))


def applier(spark, catalog, *, conflict="error", unrepresentable="error", **options):
    shared = context(session.fork(spark), catalog, conflict=conflict, unrepresentable=unrepresentable)
    return Applier(shared, **options)


def settling(spark, catalog, messages_path=None):
    """What a later process has for the batch that an earlier one has left."""
    local = module.LocalTables()  # type: ignore[attr-defined]  # perhaps that of tables in memory
    return BatchUndo(context(session.fork(spark), catalog), messages_path, local)


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
