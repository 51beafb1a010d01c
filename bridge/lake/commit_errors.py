"""The errors of a commit: raised inside it by Spark's `raise_error`, read back, and told with where they happened.

An error's text is a JSON object, which is found wherever Spark puts it in its message. Where it happened is said as
PostgreSQL's `apply_error_callback` does (worker.c).
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.effects.conflicts import SHOWN_CHARACTERS, Conflict
from pgbridge.bridge.effects.events import COMMANDS
from pgbridge.bridge.runtime.errors import ApplyContext, ApplyError, BridgeError, OutcomeUnknown, TargetBusy
from pgbridge.bridge.spark.outcome import constraint_hint, executor_hint, is_lost, store_hint, summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pgbridge.bridge.batch.batch import Batch, TableChanges

_CONFLICT: Final = "pgbridge_conflict"


def error_object(error: BaseException, mark: str) -> dict[str, Any] | None:
    """Read the JSON object whose first key is `mark` from an error; None if the error has none."""
    text = str(error)
    start = text.find(f'{{"{mark}":')
    if start < 0:
        return None
    try:
        json_object, _ = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None
    return dict(json_object)


def conflict_of(error: BaseException) -> Conflict | None:
    """Read the conflict that made a commit fail from the error; None for another error."""
    fields = error_object(error, _CONFLICT)
    try:
        if fields is None:
            return None
        return Conflict(fields["relation"], fields[_CONFLICT], tuple(fields["columns"]), tuple(fields["values"]))
    except (KeyError, TypeError):
        return None


def raise_conflict(name: str, relation: str, columns: Sequence[tuple[str, str, pa.DataType]]) -> str:
    """A Spark SQL expression that raises a conflict; `conflict_of` reads it back.

    Args:
        name: An expression for the conflict's name.
        relation: `namespace.name`.
        columns: The key's columns: name, an expression for the value, and the type.
    """
    names = ", ".join(literal(column) for column, _, _ in columns)
    values = ", ".join(f"left({text_expression(value, arrow)}, {SHOWN_CHARACTERS})" for _, value, arrow in columns)
    return (
        f"raise_error(to_json(named_struct('{_CONFLICT}', {name}, 'relation', {literal(relation)}, "
        f"'columns', array({names}), 'values', array({values}))))"
    )


def literal(text: str) -> str:
    """A Spark SQL string literal; escapes a dollar too, because Spark would substitute a variable."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"


def text_expression(value: str, arrow: pa.DataType) -> str:
    """An expression for a value's text, equal to `as_text` of the value."""
    if pa.types.is_binary(arrow):
        return f"concat('\\\\x', lower(hex({value})))"
    if pa.types.is_boolean(arrow):
        return f"CASE WHEN {value} THEN 't' ELSE 'f' END"
    return f"CAST({value} AS STRING)"


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
