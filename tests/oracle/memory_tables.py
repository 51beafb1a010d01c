"""Delta tables in memory, below a subscription that is otherwise pgbridge's own, on a real server.

For histories of which there are many, and which are about what a stream's changes become, not about how Delta commits
them. Commits, their stamps and RESTORE are those of `tests.simulation.lake`; a version's content is here the table's
columns and its rows.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
from pyspark.errors import PySparkException

from pgbridge.bridge.apply import applier, stream
from pgbridge.bridge.batch.batch import TableChanges
from pgbridge.bridge.effects.conflicts import (
    DELETE_MISSING,
    INSERT_EXISTS,
    UPDATE_EXISTS,
    UPDATE_MISSING,
    Tally,
    as_text,
)
from pgbridge.bridge.effects.events import DELETE, INSERT
from pgbridge.bridge.evolution.alterations import AddColumn, RenameColumn
from pgbridge.bridge.lake import table_position
from pgbridge.bridge.lake.commit import restore
from pgbridge.bridge.lake.log.history import History
from pgbridge.bridge.recovery import fence, manifest_table, recover, standby
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT
from pgbridge.bridge.service import subscriber
from pgbridge.bridge.spark import session
from pgbridge.bridge.sync import tablesync
from pgbridge.bridge.sync.copy_reader import copy_rows
from pgbridge.bridge.sync.table_reading import copy_statement
from pgbridge.bridge.targets.target import target_field, target_schema
from tests.simulation.lake import Manifests, MemoryLake, MemorySession, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pgbridge.bridge.evolution.alterations import Alteration
    from pgbridge.bridge.lake.log.stamp import CommitStamp
    from pgbridge.bridge.sync.copy import TableCopy
    from pgbridge.bridge.targets.target import TargetColumn, TargetSchema

    Rows = list[dict[str, Any]]


class LocalTables:
    """There is nothing to flush."""

    def __init__(self, *_: object) -> None: ...

    def flush(self, paths: Any, begin: Callable[[], None] = lambda: None) -> None:
        """Begin."""
        if list(paths):
            begin()


class MemoryTables(MemorySession):
    """The tables, and a session that commits to them with its stamp."""

    def __init__(self, lake: MemoryLake | None = None) -> None:
        super().__init__(lake or MemoryLake())
        self.checks: dict[str, Callable[[dict[str, Any]], bool]] = {}
        """What a table's new rows must satisfy, by its path: a CHECK constraint."""

    def forked(self) -> MemoryTables:
        """A session with settings of its own."""
        forked = MemoryTables(self.lake)
        forked.checks = self.checks
        return forked

    def schema(self, path: str) -> TargetSchema | None:
        """A table's columns; None if there is no such table."""
        return self._content(path)[0] if path in self.lake.tables else None

    def _content(self, path: str) -> tuple[TargetSchema, Rows]:
        schema, rows = self.lake.tables[path][-1].rows
        return schema, rows  # type: ignore[return-value]

    def arrow(self, path: str) -> pa.Table:
        """A table's rows."""
        schema, rows = self._content(path)
        return pa.Table.from_pylist(rows, pa.schema([(field.name, field.arrow) for field in schema]))

    def log(self, path: str) -> list[dict[str, Any]]:
        """A table's log, a dictionary of actions for each version: its `commitInfo`, and its `txn` if it has one."""
        versions = self.lake.tables[path]
        log: list[dict[str, Any]] = []
        for before, after in zip([versions[0], *versions], versions, strict=False):
            log.append({"commitInfo": after.info})
            for stamp in after.versions.items() - before.versions.items():
                log[-1]["txn"] = dict(zip(("appId", "version"), stamp, strict=True))
        return log

    def put(self, path: str, schema: TargetSchema, rows: Rows, stamp: CommitStamp | None = None) -> None:
        """Commit a table's new content, by a stamp or by the session's."""
        conf, content = self.conf, (schema, rows)
        if path not in self.lake.tables:
            self.lake.tables[path] = [Version({"operation": "CREATE TABLE"}, content, {})]  # type: ignore[arg-type]
            return
        prefix = "spark.databricks.delta."
        self.lake.commit(
            path,
            lambda _: content,  # type: ignore[arg-type, return-value]
            app_id=stamp.txn_app_id_in_delta if stamp else conf.get(f"{prefix}write.txnAppId", ""),
            version=stamp.txn_version if stamp else int(conf.get(f"{prefix}write.txnVersion", "0")),
            metadata=stamp.user_metadata if stamp else conf.get(f"{prefix}commitInfo.userMetadata", ""),
        )

    def put_foreign(self, path: str, columns: Mapping[str, pa.DataType], *rows: tuple[Any, ...]) -> None:
        """Make a table that is nobody's of the bridge."""
        self.put(path, target_schema(list(columns.items())), [dict(zip(columns, row, strict=True)) for row in rows])

    def make(self, _rel_path: str, columns: Sequence[TargetColumn]) -> TargetSchema:
        """Create an empty table."""
        schema = target_schema([(column.name, column.type.arrow) for column in columns])
        self.put(_rel_path, schema, [])
        return schema

    def alter(self, path: str, alterations: Sequence[Alteration]) -> None:
        """Change a table's columns, and its rows with them."""
        schema, rows = self._content(path)
        fields = {field.name: field for field in schema}
        table = self.arrow(path)
        for step in alterations:
            name = step.name
            if isinstance(step, RenameColumn):
                assert step.new_name.lower() not in {other.lower() for other in fields}, step
                fields = {step.new_name if key == name else key: field for key, field in fields.items()}
                fields[step.new_name] = fields[step.new_name]._replace(name=step.new_name)
                table = table.rename_columns([step.new_name if key == name else key for key in table.column_names])
            elif isinstance(step, AddColumn):
                assert name.lower() not in {other.lower() for other in fields}, step
                fields[name] = target_field(name, step.type)
                value = None if step.value is None else step.value.as_py()
                table = table.append_column(name, pa.array([value] * len(rows), step.type))
            else:
                fields[name] = target_field(name, step.type)
                at = table.column_names.index(name)
                table = table.set_column(at, name, table[name].cast(step.type))
        self.put(path, tuple(fields.values()), table.to_pylist())

    def apply(self, changes: TableChanges, conflicts: Callable[[Any], None]) -> None:
        """Commit a batch's changes, one after the other, by PostgreSQL's rules."""
        if not changes.commits:
            return
        path = changes.target.path
        schema, rows = self._content(path)
        rows = [] if changes.truncated else [dict(row) for row in rows]
        assert isinstance(changes.changes, pa.Table)
        names, tally = [column.name for column in changes.columns], Tally()
        key = [names[k] for k in changes.key]
        fills = {name: value.as_py() for name, value in changes.fills.items()}
        for change in changes.changes.to_pylist():
            new = {name: change[f"new_{i}"] for i, name in enumerate(names) if not change.get(f"unchanged_{i}")}
            old = {name: change.get(f"old_{i}") for i, name in enumerate(names) if f"old_{i}" in change}
            if change["op"] == INSERT:
                self._refuse(changes, INSERT_EXISTS, rows, new, key, None)
                rows.append({field.name: None for field in schema} | fills | new)
                continue
            by = (old if change["old"] else new) if key else old
            wanted = {name: by[name] for name in key or names if name in by}
            row = next((row for row in rows if all(row[name] == value for name, value in wanted.items())), None)
            if row is None:
                tally.add(DELETE_MISSING if change["op"] == DELETE else UPDATE_MISSING, tuple(wanted.values()))
            elif change["op"] == DELETE:
                rows = [other for other in rows if other is not row]
            else:
                self._refuse(changes, UPDATE_EXISTS, rows, row | new, key, row)
                row |= new
        if (check := self.checks.get(path)) is not None and not all(map(check, rows)):
            raise PySparkException("[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint small violated by a row")
        self.put(path, schema, rows)
        tally.report(changes.target.qualified_name, key or names, conflicts, full=not key)

    @staticmethod
    def _refuse(
        changes: TableChanges, name: str, rows: Rows, new: dict[str, Any], key: list[str], but: dict[str, Any] | None
    ) -> None:
        """Raise what Delta's MERGE would, if another row has the key."""
        if key and any(row is not but and all(row[k] == new[k] for k in key) for row in rows):
            conflict = {
                "pgbridge_conflict": name,
                "relation": changes.target.qualified_name,
                "columns": key,
                "values": [as_text(new[k]) for k in key],
            }
            raise PySparkException(json.dumps(conflict))

    def replace(self, batches: Sequence[pa.RecordBatch], path: str, stamp: CommitStamp, *, columns_too: bool) -> None:
        """Replace all rows by those of a copy."""
        rows = [row for batch in batches for row in batch.to_pylist()]
        schema = self._content(path)[0]
        if columns_too:
            schema = target_schema([(field.name, field.type) for field in batches[0].schema]) if batches else schema
        self.put(path, schema, [{field.name: None for field in schema} | row for row in rows], stamp)


@contextmanager
def in_memory() -> Iterator[MemoryTables]:
    """Have the subscriptions of this process write to tables in memory, whose session this gives."""
    tables = MemoryTables()

    def copy_at_once(_: object, copy: TableCopy, stamp: CommitStamp) -> None:
        spec = copy.spec
        batches = list(copy_rows(spec, copy_statement(spec.select, spec.row_filters)))
        batches = batches or [pa.RecordBatch.from_pylist([], spec.schema)]
        rows = [batch.rename_columns(spec.target_names) for batch in batches]
        tables.replace(rows, copy.rel.path, stamp, columns_too=copy.columns_too)

    def commits(_: Any, path: str, latest: int) -> Any:
        return tables.lake.commits(path, latest)

    def commit_nothing(spark: MemoryTables, path: str, _: object, *stamps: CommitStamp) -> None:
        for stamp in stamps:
            spark.put(path, *spark._content(path), stamp)

    def history_of(_: Any, path: str, *__: object) -> History:
        return History(path, lambda latest: tables.lake.commits(path, latest))

    patches: dict[Any, dict[str, Any]] = {
        session: {"fork": MemoryTables.forked, "interrupt": lambda *_: None},
        subscriber: {"LocalTables": LocalTables, "check_shared": lambda *_: None},
        stream: {"LocalTables": LocalTables},
        table_position: {"log_commits": commits},
        restore: {
            "history_of": history_of,
            "commit_nothing": commit_nothing,
            "written_schema": MemoryTables.schema,
            "write_checkpoint": lambda *_: None,
        },
        applier: {
            "LocalTables": LocalTables,
            "alter_table": lambda spark, path, alterations, *_, **__: spark.alter(path, alterations),
            "apply_table": lambda spark, changes, *, conflicts, **_: spark.apply(changes, conflicts),
            "existing_schema": MemoryTables.schema,
            "with_rows": lambda _, conflict, __: conflict,
        },
        tablesync: {
            "LocalTables": LocalTables,
            "SharedFolders": mock.MagicMock(),
            "schema_of": MemoryTables.schema,
            "read_target_schema": lambda spark, path, _: spark.schema(path),
            "read_table": lambda spark, path: mock.Mock(isEmpty=lambda: not spark.arrow(path).num_rows),
            "make_table": lambda spark, rel, made, *_: spark.make(rel.path, made),
            "layout_of": lambda *_: NO_LAYOUT,
            "ranged_table": lambda *_: None,
            "write_checkpoint": lambda *_: None,
            "copy_at_once": copy_at_once,
        },
        manifest_table: {"table_in": lambda _: Manifests(tables.lake)},
        standby: {"table_in": lambda _: Manifests(tables.lake)},
        fence: {"history_of": history_of},
        recover: {
            "table_in": lambda _: Manifests(tables.lake),
            "history_of": history_of,
            "CommitRows": mock.Mock(of=lambda *_: mock.Mock(last_numbers=lambda _: {})),
            "told": lambda _: nullcontext(),
        },
        # so that batches do not join: a joined one has effects in place of changes
        TableChanges: {"foldable": False},
    }
    with ExitStack() as stack:
        for place, names in patches.items():
            for name, made in names.items():
                stack.enter_context(mock.patch.object(place, name, made))
        yield tables
