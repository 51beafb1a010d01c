"""What commands print, as text and as JSON."""

from __future__ import annotations

import json

from rich.text import Text

from bridge.commands.options import echo, print_document

DOCUMENT = {"tables": ["one", "t\x1b[31mwo"]}


def test_a_line_gives_a_terminal_no_orders(capsys):
    echo("public.t\x1b[31m: two\nlines")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("\n") == 1


def test_a_document_is_json_or_as_it_is_rendered(capsys):
    print_document(DOCUMENT, lambda _: Text(""), as_json=True)
    assert json.loads(capsys.readouterr().out) == DOCUMENT
    print_document(DOCUMENT, lambda given: Text(" ".join(given["tables"])), as_json=False)
    out = capsys.readouterr().out
    assert out.startswith("one t")
    assert "\x1b" not in out
