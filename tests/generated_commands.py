"""Pages that are made from `--help`: `python -m tests.generated_commands` writes docs/commands/ anew.

`test_docs.py` compares them. What a page cannot know from the help is here: where the documentation says more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from typer.main import get_command

from pgbridge.bridge.service import cli_shared
from pgbridge.bridge.service.cli import app

FOLDER: Final = Path(__file__).parents[1] / "docs" / "commands"
COMMANDS: Final[dict[str, Any]] = get_command(app).commands  # type: ignore[attr-defined]  # a group

MORE: Final = {
    "init": "setting-up.md#pgbridge-init",
    "check": "setting-up.md#pgbridge-check",
    "prepare": "setting-up.md#pgbridge-prepare",
    "run": "running.md#pgbridge-run",
    "reload": "running.md#pgbridge-reload",
    "status": "status.md",
    "publications": "publications.md#what-is-published-and-why",
    "enable": "running.md#pgbridge-enable-and-disable",
    "disable": "running.md#pgbridge-enable-and-disable",
    "skip": "errors.md#pgbridge-skip",
    "replay": "errors.md#pgbridge-replay",
    "recover": "failover.md#a-lost-state-directory",
    "refresh": "copying-again.md#pgbridge-refresh",
    "resync": "copying-again.md#pgbridge-resync",
    "drop": "copying-again.md#pgbridge-drop",
    "origin": "copying-again.md#pgbridge-origin",
    "wait": "status.md#pgbridge-wait",
    "snapshot": "snapshots.md#on-the-command-line",
    "verify": "verify.md",
    "demo": "../README.md#two-commands",
}
"""Where to read on, from docs/."""

_INDEX: Final = """\
# The commands

Each command's arguments, options, exit codes and an example, as the help of the command line has them.

| command | what it does |
|---|---|
{rows}

Without `--config FILE` a command reads `./pgbridge.toml`. `pgbridge --version` shows the version.

`check`, `reload`, `status`, `publications`, `enable`, `disable`, `skip`, `refresh`, `resync`, `drop`, `wait` and
`origin` work whether or not the daemon runs, and start no Spark. `snapshot` and `verify` start a Spark of their own,
beside the daemon's. `recover`, `replay`, `verify --repair`, `origin --advance` and `--upgraded` want the daemon
stopped.

## Exit codes

{codes}

A command's page has those that mean something else there.
"""


def pages() -> dict[str, str]:
    """Return the text of each file of docs/commands/, by its name."""
    rows = [f"| [`pgbridge {name}`]({name}.md) | {_paragraphs(COMMANDS[name])[0]} |" for name in COMMANDS]
    index = _INDEX.format(rows="\n".join(rows), codes=_exit_codes(cli_shared.USUAL))
    return {"README.md": index, **{f"{name}.md": _page(name) for name in COMMANDS}}


def _page(name: str) -> str:
    command = COMMANDS[name]
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join([f"pgbridge {name} [OPTIONS]", *filter(None, map(_usage, [*arguments, *options]))])
    rows = [f"| `{_named(parameter)}` | {_meaning(parameter)} |" for parameter in [*arguments, *options]]
    own = {**cli_shared.USUAL, **cli_shared.COMMANDS[name].exit_codes}
    table = "\n".join(["| argument or option | meaning |", "|---|---|", *rows])
    parts = [
        f"# pgbridge {name}",
        *_paragraphs(command),
        f"```\nUsage: {usage}\n```",
        table,
        _exit_codes(own),
        f"For example:\n\n```\n$ {cli_shared.COMMANDS[name].example}\n```",
        f"Read on in [{Path(MORE[name].partition('#')[0]).name}](../{MORE[name]}).",
    ]
    return "\n\n".join(parts) + "\n"


def _paragraphs(command: Any) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in str(command.help).split("\n\n")]


def _usage(parameter: Any) -> str:
    """Return how a required parameter, or an argument, is written on the command line; others stand in the table."""
    if parameter.param_type_name == "argument":
        return _named(parameter) if parameter.required else f"[{_named(parameter)}]"
    return _named(parameter) if parameter.required else ""


def _named(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar)
    off = parameter.secondary_opts if parameter.default is None else []  # else the default, which nobody writes
    names = " / ".join([*parameter.opts, *off])
    if parameter.is_flag:
        return names
    return f"{names} {parameter.metavar or parameter.name.upper()}"


def _meaning(parameter: Any) -> str:
    default = parameter.default
    shown = "" if default is None or isinstance(default, bool | list | tuple) else str(default).removesuffix(".0")
    needed = " Required." if parameter.required and parameter.param_type_name == "option" else ""
    return f"{parameter.help}{needed}" + (f" Default: `{shown}`." if shown else "")


def _exit_codes(codes: dict[int, str]) -> str:
    rows = [f"| {code} | {meaning} |" for code, meaning in sorted(codes.items())]
    return "\n".join(["| exit code | meaning |", "|---|---|", *rows])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in pages().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
