"""What commands print, as text and as JSON.

Exit codes and examples in `--help`; test_docs.py holds that the examples are command lines.
"""

from __future__ import annotations

import json

import pytest
import typer
from rich.text import Text

from pgbridge.bridge.service import cli, cli_shared
from pgbridge.bridge.service.cli_shared import echo, print_document

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


def test_every_command_has_an_entry_and_no_other():
    assert cli_shared.COMMANDS.keys() == {command.name or command.callback.__name__ for command in commands()}


def test_help_ends_with_exit_codes_and_an_example():
    epilogs = {command.name or command.callback.__name__: command.epilog for command in commands()}
    assert epilogs["skip"].startswith("Exit codes: 0 = done; 1 = an error; 2 = the command line")
    assert epilogs["skip"].endswith("Example: pgbridge skip shop_pub --lsn 0/2F52788")
    assert "; 130 = a second signal." in epilogs["run"]


def test_a_command_without_an_entry_is_an_error():
    app = typer.Typer()
    app.command("unheard-of")(lambda: None)
    with pytest.raises(KeyError, match="unheard-of"):
        cli_shared.add_epilogs(app)


def commands():
    """The registered commands."""
    return cli.app.registered_commands
