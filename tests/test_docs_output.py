"""What README.md and docs/ show as output is what the programs print, as far as that can be held without a run."""

from __future__ import annotations

import ast
import io
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pgbridge.bridge.commands import origin, publications, status
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.service.cli import app
from pgbridge.bridge.service.replay import show
from pgbridge.bridge.skipped.replay import Preview, RowPreview, TablePreview, lines_of
from pgbridge.bridge.snapshots import snapshot
from pgbridge.bridge.verify import command as verify
from pgbridge.protocol.codec.messages import Column, Relation, Update
from pgbridge.protocol.lsn import Lsn
from tests.bridge.batch.streamed import LOG, batcher, subscribed, text, transaction
from tests.bridge.monitor.status_document import problem
from tests.bridge.skipped.kept import kept, types
from tests.documented import block_with

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO = (ROOT / "docs/demo.md").read_text(encoding="utf-8")
SETTING_UP, RUNNING, STATUS, ERRORS, COPYING, PUBLICATIONS, SCHEMA_CHANGES, VERIFY, SNAPSHOTS = (
    (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for page in (
        "setting-up",
        "running",
        "status",
        "errors",
        "copying-again",
        "publications",
        "schema-changes",
        "verify",
        "snapshots",
    )
)
HOLE = "\0"


@cache
def templates(folder: str) -> frozenset[str]:
    """All strings of a folder's sources, or of a file, with a hole for each value that is put in."""
    found = set()
    for path in [ROOT / folder] if folder.endswith(".py") else (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [
                (part.value if isinstance(part.value, str) else "") if isinstance(part, ast.Constant) else HOLE
                for part in parts
                if isinstance(part, ast.Constant | ast.FormattedValue)
            ]
            found.add("".join(texts))
    return frozenset(found)


def told(text: str, sources: frozenset[str]) -> bool:
    """Whether one of the sources makes this text; words that are put into it must come from a source, too."""
    for template in sources:
        pieces = template.split(HOLE)
        if not "".join(pieces).strip() or not all(piece in text for piece in pieces):
            continue
        pattern = re.escape(template).replace(re.escape(HOLE), "(.*?)")
        match = re.fullmatch(pattern, text)
        if match and all(" " not in value.strip() or told(value, sources) for value in match.groups()):
            return True
    return False


def printed(renderable: object, *, soft_wrap: bool = False) -> list[str]:
    """What a command prints on a terminal of 80 columns."""
    output = io.StringIO()
    console = Console(file=output, width=80, force_terminal=True, color_system=None)
    console.print(renderable, crop=False, soft_wrap=soft_wrap)
    return [line.rstrip() for line in output.getvalue().rstrip().splitlines()]


def verified(relation: str, rows: int) -> dict[str, Any]:
    """A table of `pgbridge verify --json` that is equal."""
    nothing: dict[str, Any] = {
        "could_not": None,
        "changelog": False,
        "left_out": 0,
        "partly": False,
        "differences": {},
        "shown": [],
    }
    return {"relation": relation, "rows": rows, "equal": True} | nothing


# --- the demo -------------------------------------------------------------------------------------------------------


def demo_lines() -> list[str]:
    """The page's, with what stands on a second line put back."""
    return re.sub(r"\n {8}(?=\S)", " ", "\n".join(block_with(DEMO, "$ make demo"))).splitlines()


def test_demo_tells_the_events():
    events = [line[8:] for line in demo_lines() if re.match(r" *\d+ s  ", line)]
    assert len(events) > 10
    assert [event for event in events if not told(event, templates("bridge/demo"))] == []


def test_demo_prints_the_verdicts():
    lines = [line for line in demo_lines() if not re.match(r" *\d+ s  ", line)]
    subscriptions: list[dict[str, Any]] = []
    for words in (line.split() for line in lines):
        if words[1:3] == ["as", "of"]:
            subscriptions.append({"subscription": words[0].rstrip(":"), "lsn": words[3], "tables": []})
        elif words[0] != "table":
            rows = int(words[1].replace(",", ""))
            subscriptions[-1]["tables"].append(verified(words[0], rows))
    assert lines == printed(verify.render({"subscriptions": subscriptions}))


def test_a_changed_event_would_be_seen():
    sources = frozenset({f"kill -9 {HOLE}: pgbridge is dead{HOLE}", f", in the middle of {HOLE}"})
    assert told("kill -9 12: pgbridge is dead, in the middle of 0/1", sources)
    assert not told("kill -9 12: pgbridge is dead, at the end of 0/1", sources)
    assert not told("kill -9 12: pgbridge has died", sources)


# --- commands -------------------------------------------------------------------------------------------------------

ERROR = """\
column "placed": value 'infinity' cannot be represented: the column holds the years 0001 to 9999 only
CONTEXT:  processing remote data for replication origin "pgbridge_shop_pub" during message type "UPDATE" for \
replication target relation "public.orders" column "placed" in transaction 806, finished at 0/2F52788
HINT:  set unrepresentable = "null" to store NULL for such values"""


def subscription(state: str, remote: str, received: str, lag: int, errors: int, tables: str, error: str = ""):
    """A subscription of the status document."""
    skip = "to skip the transaction, run: pgbridge skip shop_pub --lsn 0/2F52788"
    said = problem("apply", error, "problem", time="2026-11-22T21:58:03+00:00", hint=skip)
    return {
        "name": "shop_pub",
        "state": state,
        "remote_lsn": remote,
        "received_lsn": received,
        "confirmed_flush_lsn": remote,
        "lag_bytes": lag,
        "skip_lsn": None,
        "apply_error_count": errors,
        "sync_error_count": 0,
        "problems": [said] if error else [],
        "conflicts": {},
        "tables": [
            {"name": f"public.{table}", "state": "r", "path": f"/srv/shop/lake/public/{table}"}
            for table in tables.split()
        ],
    }


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        (README, subscription("stopped", "0/2F4EEF8", "0/2F4EEF8", 14 << 10, 0, "orders")),
        (STATUS, subscription("streaming", "0/2F696C0", "0/2F696C0", 0, 3, "customers orders")),
        (ERRORS, subscription("error", "0/2F526E8", "0/2F527B8", 208, 3, "orders", ERROR)),
    ],
    ids=["caught up", "streaming", "error"],
)
def test_status(page, shown):
    assert block_with(page, "$ pgbridge status") == printed(status.render({"subscriptions": [shown]}))


def test_publications():
    targets: list[dict[str, object]] = [
        {"name": f"public.{table}", "columns": columns.split(), "filters": {}, "copy_filter": row_filter}
        for table, columns, row_filter in (
            ("customers", "id name vip", "(id < 400)"),
            ("orders", "id customer total placed", None),
        )
    ]
    every = {"publications": ["shop_pub"], "actions": ["insert", "update", "delete", "truncate"], "root": None}
    document = {
        "name": "shop_pub",
        "refused": None,
        "warnings": [],
        "notes": [],
        "targets": [{**every, "leaves": [], **target} for target in targets],
    }
    shown = printed(publications.render({"subscriptions": [document]}))
    assert block_with(PUBLICATIONS, "$ pgbridge publications") == shown


def test_origin():
    entry = {"subscription": "shop_pub", "external_id": "pgbridge_shop_pub", "remote_lsn": "0/2F696C0", "batch": None}
    assert block_with(COPYING, "$ pgbridge origin") == printed(origin.render({"origins": [entry]}))


@pytest.mark.parametrize("page", [README, SETTING_UP], ids=["README", "setting-up"])
def test_init(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = re.findall(r"^\$ pgbridge (init .*)$", page, re.MULTILINE)[0]
    result = CliRunner().invoke(app, shlex.split(command))
    assert block_with(page, f"$ pgbridge {command}")[0] == result.output.strip()
    if page is SETTING_UP:
        written = (tmp_path / "pgbridge.toml").read_text(encoding="utf-8")
        assert f"```toml\n{written}```\n" in page


@pytest.mark.parametrize(
    ("page", "command"),
    [
        (RUNNING, "disable shop_pub"),
        (ERRORS, "skip shop_pub --lsn 0/2F52788"),
        (COPYING, "refresh shop_pub"),
        (SCHEMA_CHANGES, "refresh shop_pub --resync public.events"),
    ],
)
def test_answers(page, command):
    lines = block_with(page, f"$ pgbridge {command}")
    assert lines
    assert [
        line for line in lines if not told(line, templates("bridge/commands") | templates("bridge/service/cli.py"))
    ] == []


def test_skip_show(tmp_path):
    """Rows of orders, as in the page's preview of the replay."""
    columns = [("id", 23, -1), ("customer", 25, -1), ("total", 1700, (10 << 16 | 2) + 4)]
    orders = Relation(1, "public", "orders", "d", tuple(Column(*one, is_key=one[0] == "id") for one in columns))
    update = Update(1, (text(2), text("customer 2"), text("120.00")))
    made = transaction(Lsn.parse("0/2F52788"), orders, update)
    made.xid, made.commit_time_us = 771, 849_067_929_441_570
    batch = batcher(subscribed(LOG)).form([made], Lsn(50))
    lines = block_with(ERRORS, "$ pgbridge skip shop_pub --lsn 0/2F52788 --show")
    assert list(show(kept(batch, tmp_path), types)) == lines


def test_replay():
    """`tests/oracle/test_skip.py` compares the lines with what a real replay then does."""
    updated = RowPreview("updated", {"id": 2}, {"total": "99.99"}, {"total": "120.00"})
    before, after = {"customer": "customer 7", "total": "1.75"}, {"customer": "customer 8", "total": "2.50"}
    rows = Preview(
        {"updated": 1, "overwritten": 1, "inserted": 1}, [updated, RowPreview("overwritten", {"id": 7}, before, after)]
    )
    lines = lines_of(TablePreview("public.orders", "/lake/public/orders", {"INSERT": 2, "UPDATE": 1}, None, rows))
    nothing = f"nothing is changed; to apply it, run: {remedies.replay('shop_pub', '0/2F52788')}"
    assert block_with(ERRORS, "$ pgbridge replay shop_pub --lsn 0/2F52788 --dry-run") == [*lines, nothing]


def test_snapshot():
    """tests/bridge/snapshots/test_snapshot.py runs the program of the same page."""
    lines = block_with(SNAPSHOTS, '$ pgbridge snapshot --at "2026-05-01 12:00:01"')
    tables = [
        {
            "table": line.split()[4],
            "version": int(line.split()[5]),
            "path": line.split()[6],
            "error": None,
            "view": None,
        }
        for line in lines[1:]
    ]
    one = {"subscription": "bank", "lsn": "0/1A2B3C8", "commit_time": "2026-05-01T12:00:00.123456+00:00"}
    output = io.StringIO()
    Console(file=output, width=120).print(snapshot.render({"snapshots": [one | {"tables": tables}]}))
    assert lines == [line.rstrip() for line in output.getvalue().splitlines()]


def test_verify():
    """tests/bridge/verify/test_verification.py plants these differences, and finds them."""
    columns = {"total": {"source": "99.99", "delta": "120.00"}}
    table = verified("public.orders", 8000) | {
        "equal": False,
        "differences": {"changed": 1, "missing": 1},
        "shown": [
            {"outcome": "missing", "key": {"id": "7"}, "columns": {}},
            {"outcome": "changed", "key": {"id": "2"}, "columns": columns},
        ],
    }
    document = {"subscriptions": [{"subscription": "shop_pub", "lsn": "0/2F52788", "tables": [table]}]}
    shown = block_with(VERIFY, "$ pgbridge verify shop_pub --table orders --max-rate 50MB")
    assert shown == printed(verify.render(document), soft_wrap=True)


# --- errors and remedies --------------------------------------------------------------------------------------------


def test_errors_with_remedies_are_those_of_the_sources():
    section = ERRORS[ERRORS.index("| error or warning |") :].partition("\n\n")[0]
    quoted = [text for row in section.splitlines()[2:] for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    sources = templates("bridge") | templates("protocol")
    missing = [
        text
        for text in quoted
        if not any(all(piece.strip() in template for piece in text.split("…")) for template in sources)
    ]
    assert len(quoted) > 20
    assert missing == []
