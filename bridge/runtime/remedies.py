"""The pgbridge commands that messages, hints and `pgbridge status` name as the way on, as typed in a shell."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from pgbridge.bridge.runtime.errors import ApplyContext
    from pgbridge.protocol.lsn import Lsn

_CUT: Final = 200
"""Values of a conflict are shown up to this length."""

INIT: Final = "pgbridge init --connection … --publication … --warehouse …"
"""Writes a configuration file."""

DEFAULT_FILE: Final = Path("pgbridge.toml")
"""The configuration file that commands take by themselves, in the folder where they are typed."""

_config_file: Path | None = None


def use(config_file: Path) -> None:
    """Have the commands of this process name its configuration file, unless they take it by themselves."""
    global _config_file  # noqa: PLW0603 - a process has one, and whoever names a command need not know it
    _config_file = config_file.absolute()
    with suppress(OSError):  # the current folder may be gone
        if _config_file == DEFAULT_FILE.absolute():
            _config_file = None


def _pgbridge(*words: str) -> str:
    config = [] if _config_file is None else ["--config", str(_config_file)]
    return shlex.join(["pgbridge", *words, *config])


_OF_EXTRA: Final = re.compile(r"(.+?)\s*;\s*extra == [\"'](\w+)[\"']")
_OTHER_EXTRAS: Final = re.compile(r"pgbridge\[(.+)\]")


def install(extra: str) -> str:
    """Install what an extra needs, beside pgbridge: until it is published, its name on an index may be a stranger's."""
    wanted = _requirements(extra)
    return f"pip install {shlex.join(wanted or [f'.[{extra}]'])}"


def _requirements(extra: str) -> list[str]:
    """What an extra needs; nothing for a checkout that is not installed."""
    try:
        declared = importlib.metadata.requires("pgbridge") or ()
    except importlib.metadata.PackageNotFoundError:
        return []
    requirements = [match.groups() for line in declared if (match := _OF_EXTRA.fullmatch(line))]
    extras, wanted = [extra], []
    for each in extras:
        for requirement in (requirement for requirement, of in requirements if of == each):
            if others := _OTHER_EXTRAS.fullmatch(requirement):
                extras += others[1].split(",")  # the loop comes to them
            else:
                wanted.append(requirement)
    return wanted


def install_library(library: str) -> str:
    """Install what has a library that pgbridge itself does not require; a Spark that is there stays as it is."""
    delta = [each for each in _requirements("spark") if each.startswith("delta-spark")]
    if library.partition(".")[0] == "delta" and delta:
        with suppress(importlib.metadata.PackageNotFoundError):
            here = importlib.metadata.version("pyspark")
            return f"pip install {shlex.join([*delta, f'pyspark=={here}'])}"
    return install("spark" if library.partition(".")[0] in {"delta", "pandas", "py4j", "pyspark"} else "daemon")


def imported(module: str, what: str) -> ModuleType:
    """Import a module of pgbridge that needs libraries which pgbridge itself does not require.

    Args:
        module: Its name.
        what: What is asked for, as the user knows it.

    Raises:
        ImportError: A library is not installed; with what installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or module).startswith("pgbridge"):
            raise
        wanted = f"{what} needs {error.name}, which is not installed"
        raise ImportError(f"{wanted}; {install_library(error.name or '')}", name=error.name) from error


def run(*options: str) -> str:
    """Start the daemon."""
    return _pgbridge("run", *options)


def standby() -> str:
    """Start a daemon that waits for another machine's end."""
    return run("--standby")


def status() -> str:
    """See positions, states and problems."""
    return _pgbridge("status")


def check(*options: str) -> str:
    """See what is in the way."""
    return _pgbridge("check", *options)


def publications(subscription: str) -> str:
    """See what is published to a subscription."""
    return _pgbridge("publications", subscription)


def of_no_table(subscription: str) -> str:
    """Say what to do about a subscription that follows no table."""
    see = f"to see what its publications have, run: {publications(subscription)}"
    return f"{see}; correct their names, or add tables on the server; then run: {refresh(subscription)}"


def reload() -> str:
    """Have the daemon read its configuration file again."""
    return _pgbridge("reload")


def drop(subscription: str, option: str) -> str:
    """End a subscription for good."""
    return _pgbridge("drop", subscription, option)


def drop_slot(slot_name: str) -> str:
    """Drop a replication slot, in SQL on the server. The name has no quotes in it."""
    return f"SELECT pg_drop_replication_slot('{slot_name}');"


def of_conflict(table: str, key: Sequence[str], values: Sequence[str | None]) -> str:
    """Say what to do about a row that the target has already: first what loses nothing.

    Args:
        table: The Delta table in Spark SQL.
        key: The key's columns.
        values: Their values as text; one that may be cut cannot be looked for.
    """
    row = row_condition(key, values)
    remove = "remove the existing row, or have the stream overwrite it"
    if row is not None:
        statement = f"DELETE FROM {table} WHERE {row}"
        remove = f"to remove the existing row, stop the daemon and run in Spark: {statement}; or have it overwritten"
    return f'{remove}: set conflict = "apply_remote", then run: {reload()}'


def of_prepared_binary(subscription: str, context: ApplyContext) -> str:
    """Say what to do about a prepared transaction whose values were kept in a form that cannot be read."""
    skipped = f"to skip the transaction, run: {skip(subscription, context.finish_lsn)}"
    if context.relation is not None:
        skipped += f"; then, to have its changes, run: {resync(subscription, context.relation)}"
    return f"its values came in binary form when it was prepared, and are not sent again; {skipped}"


def row_condition(key: Sequence[str], values: Sequence[str | None]) -> str | None:
    """A condition in Spark SQL for the row with a key; None if one of the key's texts may be cut."""
    if any(value is None or len(value) >= _CUT or "\\" in value for value in values):
        return None
    texts = [str(value).replace("'", "\\'") for value in values]
    quoted = [name.replace("`", "``") for name in key]
    return " AND ".join(f"`{name}` = '{text}'" for name, text in zip(quoted, texts, strict=True))


def refresh(subscription: str) -> str:
    """Add tables that are published now, and remove those that are not."""
    return _pgbridge("refresh", subscription)


def resync(subscription: str, *tables: str) -> str:
    """Copy tables, each `namespace.name`, afresh."""
    return _pgbridge("refresh", subscription, *(word for table in tables for word in ("--resync", table)))


def enable(subscription: str) -> str:
    """Enable a subscription."""
    return _pgbridge("enable", subscription)


def disable(subscription: str) -> str:
    """Disable a subscription."""
    return _pgbridge("disable", subscription)


def start_afresh(subscription: str) -> str:
    """Copy all tables afresh, with another slot."""
    return _pgbridge("resync", subscription)


def recover(subscription: str = "") -> str:
    """Make a lost state directory anew, or a subscription's part of it."""
    return _pgbridge("recover", *filter(None, [subscription]))


def upgraded(subscription: str) -> str:
    """Go on with the server that pg_upgrade has made."""
    return _pgbridge("origin", subscription, "--upgraded")


def verify(subscription: str, *options: str) -> str:
    """Compare the tables with the server's."""
    return _pgbridge("verify", subscription, *options)


def of_difference(subscription: str, table: str) -> str:
    """Say how to see which rows of a table differ."""
    return f"to see which rows, run: {verify(subscription, '--table', table)}"


def skip(subscription: str, finish_lsn: Lsn | str, *options: str) -> str:
    """Skip the transaction that finished at an LSN."""
    return _pgbridge("skip", subscription, "--lsn", str(finish_lsn), *options)


def replay(subscription: str, finish_lsn: Lsn | str) -> str:
    """Apply a transaction that was skipped."""
    return _pgbridge("replay", subscription, "--lsn", str(finish_lsn))


def show_skipped(subscription: str, finish_lsn: Lsn | str) -> str:
    """Show the changes of a transaction that was skipped."""
    return skip(subscription, finish_lsn, "--show")
