"""A password is nowhere that it should not be: a whole life of a daemon, and every command, are searched for it.

Four subscriptions log in with a password of their own, each given in another of libpq's places. Every password has
`s3cr3t` in it and ends with `w0rd`, which no encoding of the others' bytes changes.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgbridge.bridge.demo.server import EmbeddedPostgres
from tests.bridge.made_daemon import wait_until
from tests.fix_bridge import DaemonProcess
from tests.fix_postgres import TEST_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_cli import Outcome

PASSWORDS: Final = {
    "string": """s3cr3t-pässwort "it's" \\ a\tw0rd""",
    "uri": "s3cr3t@u/r?i#%25:w0rd",
    "service": "s3cr3t-sérvice=w0rd",
    "environment": "s3cr3t-$HOME `env` w0rd",
}
PATHS: Final = ("metrics", "status.json", "", "healthz", "readyz")
COMMANDS: Final = (
    ("check",), ("check", "--json"), ("check", "string", "--sql"), ("status",), ("status", "--json"),
    ("publications",), ("publications", "uri", "--dump"), ("origin",), ("origin", "--json"), ("refresh", "service"),
    ("disable", "service"), ("enable", "service"), ("reload",),
)  # fmt: skip
EVERY_COPY_ON_EXECUTORS: Final = """
from pgbridge.bridge.spark.driver import Local
Local.copied_bytes = -1
from pgbridge.bridge.__main__ import main
main()
"""
MORE: Final = """
[subscription.{name}]
connection = {connection}
publications = ["pub"]
warehouse = "lake/{name}"
workers.retry_max_s = 0.5
"""


def needles() -> list[bytes]:
    """What a password has in every encoding: as text, and within base64 at each of its three offsets."""
    found = [b"s3cr3t", b"w0rd"]
    for filler in (b"", b"x", b"xx"):
        encoded = base64.b64encode(filler + b"s3cr3t")
        found.append(encoded[4 if filler else 0 : len(encoded) // 4 * 4 - 4])
    return found


def quoted_uri(password: str) -> str:
    return urllib.parse.quote(password, safe="")


@pytest.fixture
def private_server() -> Iterator[EmbeddedPostgres]:
    """A server that asks for passwords over TCP, with a role for each of them."""
    with EmbeddedPostgres(settings=TEST_SETTINGS, fsync=False) as server:
        with psycopg.connect(server.conninfo(), autocommit=True) as admin:
            admin.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
            admin.execute("CREATE PUBLICATION pub FOR TABLE t")
            for role, password in PASSWORDS.items():
                statement = "CREATE ROLE {} LOGIN REPLICATION PASSWORD {}; GRANT SELECT ON t TO {}"
                name = sql.Identifier(role)
                admin.execute(sql.SQL(statement).format(name, sql.Literal(password), name))
        yield server


class Watched:
    """The daemon, and everything that it shows."""

    def __init__(self, daemon: DaemonProcess, pgbridge: Callable[..., Outcome]) -> None:
        self.daemon = daemon
        self._pgbridge = pgbridge
        self.found: list[str] = []
        self.searched = 0
        self.arguments = ""

    def command(self, *arguments: str) -> Outcome:
        outcome = self._pgbridge(*arguments, "--config", str(self.daemon.config))
        self._search(f"pgbridge {' '.join(arguments)}", (outcome.out + outcome.err).encode())
        return outcome

    def commands(self) -> None:
        for arguments in COMMANDS:
            self.command(*arguments)

    def states(self) -> dict[str, dict[str, Any]]:
        document = json.loads(self.command("status", "--json").out)
        return {entry["name"]: entry for entry in document["subscriptions"]}

    def streaming(self) -> bool:
        states = self.states()
        return all(states[name]["state"] == "streaming" and states[name]["lag_bytes"] == 0 for name in PASSWORDS)

    def last_error(self, name: str) -> str:
        error = self.states()[name]["last_error"]
        return str(error["message"]) if error else ""

    def look(self) -> None:
        """Look at what is served, and at the arguments of all processes."""
        (url,) = set(re.findall(r'"url": "([^"]+)"', self.daemon.log.read_text()))
        for path in PATHS:
            try:
                with urllib.request.urlopen(url + path, timeout=30) as response:
                    shown = response.read()
            except urllib.error.HTTPError as error:
                with error:
                    shown = error.read()
            assert shown
            self._search(f"/{path}", shown)
        daemon = psutil.Process(self.daemon.pid)
        words: list[str] = []
        for process in (daemon, *daemon.children(recursive=True)):
            with suppress(psutil.Error):  # it has ended
                words += process.cmdline()
        self.arguments = "\n".join(words)
        self._search("the list of processes", self.arguments.encode())

    def look_at_files(self) -> set[str]:
        """Look at everything that was written: the log, the state, Spark's files and the Delta tables."""
        files = [file for file in self.daemon.folder.rglob("*") if file.is_file() and file != self.daemon.config]
        for file in files:
            self._search(str(file), file.read_bytes())
        return {file.name for file in files}

    def _search(self, place: str, content: bytes) -> None:
        self.searched += 1
        self.found += [f"{place}: {needle!r}" for needle in needles() if needle in content]


@pytest.fixture
def watched(private_server, tmp_path, pgbridge, monkeypatch) -> Iterator[Watched]:
    """A daemon with HTTP and Spark's event log, which has what Spark's UI shows."""
    server = private_server
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    service = {"host": server.host, "port": server.port, "dbname": "postgres", "user": "service"}
    service["password"] = PASSWORDS["service"]
    lines = [f"{key}={value}" for key, value in service.items()]
    (secrets / "service.conf").write_text("\n".join(["[pg]", *lines, ""]))
    escaped = PASSWORDS["environment"].replace("\\", "\\\\").replace(":", "\\:")
    (secrets / "pgpass").write_text(f"*:*:*:environment:{escaped}\n")
    (secrets / "pgpass").chmod(0o600)
    monkeypatch.setenv("PGSERVICEFILE", str(secrets / "service.conf"))
    monkeypatch.setenv("PGPASSFILE", str(secrets / "pgpass"))
    monkeypatch.setenv("PGPASSWORD", PASSWORDS["environment"])
    place = {"host": server.host, "port": server.port, "dbname": "postgres"}
    connections = {
        "string": make_conninfo(**place, user="string", password=PASSWORDS["string"]),
        "uri": f"postgresql://uri:{quoted_uri(PASSWORDS['uri'])}@{server.host}:{server.port}/postgres",
        "service": "service=pg",
        "environment": make_conninfo(**place, user="environment"),
    }
    folder = tmp_path / "daemon"
    (folder / "events").mkdir(parents=True)
    any_publisher: Any = SimpleNamespace(conninfo=connections["string"])
    daemon = DaemonProcess(folder, any_publisher, name="string", warehouse="lake/string", workers__retry_max_s=0.5)
    for_spark = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.local.dir": str(folder / "local"),
    }
    settings = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in for_spark.items())
    text = daemon.config.read_text().replace("[spark.conf]\n", f"[spark.conf]\n{settings}")
    text += "".join(
        MORE.format(name=name, connection=json.dumps(connections[name], ensure_ascii=False))
        for name in PASSWORDS
        if name != "string"
    )
    daemon.config.write_text(text + '[http]\nlisten = "127.0.0.1:0"\n')
    daemon.config.chmod(0o600)
    daemon.program = (sys.executable, "-c", EVERY_COPY_ON_EXECUTORS)
    yield Watched(daemon, pgbridge)
    daemon.end()


def test_no_password_is_shown(watched, private_server, monkeypatch):
    """Start, copy, a batch, a password that is changed, a server that is away, a broken string, and all commands."""
    daemon, server = watched.daemon, private_server
    daemon.start()
    wait_until(watched.streaming, 180)
    watched.look()
    assert "java" in watched.arguments
    assert "pyspark.daemon" in watched.arguments  # its workers read the copies
    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        admin.execute("INSERT INTO t SELECT generate_series(2, 100)")
    wait_until(watched.streaming)
    watched.commands()
    with monkeypatch.context() as without:
        without.delenv("PGPASSWORD")  # so that ~/.pgpass is asked
        assert "connection: database" in watched.command("check", "environment").out

    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        for role in PASSWORDS:
            admin.execute(sql.SQL("ALTER ROLE {} PASSWORD 'another'").format(sql.Identifier(role)))
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename <> 'postgres'")
    wait_until(lambda: all("authentication failed" in watched.last_error(name) for name in PASSWORDS))
    watched.look()
    watched.commands()

    server.stop()
    wait_until(lambda: all("Connection refused" in watched.last_error(name) for name in PASSWORDS))
    watched.look()
    watched.command("check")
    watched.command("status")

    text = daemon.config.read_text()
    quoted = quoted_uri(PASSWORDS["uri"])
    daemon.config.write_text(text.replace(quoted, PASSWORDS["uri"]))
    watched.command("reload")
    wait_until(lambda: "libpq connection string" in watched.last_error("uri") or "URI" in watched.last_error("uri"))
    watched.look()
    watched.commands()
    daemon.config.write_text(text)

    assert daemon.stop() == 0
    server.start()
    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        for role, password in PASSWORDS.items():
            statement = sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(password))
            admin.execute(statement)
    watched.commands()
    assert watched.command("drop", "string").code == 0
    names = watched.look_at_files()
    assert names >= {"daemon.log", "spark.log", "catalog.sqlite"}
    (events,) = daemon.folder.rglob("events_1_*")
    assert "MapInArrow" in events.read_text()
    assert watched.searched > 100
    assert watched.found == []


def test_the_search_finds_a_password():
    """In each form in which it may be written."""
    for password in PASSWORDS.values():
        raw = password.encode()
        forms = [raw, quoted_uri(password).encode(), json.dumps(password).encode(), repr(password).encode()]
        forms += [base64.b64encode(filler + raw) for filler in (b"", b"1", b"22")]
        assert [form for form in forms if not any(needle in form for needle in needles())] == []
