"""The text of a check: a statement stands on a line of its own, to be copied."""

from __future__ import annotations

from rich.console import Console

from bridge.commands.check import render


def test_render():
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
        console.print(render(document), soft_wrap=True)
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
