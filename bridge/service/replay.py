"""`pgbridge replay` applies a transaction that was skipped, after showing what it would overwrite.

It works on the state directory alone: a daemon must not commit to the same tables meanwhile.

`pgbridge skip --show` shows what such a transaction held: each change as it came, before row filters and column lists.
That needs neither Spark nor the server. Values are read as for a subscription, and one that its type in Delta cannot
hold is shown as PostgreSQL's text.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes, Subscribed
from pgbridge.bridge.batch.row_filters import MARKS
from pgbridge.bridge.catalog import catalog_rows, followed, lock, maintenance
from pgbridge.bridge.catalog.catalog import Catalog, boot_id, catalog_path
from pgbridge.bridge.effects.events import COMMANDS, DELETE, NO_OLD, OLD_TUPLE, TRUNCATE
from pgbridge.bridge.recovery import manifest_table
from pgbridge.bridge.runtime import errors, process, remedies
from pgbridge.bridge.skipped import kept_transaction
from pgbridge.bridge.skipped.replay import Replay, lines_of
from pgbridge.bridge.spark.session import command_session, told
from pgbridge.bridge.targets.target import Target
from pgbridge.bridge.track.progress import given_lsn
from pgbridge.protocol.bulk.message_array import ChunkedMessages
from pgbridge.protocol.lsn import INVALID, Lsn, utc
from pgbridge.protocol.values.types import ColumnType, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from pgbridge.bridge.batch.batch import TableChanges
    from pgbridge.bridge.config.config import Config, Subscription

DONE: Final = "replayed.json"
"""The file, beside what was kept, that says when the transaction was replayed."""

BEGUN: Final = "begun.json"
"""The file that says since which boot of the machine it is being replayed, and whether a flush was begun."""


def replay(
    config: Config,
    subscription: Subscription,
    text: str,
    *,
    dry_run: bool = False,
    started: Callable[[Config, Subscription], AbstractContextManager[SparkSession]] | None = None,
) -> Iterator[str]:
    """Replay a skipped transaction; yields the lines to print.

    Args:
        config: The configuration.
        subscription: The subscription that skipped it.
        text: The transaction's finish LSN.
        dry_run: Only show what it would do.
        started: Starts Spark, and stops it; None for the session that the configuration describes.

    Raises:
        SkipError: No such transaction was kept, it cannot be replayed, or it was replayed already.
        StateError: A daemon is running, or the subscription has a batch that is not finished.
        TakenOver: Another machine goes on with the subscription.
        ApplyError: A commit failed; what was committed before remains, and another attempt goes on from there.
    """
    finish_lsn, folder, of_added = _existing(config, subscription, text)
    if folder == of_added:
        raise errors.SkipError(
            f"the transaction that finished at {finish_lsn} cannot be replayed: {_OF_ADDED}",
            hint=_of_added_hint(subscription.name, of_added),
        )
    kept, done = kept_transaction.read(folder), folder / DONE
    if kept.refused is not None:
        raise errors.SkipError(
            f"the transaction cannot be replayed: {kept.refused}",
            hint="to see what it held, run: "
            f"{remedies.show_skipped(subscription.name, finish_lsn)}; copy the tables again to have it in them",
        )
    if done.exists():
        when = json.loads(done.read_text(encoding="utf-8"))["time"]
        raise errors.SkipError(f"the transaction that finished at {finish_lsn} was replayed at {when}")
    if of_added is not None:
        yield f"tables that were being added are left out; {_of_added_hint(subscription.name, of_added)}"
    if not kept.tables:
        yield f"the transaction that finished at {finish_lsn} has no changes that are published"
        return
    with lock.locked(config.state_dir, lock.STOP_FIRST), closing(Catalog(catalog_path(config.state_dir))) as catalog:
        row = catalog.subscription(subscription.name)
        if row is None or row.incarnation is None:
            raise errors.SkipError(f'subscription "{subscription.name}" has not begun, so it has no tables')
        maintenance.check_finished(catalog, subscription.name)
        with catalog.transaction():  # because a hand-over moves tables from one name to the other
            rels = catalog.rels_by_name(subscription.name)
            copying = catalog.rels_by_name(catalog_rows.sync_name(subscription.name)).keys()
            remote_lsn = catalog.remote_lsn(subscription.name)
        with (
            started(config, subscription)
            if started
            else command_session(config, [subscription], log="spark.log", commits=True) as spark
        ):
            with told(spark):
                manifest_table.check_owned(spark, catalog, subscription)
            replaying = Replay(
                spark,
                subscription,
                app_id=row.txn_app_id,
                remote_lsn=remote_lsn or INVALID,
                kept=kept,
                types=_types(catalog, subscription),
                rels=rels,
                copying=copying,
            )
            yield from _replayed(replaying, subscription.name, finish_lsn, done, dry_run=dry_run)


def _replayed(replaying: Replay, name: str, finish_lsn: Lsn, done: Path, *, dry_run: bool) -> Iterator[str]:
    yield from (f"{relation}: left out: it was copied after the transaction" for relation in replaying.copied_since)
    for shown in replaying.preview():
        yield from lines_of(shown)
    if dry_run:
        yield f"nothing is changed; to apply it, run: {remedies.replay(name, finish_lsn)}"
        return
    begun = done.with_name(BEGUN)
    _check_begun(begun, name)
    _write(begun, {"boot_id": boot_id(), "flushing": False})
    for replayed in replaying.apply(lambda: _write(begun, {"boot_id": boot_id(), "flushing": True})):
        conflicts = ", ".join(f"{number:,} {conflict}" for conflict, number in replayed.conflicts.items())
        yield f"{replayed.relation}: replayed{f' ({conflicts})' if conflicts else ''}"
    _write(done, {"time": time.strftime("%Y-%m-%d %H:%M:%S%z")})
    begun.unlink()
    yield f"the transaction that finished at {finish_lsn} is applied and durable"


def show_skipped(config: Config, subscription: Subscription, text: str) -> Iterator[str]:
    """Show what a skipped transaction held; yields the lines to print.

    Raises:
        SkipError: No such transaction was kept.
        ApplyError: A value cannot be read.
    """
    _, folder, of_added = _existing(config, subscription, text)
    kept = kept_transaction.read(folder)
    if folder == of_added and kept.refused is None:
        kept = replace(kept, refused=_OF_ADDED)
    with closing(Catalog(catalog_path(config.state_dir))) as catalog:
        yield from show(kept, _types(catalog, subscription))


def _types(catalog: Catalog, subscription: Subscription) -> Callable[[Sequence[tuple[int, int]]], list[ColumnType]]:
    """Resolve types by those that the subscription's tables have had: the server may have dropped some."""
    kept = followed.types(catalog, subscription.name)
    return lambda wanted: [resolve(oid, typmod, kept) for oid, typmod in wanted]


def _existing(config: Config, subscription: Subscription, text: str) -> tuple[Lsn, Path, Path | None]:
    """The LSN of a transaction that was skipped, its folder, and that of the tablesync worker, if it has skipped it.

    They are the same if only that worker has.
    """
    finish_lsn, skipped, name = given_lsn(text), config.state_dir / "skipped", subscription.name
    owners = name, catalog_rows.sync_name(name)
    own, of_added = (kept_transaction.folder_of(skipped, owner, str(finish_lsn)) for owner in owners)
    if own.is_dir():
        return finish_lsn, own, of_added if of_added.is_dir() else None
    if of_added.is_dir():
        return finish_lsn, of_added, of_added
    others = sorted({path.parent.name.replace("-", "/") for owner in owners for path in skipped.glob(f"*/{owner}")})
    known = f"kept are: {', '.join(others)}" if others else "none is kept"
    with closing(Catalog(catalog_path(config.state_dir))) as catalog:
        hint = f"skip one first: {remedies.skip(name, str(finish_lsn))}"
        if not _can_be_skipped(catalog, name, finish_lsn):
            hint = "the stream has passed that LSN: what was there is applied, or the server could not send it"
    raise errors.SkipError(
        f'no transaction that finished at {finish_lsn} was skipped by subscription "{name}" ({known})', hint=hint
    )


def _can_be_skipped(catalog: Catalog, name: str, finish_lsn: Lsn) -> bool:
    """Whether a subscription, or its tablesync worker, has not passed a transaction yet (see `alter.set_skip`)."""
    remote_lsn, error = catalog.remote_lsn(name), catalog.last_error(catalog_rows.sync_name(name))
    return remote_lsn is None or finish_lsn >= remote_lsn or (error is not None and error.finish_lsn == finish_lsn)


_OF_ADDED: Final = "it was skipped for tables that were being added"
"""Why what only the tablesync worker has skipped is not replayed: when its tables join the stream, the catalog has an
LSN behind the transaction, as if they were copied there."""


def _of_added_hint(name: str, of_added: Path) -> str:
    """How the tables come by a transaction that the tablesync worker has skipped: a copy has it."""
    tables = kept_transaction.read(of_added).tables or [("TABLE",)]  # one that was not decoded may not say which
    again = remedies.resync(name, *(".".join(table) for table in sorted(tables)))
    return f"unless they were copied since, copy them again: {again}"


def _check_begun(begun: Path, name: str) -> None:
    """Raise if an earlier attempt may have committed what did not reach the disk: Delta would leave it out now."""
    if not begun.exists():
        return
    document = json.loads(begun.read_text(encoding="utf-8"))
    if document["flushing"] or document["boot_id"] != boot_id():
        raise errors.SkipError(
            "an earlier replay of the transaction has committed what may not have reached the disk",
            hint=f"copy the transaction's tables again: {remedies.resync(name, 'TABLE')}",
        )


def _write(path: Path, document: dict[str, Any]) -> None:
    """Write a small file so that it is there as a whole or not at all, also after a power cut."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(document), encoding="utf-8")
    process.fsync(new)
    new.replace(path)
    process.fsync(path.parent)


def show(
    kept: kept_transaction.KeptTransaction, types: Callable[[Sequence[tuple[int, int]]], list[ColumnType]]
) -> Iterator[str]:
    """Yield a line for the transaction, and one for each change, in order: JSON documents.

    Args:
        types: How values of these (type oid, typmod) are decoded.

    Raises:
        ApplyError: A value cannot be read. The lines before it are of earlier changes.
        StateError: The file is damaged.
    """
    transaction, first = kept.transaction, True
    yield _json(
        {
            "finish_lsn": str(transaction.commit_lsn),
            "xid": transaction.xid,
            "commit_time": utc(transaction.commit_time_us).isoformat(),
            "replay": f"not possible: {kept.refused}" if kept.refused else "possible",
        }
    )
    batcher = Batcher("", Routes({}, others=_shown), types, unrepresentable="show")
    for rows, events in kept.file.chunks(in_stream=transaction.in_stream):
        messages = ChunkedMessages()
        messages.extend(rows)
        relations = transaction.relations if first else ()
        chunk = replace(transaction, rows=messages, events=events, relations=relations, spooled=None)
        batch, first = batcher.form([chunk], INVALID), False
        yield from (line for _, line in sorted(line for table in batch.tables for line in _lines(table)))


def _shown(namespace: str, name: str) -> Subscribed:
    return Subscribed(Target(namespace, name, f"{namespace}.{name}", (), "handler"), INVALID)


def _lines(changes: TableChanges) -> Iterator[tuple[tuple[int, bool], str]]:
    """The changes of a table, each with its position: a TRUNCATE has that of the row after it."""
    columns = [(i, column.name) for i, column in enumerate(changes.columns)]
    table: pa.Table = changes.changes
    for row in table.to_pylist():
        document: dict[str, Any] = {"table": changes.target.qualified_name, "command": COMMANDS[row["op"]]}
        if row["old"] != NO_OLD:
            whole = row["old"] == OLD_TUPLE
            document["old"] = _image(row, [(i, name) for i, name in columns if whole or i in changes.key], "old")
        if row["op"] not in {DELETE, TRUNCATE}:
            document["new"] = _image(row, [(i, name) for i, name in columns if not row.get(f"unchanged_{i}")], "new")
        yield (row["seq"], row["op"] != TRUNCATE), _json(document)


def _image(row: dict[str, Any], columns: Sequence[tuple[int, str]], kind: str) -> dict[str, Any]:
    """A row; a new one has no values that the stream does not carry, because the UPDATE left them as they were."""
    texts = {name: row.get(f"{MARKS[kind]}_{i}") for i, name in columns}
    return {name: row.get(f"{kind}_{i}") if texts[name] is None else texts[name] for i, name in columns}


def _json(document: dict[str, Any]) -> str:
    """One line; what a terminal would not print as it is, is escaped. NaN and infinities are PostgreSQL's text."""
    shown = _finite(document)
    line = json.dumps(shown, ensure_ascii=False, default=_text, allow_nan=False)
    return line if line.isprintable() else json.dumps(shown, default=_text, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
