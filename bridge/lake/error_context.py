"""What an ApplyError says about where it happened, as PostgreSQL's `apply_error_callback` does (worker.c)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from bridge.effects.events import COMMANDS
from bridge.runtime.errors import ApplyContext, ApplyError, BridgeError, OutcomeUnknown, TargetBusy
from bridge.spark.hints import constraint_hint, executor_hint, store_hint, summary
from bridge.spark.outcome import is_lost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bridge.batch.batch import Batch, TableChanges


@contextmanager
def error_context(context: ApplyContext, location: str = "") -> Iterator[None]:
    """Give every error that is raised within this context.

    Args:
        location: The Delta table that is written to; empty for none.

    Raises:
        OutcomeUnknown: The connection to Spark was lost.
        TargetBusy: As it was raised: no transaction is to blame.
        ApplyError: Any other error; an ApplyError keeps the context it has.
    """
    try:
        yield
    except (ApplyError, TargetBusy):
        raise
    except BridgeError as error:
        raise ApplyError(error.message, context, hint=error.hint) from error
    except Exception as error:
        if is_lost(error):
            raise OutcomeUnknown(f"the connection to Spark is lost: {summary(error)}", context) from error
        raise ApplyError(summary(error), context, hint=hint_of(error, location)) from error


def hint_of(error: Exception, location: str) -> str:
    """What an operator can do about an error of Spark's; empty if nothing is known."""
    broken = constraint_hint(error, location)
    return f"{broken}; or skip the transaction" if broken else store_hint(error) or executor_hint(error)


def context_of(origin_name: str, batch: Batch, changes: TableChanges) -> ApplyContext:
    """The context of one table's changes."""
    name = changes.target.qualified_name
    return ApplyContext(origin_name, batch.finish_lsn, batch.xid, name, command_of(batch, changes))


def command_of(batch: Batch, changes: TableChanges) -> str | None:
    """The message type, if the batch is one transaction and all its changes of the table have the same; else None."""
    if batch.xid is None:
        return None
    operations = pc.unique(changes.changes["op"]).to_pylist()
    if changes.truncated and not operations:
        return "TRUNCATE"
    return COMMANDS[operations[0]] if len(operations) == 1 and not changes.truncated else None
