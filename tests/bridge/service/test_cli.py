"""The command line: its help, its usage errors, and the errors that all commands have.

What each command does and prints is tested in tests/bridge/commands.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import typer

from pgbridge.bridge.catalog.schema import SCHEMA_VERSION
from pgbridge.bridge.runtime import __version__
from pgbridge.bridge.runtime.supervisor import StopSignals
from pgbridge.bridge.service import cli
from tests.fix_cli import TWO, catalog_of

if TYPE_CHECKING:
    from pgbridge.bridge.config import config

GROUP: Any = typer.main.get_command(cli.app)
COMMANDS: dict[str, Any] = GROUP.commands


# --- help and version -------------------------------------------------------------------------------------------------


def test_version(pgbridge):
    assert pgbridge("--version") == (0, f"pgbridge {__version__}\n", "")


def test_commands_of_the_contract():
    """Those that this version has; a new one is added to this list with its tests."""
    assert set(COMMANDS) == {
        "init",
        "check",
        "prepare",
        "run",
        "reload",
        "status",
        "publications",
        "enable",
        "disable",
        "skip",
        "recover",
        "replay",
        "refresh",
        "resync",
        "drop",
        "origin",
        "snapshot",
        "verify",
        "wait",
        "demo",
    }


def test_help_names_every_command(pgbridge):
    code, out, _ = pgbridge("--help")
    assert code == 0
    assert all(f" {name} " in out for name in COMMANDS)


def test_no_command_is_a_question_for_help(pgbridge):
    code, out, err = pgbridge()
    assert code == 2
    assert "Usage:" in out + err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_every_command(pgbridge, name):
    """With a sentence for the command and for each of its options."""
    code, out, _ = pgbridge(name, "--help")
    assert code == 0
    assert " ".join(str(COMMANDS[name].help).split()) in " ".join(out.split())
    for parameter in COMMANDS[name].params:
        assert getattr(parameter, "help", None), f"{parameter.name} has no help"
        if parameter.param_type_name == "option":
            assert parameter.opts[0] in out


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"demo"}))
def test_every_command_takes_config(name):
    (option,) = [parameter for parameter in COMMANDS[name].params if "--config" in parameter.opts]
    assert option.default == (None if name == "prepare" else Path("pgbridge.toml"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["status", "--jsno"], "No such option: --jsno"),
        (["enable"], "Missing argument 'SUB'"),
        (["init", "--connection", "x"], "Missing option '--publication'"),
    ],
)
def test_usage_errors(pgbridge, arguments, text):
    """On standard error, with what was wrong and where help is."""
    code, out, err = pgbridge(*arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert "--help" in err


# --- configuration and state errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["enable", "shop"], ["disable", "shop"]])
def test_missing_configuration(pgbridge, tmp_path, arguments):
    """Exit code 2, one message on standard error, no stack trace, and nothing is made."""
    code, out, err = pgbridge(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(
        "pgbridge: configuration file pgbridge.toml does not exist\nHINT:  write one with: pgbridge init"
    )
    assert list(tmp_path.iterdir()) == []


def test_configuration_errors_name_the_key(two, tmp_path):
    (tmp_path / "pgbridge.toml").write_text(TWO + 'binray = true\norigin = "local"\n')
    code, out, err = two("status")
    assert (code, out) == (2, "")
    assert err.count("pgbridge.toml: subscription.hr.") == 2
    assert 'did you mean "binary"?' in err
    assert 'allowed values: "any" or "none"' in err


def test_state_that_cannot_be_used(two, tmp_path):
    """Exit code 1: the file is right, the machine is not."""
    (tmp_path / "state").write_text("no folder")
    code, out, err = two("status")
    assert (code, out) == (1, "")
    assert err.startswith("pgbridge: state catalog ")
    assert "HINT:  state_dir must be a folder" in err


def test_state_of_a_later_version(two, tmp_path):
    with catalog_of(tmp_path) as catalog:
        catalog._database.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    code, _, err = two("disable", "shop")
    assert code == 1
    assert "written by a later version of pgbridge" in err


@pytest.mark.parametrize(
    "command",
    [
        ["enable"],
        ["disable"],
        ["skip", "--lsn", "0/1"],
        ["replay", "--lsn", "0/1"],
        ["refresh"],
        ["origin"],
        ["publications"],
    ],
)
def test_unknown_subscription(two, command):
    code, out, err = two(*command, "shopp")
    assert (code, out) == (2, "")
    assert err == 'pgbridge: subscription "shopp" does not exist (known: "shop", "hr")\n'


# --- run, demo --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("option", ["", "--until-caught-up", "--standby"])
def test_run(two, monkeypatch, tmp_path, code, option):
    """The daemon gets the configuration and the wish; its exit code is the command's."""
    started: list[tuple[Path, dict[str, Any]]] = []

    class Daemon:
        def __init__(
            self, settings: config.Config, _signals: StopSignals, *, bars: None, read: Any, **wish: Any
        ) -> None:
            assert bars is None  # standard error is no terminal
            assert read() == settings
            started.append((settings.state_dir, wish))

        def run(self) -> Any:
            return code

    monkeypatch.setitem(sys.modules, "pgbridge.bridge.service.daemon", SimpleNamespace(Daemon=Daemon))
    monkeypatch.setattr("pgbridge.bridge.runtime.log.configure", lambda: None)
    monkeypatch.setattr(StopSignals, "install", lambda self: self)
    assert two("run", *filter(None, [option])).code == code
    wish = {"until_caught_up": option == "--until-caught-up", "standby": option == "--standby"}
    assert started == [(tmp_path / "state", wish)]


def test_a_standby_has_no_end(two):
    assert "--standby waits for another daemon's end" in two("run", "--standby", "--until-caught-up").err
    assert "--unfenced goes with --standby" in two("run", "--unfenced").err


def test_demo(pgbridge, monkeypatch):
    started: list[tuple[Path, float]] = []

    def run_demo(directory: Path, seconds: float) -> int:
        started.append((directory, seconds))
        return 3

    show = SimpleNamespace(run_demo=run_demo, serve=lambda tell: tell("a connection string"))
    monkeypatch.setattr("pgbridge.bridge.demo.show", show, raising=False)
    monkeypatch.setitem(sys.modules, "pgbridge.bridge.demo.show", show)
    assert pgbridge("demo", "--directory", "x", "--seconds", "5").code == 3
    assert started == [(Path("x"), 5.0)]
    assert pgbridge("demo", "--seconds", "-3").code == 2
    assert pgbridge("demo", "--server-only").out == "a connection string\n"
    assert len(started) == 1


def test_light_commands_start_without_spark(tmp_path):
    """Nor do they load it: seconds, for a look at the status. And `python -m bridge` is the same command."""
    (tmp_path / "pgbridge.toml").write_text(TWO)
    program = (
        "import runpy, sys\n"
        "sys.argv = ['pgbridge', 'status', '--json']\n"
        "try:\n    runpy.run_module('bridge', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'pyspark', 'delta', 'pandas', 'py4j'}), file=sys.stderr)\n"
    )
    environment = {"PYTHONPATH": str(Path(cli.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert tomllib.loads(TWO)["subscription"].keys() == {
        item["name"] for item in json.loads(done.stdout)["subscriptions"]
    }
    assert done.stderr == "[]\n"


def test_an_error_does_not_order_the_terminal_about(pgbridge):
    code, _, err = pgbridge("status", "--config", "\x1b[31m.toml")
    assert (code, err.splitlines()[0]) == (2, r"pgbridge: configuration file \x1B[31m.toml does not exist")


def test_short_options(pgbridge):
    assert pgbridge("-V") == pgbridge("--version")
    assert pgbridge("-h") == pgbridge("--help")
    assert pgbridge("status", "-h") == pgbridge("status", "--help")
    assert "configuration file nowhere.toml does not exist" in pgbridge("status", "-c", "nowhere.toml").err


@pytest.mark.parametrize(
    ("words", "completed"),
    [("pgbridge enable s", ["shop"]), ("pgbridge skip ", ["shop", "hr"]), ("pgbridge enable -c none.toml ", [])],
)
def test_a_shell_completes_the_names_of_subscriptions(tmp_path, words, completed):
    (tmp_path / "pgbridge.toml").write_text(TWO)
    done = subprocess.run(
        [sys.executable, "-c", "from pgbridge.bridge.service.cli import app; app(prog_name='pgbridge')"],
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "_PGBRIDGE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == completed
