"""Every command of README.md and docs/ is typed, in one life of a subscription; every configuration there is read."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import time
import tomllib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from pgbridge.bridge.config import config
from pgbridge.bridge.publication import definitions
from tests import documented
from tests.test_docs import DOCS, blocks

if TYPE_CHECKING:
    from pathlib import Path

CONNECTION = "host=primary dbname=shop user=replicator"
FAILED_LSN, ORIGIN_LSN, MOMENT = "0/2F52788", "0/2F696C0", "2026-05-01 12:00:01"
"""What the pages have in the place of what is known only when it happens."""

INIT = f'pgbridge init --connection "{CONNECTION}" --publication shop_pub --warehouse ./lake'
CATCH_UP = "pgbridge run --until-caught-up"
BEGINNING = (
    INIT,
    "pgbridge prepare --config pgbridge.toml",
    "pgbridge check",
    "pgbridge check shop_pub",
    "pgbridge check --sql",
    CATCH_UP,
    "pgbridge status",
    "pgbridge origin",
    "pgbridge publications",
    "pgbridge publications shop_pub",
    "pgbridge publications --dump",
    f'pgbridge snapshot --at "{MOMENT}"',
    f'pgbridge snapshot shop_pub --at "{MOMENT}"',
    "pgbridge verify shop_pub --table orders --max-rate 50MB",
    "pgbridge verify shop_pub --schedule",
)
SKIPPING = (
    f"pgbridge skip shop_pub --lsn {FAILED_LSN}",
    CATCH_UP,
    f"pgbridge skip shop_pub --lsn {FAILED_LSN} --show",
    f"pgbridge replay shop_pub --lsn {FAILED_LSN} --dry-run",
)
BESIDE_THE_DAEMON = (
    "pgbridge wait shop_pub --timeout 10",
    "pgbridge wait shop_pub --timeout 30",
    "pgbridge reload",
    "pgbridge refresh shop_pub",
    "pgbridge refresh shop_pub --resync public.events",
    "pgbridge refresh shop_pub --resync public.orders",
    "pgbridge resync shop_pub",
    "pgbridge disable shop_pub",
    "pgbridge enable shop_pub",
)
ADVANCE = f"pgbridge origin shop_pub --advance {ORIGIN_LSN}"
LAST = ("pgbridge recover --dry-run", "pgbridge recover shop_pub", CATCH_UP, "pgbridge drop shop_pub")
WATCHES = ("pgbridge status --watch", "pgbridge status --watch 5")
ELSEWHERE = {"pgbridge prepare", "pgbridge demo --seconds 60"}  # the tutorial's test, tests/bridge/demo
SHOP = """
    CREATE TABLE customers (id int PRIMARY KEY, name text);
    CREATE TABLE orders (id int PRIMARY KEY, customer text, total numeric(9, 2), placed timestamp);
    CREATE TABLE events (id int PRIMARY KEY, kind text);
    CREATE PUBLICATION shop_pub FOR TABLE orders, events;
    INSERT INTO orders SELECT i, 'customer ' || i, i / 4.0, '2026-01-01' FROM generate_series(1, 100) i;
    INSERT INTO events VALUES (1, 'click')"""
PATIENCE_S = 300

TOML = [
    (f"{page}-{number}", block)
    for page, text in sorted(DOCS.items())
    for number, block in enumerate(re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
]


def test_all_commands_of_the_pages_are_typed():
    """Those that begin with `$ pgbridge`, but for the tutorial's, which has a test of its own."""
    lines = [line for page, text in DOCS.items() if page != "docs/tutorial.md" for line in blocks(text)]
    printed = {line.removeprefix("$ ") for line in lines if line.startswith("$ pgbridge ")}
    assert printed == {*BEGINNING, *SKIPPING, *BESIDE_THE_DAEMON, ADVANCE, *LAST, *WATCHES, *ELSEWHERE}


@pytest.mark.parametrize("block", [block for _, block in TOML], ids=[name for name, _ in TOML])
def test_a_configuration_of_the_pages_can_be_read(block, tmp_path):
    """With what each subscription needs, where a block shows less; some have keys of a subscription alone."""
    tree: dict[str, Any] = tomllib.loads(block)
    if "connection" in tree:
        tree = {"subscription": {"shop": tree}}
    for subscription in tree.setdefault("subscription", {"shop": {}}).values():
        for key, value in (("connection", CONNECTION), ("publications", ["shop_pub"]), ("warehouse", "lake")):
            subscription.setdefault(key, value)
    (tmp_path / "filters.sql").write_text("CREATE PUBLICATION everything FOR ALL TABLES")
    file = tmp_path / "pgbridge.toml"
    file.write_text("".join(f"{key} = {inline(value)}\n" for key, value in tree.items()), encoding="utf-8")
    assert config.load(file).subscription.keys() == tree["subscription"].keys()


def inline(value: object) -> str:
    """A value in one line of TOML."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {inline(item)}' for key, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def test_definitions_of_the_pages_can_be_read():
    definitions_of = DOCS["docs/publications.md"].partition("\n## Sequences\n")[0]
    shown = re.findall(r"^```sql\n(.*?)^```$", definitions_of, re.MULTILINE | re.DOTALL)
    assert [[one.name for one in definitions.parse(text, "filters.sql")] for text in shown] == [
        ["big_orders", "clicks"],
        ["most"],
        ["of_sales"],
    ]


# --- one life ---------------------------------------------------------------------------------------------------------


class Shell:
    """Types commands as the pages print them, in one folder."""

    def __init__(self, folder: Path, conninfo: str) -> None:
        self._folder = folder
        self._instead = {CONNECTION: conninfo}

    def type(self, command: str, *, code: int | set[int] = 0) -> str:
        """Run a command, see how it ends, and return its output."""
        self._instead[MOMENT] = f"{datetime.now(UTC):%F %T}"
        words = command
        for printed, real in self._instead.items():
            words = words.replace(printed, real)
        done = subprocess.run(
            ["bash", "-c", words], cwd=self._folder, env=documented.environment(), check=False,
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        expected = code if isinstance(code, set) else {code}
        assert done.returncode in expected, (command, done.returncode, done.stdout[-1500:], done.stderr[-1500:])
        return done.stdout

    def state(self) -> dict[str, Any]:
        """The subscription's part of the status document."""
        status: dict[str, Any] = json.loads(self.type("pgbridge status --json"))["subscriptions"][0]
        return status

    def wait(self, state: str) -> None:
        """Wait until all tables follow the stream in this state of the subscription."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            seen = self.state()
            if seen["state"] == state and all(table["state"] in "sr" for table in seen["tables"]):
                return
            time.sleep(1)
        raise AssertionError(seen)

    def mean(self, printed: str, real: str) -> None:
        """Have what the pages print stand for something else from now on."""
        self._instead[printed] = real

    def interrupt(self, command: str) -> None:
        """Start a command, read its first line, and end it by Ctrl-C."""
        words, environment = shlex.split(command), documented.environment()
        with subprocess.Popen(words, cwd=self._folder, env=environment, stdout=subprocess.PIPE) as one:
            assert one.stdout is not None
            assert b"the daemon runs" in one.stdout.readline()
            one.send_signal(signal.SIGINT)
            one.communicate(timeout=PATIENCE_S)
        assert one.returncode == 0


@pytest.mark.soak
def test_a_life_by_the_commands_of_the_pages(publisher, spark, tmp_path):
    shell = Shell(tmp_path, publisher.conninfo)
    publisher.execute(SHOP)
    for command in BEGINNING:
        shell.type(command, code={0, 1} if command.startswith("pgbridge check") else 0)
    spark.sql(f"INSERT INTO delta.`{tmp_path}/lake/public/orders` VALUES (101, 'nobody', 1, NULL)")
    publisher.execute("UPDATE orders SET total = 120 WHERE id = 2; INSERT INTO orders VALUES (101, 'customer 101', 2)")
    shell.type(CATCH_UP, code=1)
    shell.mean(FAILED_LSN, shell.state()["last_error"]["finish_lsn"])
    *said, preview = [shell.type(command) for command in SKIPPING]
    assert '"command": "INSERT"' in said[-1]
    assert "overwritten: (id=101) customer: nobody -> customer 101" in preview
    with subprocess.Popen(
        ["pgbridge", "run"], cwd=tmp_path, env=documented.environment(), stderr=subprocess.DEVNULL
    ) as daemon:
        try:
            shell.wait("streaming")
            for command in WATCHES:
                shell.interrupt(command)
            publisher.execute("ALTER PUBLICATION shop_pub ADD TABLE customers")
            for command in BESIDE_THE_DAEMON:
                shell.type(command)
                shell.wait("disabled" if "disable" in command else "streaming")
        finally:
            daemon.terminate()
            assert daemon.wait(PATIENCE_S) == 0
    shell.mean(ORIGIN_LSN, publisher.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])
    shell.type(ADVANCE)
    shutil.rmtree(tmp_path / "state")
    for command in LAST:
        shell.type(command)
    assert publisher.query("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'shop_pub'") == [(0,)]
