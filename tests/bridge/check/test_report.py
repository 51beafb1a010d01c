"""`pgbridge check` as a whole: the document, the exit code, the script; and no secret in any of them."""

from __future__ import annotations

import json
import sys

import pytest
from psycopg.conninfo import make_conninfo
from rich.console import Console

from pgbridge.bridge.check import report
from pgbridge.bridge.check.finding import passed

SECRET = "s3cr3t-w0rd"


@pytest.fixture(autouse=True)
def java(monkeypatch):
    """Found: its own tests are in test_java.py."""
    monkeypatch.setattr("pgbridge.bridge.check.machine.check_java", lambda _: passed("Java", "17"))


def configure(folder, conninfo: str) -> None:
    lines = [
        "[subscription.shop]",
        f"connection = {json.dumps(conninfo)}",
        'publications = ["pub"]',
        'warehouse = "./lake"',
    ]
    (folder / "pgbridge.toml").write_text("\n".join(lines))


def test_a_server_that_does_not_answer(pgbridge, tmp_path):
    configure(tmp_path, f"host=/nonexistent dbname=x password={SECRET}")
    done = pgbridge("check", "--json")
    document = json.loads(done.out)
    assert done.code == document["exit_code"] == 2
    levels = {one["subject"]: one["level"] for one in document["subscriptions"][0]["findings"]}
    assert levels == {"warehouse": "pass", "connection": "failure", "password": "warning"}
    assert {one["subject"] for one in document["machine"]} >= {"Java", "state_dir", "disk"}
    assert SECRET not in done.out + done.err
    assert [path.name for path in tmp_path.iterdir()] == ["pgbridge.toml"]


def test_the_text_names_every_remedy(pgbridge, tmp_path):
    configure(tmp_path, "host=/nonexistent dbname=x")
    done = pgbridge("check")
    assert done.code == 2
    assert "FAILED   connection: cannot connect to the publisher" in done.out
    assert done.out.rstrip().endswith("1 failed")


def test_a_subscription_that_does_not_exist(pgbridge, tmp_path):
    configure(tmp_path, "host=/nonexistent")
    assert pgbridge("check", "none").code == 2


def test_the_script_without_a_server(pgbridge, tmp_path):
    configure(tmp_path, f"host=/nonexistent dbname=shop user=repl password={SECRET}")
    done = pgbridge("check", "--sql")
    assert done.code == 0
    assert 'CREATE ROLE "repl" LOGIN REPLICATION;' in done.out
    assert 'GRANT CONNECT ON DATABASE "shop" TO "repl";' in done.out
    assert SECRET not in done.out


@pytest.mark.parametrize(("terminal", "shown"), [(True, r"\x1B[31m"), (False, "\x1b[31m")])
def test_a_terminal_is_not_ordered_about_by_the_script(pgbridge, tmp_path, monkeypatch, terminal, shown):
    """A file gets the name as it is."""
    configure(tmp_path, "host=/nonexistent dbname=shop user='\x1b[31m'")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert f'CREATE ROLE "{shown}" LOGIN' in pgbridge("check", "--sql").out


def test_with_a_server(pgbridge, tmp_path, publisher):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    configure(tmp_path, make_conninfo(publisher.conninfo))
    done = pgbridge("check", "--json")
    found = json.loads(done.out)["subscriptions"][0]["findings"]
    assert [one for one in found if one["level"] == "failure"] == []
    assert done.code in {0, 1}
    assert 'GRANT SELECT ON "public"."t"' in pgbridge("check", "--sql").out


def test_a_statement_stands_on_a_line_of_its_own_to_be_copied():
    finding = {
        "subject": "wal_level",
        "level": "failure",
        "message": "it is minimal",
        "remedy": "run",
        "statement": "S;",
    }
    document = {
        "exit_code": 2,
        "machine": [{**finding, "subject": "Java", "level": "pass", "remedy": "", "statement": ""}],
        "subscriptions": [{"name": "[red]shop", "findings": [finding, {**finding, "level": "warning"}]}],
    }
    console = Console(width=20)
    with console.capture() as capture:
        console.print(report.render(document), soft_wrap=True)
    assert capture.get().splitlines() == [
        "this machine",
        "ok       Java: it is minimal",
        "",
        "subscription [red]shop",
        "FAILED   wal_level: it is minimal",
        "         run",
        "         S;",
        "warning  wal_level: it is minimal",
        "         run",
        "         S;",
        "",
        "1 passed, 1 warnings, 1 failed",
    ]
