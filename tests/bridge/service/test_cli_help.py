"""Exit codes and examples in `--help`; test_docs.py holds that the examples are command lines."""

from __future__ import annotations

import pytest
import typer

from bridge.service import cli, cli_help


def test_every_command_has_an_entry_and_no_other():
    assert cli_help.COMMANDS.keys() == {command.name or command.callback.__name__ for command in commands()}


def test_help_ends_with_exit_codes_and_an_example():
    epilogs = {command.name or command.callback.__name__: command.epilog for command in commands()}
    assert epilogs["skip"].startswith("Exit codes: 0 = done; 1 = an error; 2 = the command line")
    assert epilogs["skip"].endswith("Example: pgbridge skip shop_pub --lsn 0/2F52788")
    assert "; 130 = a second signal." in epilogs["run"]


def test_a_command_without_an_entry_is_an_error():
    app = typer.Typer()
    app.command("unheard-of")(lambda: None)
    with pytest.raises(KeyError, match="unheard-of"):
        cli_help.add_epilogs(app)


def commands():
    """The registered commands."""
    return cli.app.registered_commands
