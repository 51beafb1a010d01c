"""The native subscriber of a history of catalog events: it gets the same events, and the operator's DDL in step.

Its publisher is a twin of the bridge's, where each statement is a transaction of its own. So what a native subscriber
must be altered for is done there at the moment at which the stream needs it, also between two rows of a transaction.
All its tables are plain ones, as targets of a root and of its partitions are for the bridge.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg

from tests.oracle.catalog_events.generator import CatchUp, Generator, Refresh, Run, Step, Transaction
from tests.oracle.catalog_events.tables import TYPE_DEFINITIONS
from tests.oracle.native import NativeSubscriber

if TYPE_CHECKING:
    from tests.fix_postgres import Publisher

_POLL_S = 0.01
_TIMEOUT_S = 60.0
_STOPPED_SHARE = 0.8
"""How often the bridge ends after it has caught up; else it runs on."""
_KEYS = """
CREATE FUNCTION drop_key(t regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE k name; BEGIN
    SELECT conname INTO k FROM pg_constraint WHERE conrelid = t AND contype = 'p';
    IF FOUND THEN EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', t, k); END IF;
END $$;
CREATE FUNCTION add_key(t regclass) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    PERFORM drop_key(t); EXECUTE format('ALTER TABLE %s ADD PRIMARY KEY (id)', t);
END $$;
"""


class InStep:
    """A twin publisher and its subscriber, which never lags.

    Attributes:
        stopped: Why the subscriber has stopped for good; empty while it follows.
    """

    def __init__(self, twin: Publisher, generator: Generator) -> None:
        self.twin = twin
        self.stopped = ""
        schema = [TYPE_DEFINITIONS, _KEYS]
        for table in generator.tables():
            columns = ", ".join(f"{name} {type_}" for name, type_ in generator.columns(table.name).items())
            key = ", PRIMARY KEY (id)" if generator.key(table.name) else ""
            schema.append(f"CREATE TABLE {table.name} ({columns}{key});")
        options: dict[str, str | bool] = {"synchronous_commit": "on", "disable_on_error": True}
        self.native = NativeSubscriber(twin.conninfo, ["pub"], options=options, schema="\n".join(schema))
        self._behind = True
        self._names = self._published()

    def take(self, step: Step) -> None:
        """Execute a step on the twin, and keep the subscriber in step."""
        if isinstance(step, Transaction):
            for statement in step.statements:
                if statement.subscriber:
                    self.wait()
                self.twin.execute(statement.text)
                self._behind = True
                for text in statement.subscriber:
                    self._execute(text)
        elif isinstance(step, Refresh):
            self.wait()
            self._prepare()
            self._execute(f"ALTER SUBSCRIPTION {self.native.name} REFRESH PUBLICATION")
            self._behind = True
            self.wait()

    def _prepare(self) -> None:
        """As an operator must before tables are copied again: they are empty, and one with another name is another."""
        published, subscribed = self._published(), self.subscribed()
        for name in sorted(published & subscribed - self._names):
            short = name.partition(".")[2]
            self._execute(f"CREATE TABLE {name}_like (LIKE {name} INCLUDING ALL)")
            self._execute(f"DROP TABLE {name}")
            self._execute(f"ALTER TABLE {name}_like RENAME TO {short}")
        for name in sorted(published - subscribed):
            self._execute(f"TRUNCATE {name}")
        self._names = published

    def _published(self) -> set[str]:
        rows = self.twin.query("SELECT format('%I.%I', schemaname, tablename) FROM pg_publication_tables")
        return {name for (name,) in rows}

    @property
    def is_outdated(self) -> bool:
        """Whether a refresh would add or remove tables."""
        return self._published() != self._names

    def subscribed(self) -> set[str]:
        """The subscriber's tables."""
        return {name for (name,) in self.native.query("SELECT srrelid::regclass::text FROM pg_subscription_rel")}

    def columns(self) -> dict[str, list[str]]:
        """The columns of the subscriber's tables that the publisher's have, by table."""
        query = (
            "SELECT attrelid::regclass::text, array_agg(attname::text ORDER BY attnum) FROM pg_attribute"
            " JOIN pg_class c ON c.oid = attrelid WHERE relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped"
            " AND relnamespace IN ('a'::regnamespace, 'b'::regnamespace) GROUP BY attrelid"
        )
        return dict(self.native.query(query))

    def _execute(self, text: str) -> None:
        if self.stopped:
            return
        try:
            self.native.execute(text)
        except psycopg.Error as error:
            self.stopped = f"{text}: {error}"

    def wait(self) -> None:
        """Wait until the subscriber has everything, or has stopped for good.

        Raises:
            TimeoutError: Neither.
        """
        if self.stopped or not self._behind:
            return
        deadline = time.monotonic() + _TIMEOUT_S
        ((target,),) = self.twin.query("SELECT pg_current_wal_lsn()")
        with psycopg.connect(self.native.conninfo, autocommit=True) as subscriber:
            while True:
                ((enabled, states),) = subscriber.execute(
                    "SELECT subenabled, ARRAY(SELECT DISTINCT srsubstate::text FROM pg_subscription_rel)"
                    " FROM pg_subscription WHERE subname = %s",
                    (self.native.name,),
                ).fetchall()
                if not enabled:
                    self.stopped = "an error disabled the native subscription; the server's log has it"
                    return
                ((caught_up,),) = self.twin.query(
                    "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
                    (target, self.native.name),
                )
                if caught_up and set(states) <= {"r"}:
                    self._behind = False
                    return
                if time.monotonic() > deadline:
                    raise TimeoutError(f"native subscription {self.native.name} has not caught up: {states}")
                time.sleep(_POLL_S)


def make_history(twin: Publisher, seed: int, n_steps: int) -> tuple[list[str], list[Step], InStep]:
    """Make a seed's history on a twin, its native subscriber in step.

    Returns:
        The statements before the subscription, the steps after it, and the subscriber, caught up.
    """
    generator = Generator(twin, seed)
    before = generator.schema()
    for text in before:
        twin.execute(text)
    before.append(generator.publication())
    twin.execute(before[-1])
    for _ in range(4):
        if (transaction := generator.transaction(5, rows_only=True)) is not None:
            before.append(transaction.text)
            twin.execute(transaction.text)
    side = InStep(twin, generator)
    steps: list[Step] = [CatchUp()]
    side.wait()
    choices = generator.random
    running = refreshes = False
    for _ in range(n_steps):
        if choices.random() < 1.5 / n_steps:
            running = choices.random() >= _STOPPED_SHARE
            steps += [CatchUp(), Run()] if running else [CatchUp()]
            if refreshes:
                side.take(Refresh())
            refreshes = False
        if choices.random() < 1.0 / n_steps:
            steps.append(Refresh())
            # a stopped bridge does what it was asked for at its next start, and finds the tables of that moment
            refreshes = not running and (refreshes or side.is_outdated)
            if not refreshes:
                side.take(Refresh())
        transaction = generator.transaction(choices.choice((1, 1, 2, 3, 6)))
        if transaction is not None:
            side.take(transaction)
            steps.append(transaction)
    for statement in generator.closing():
        try:
            side.take(Transaction((statement,)))
        except psycopg.Error:
            continue
        steps.append(Transaction((statement,)))
    if refreshes:
        side.take(Refresh())
    side.wait()
    steps.append(CatchUp())
    return before, steps, side
