"""`pgbridge init`: writes a short, commented configuration file."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from pgbridge.bridge.config import config
from pgbridge.bridge.receive.connection import has_password
from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.bridge.targets.location import table_location

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TEMPLATE = """\
# pgbridge: which PostgreSQL publications to follow, and where their Delta tables go.
# Paths are relative to this file.
state_dir = "state"                # how far each subscription is; keep it with the warehouse

[spark]
master = "local[*]"                # or spark://…, yarn, k8s://…, sc://… (Spark Connect)

[subscription.{key}]
# Over a network add sslmode=verify-full sslrootcert=…, so that libpq knows it talks to the right server.
# The password belongs in ~/.pgpass.
connection = {connection}
publications = [{publications}]
warehouse = {warehouse}      # public.t1 becomes the Delta table {example}

# PostgreSQL's subscription options, with their defaults:
# slot_name = "{slot_name}"        # created on the server at the first start
# create_slot = true               # false: use an existing slot, from where it stands
# copy_data = true                 # copy the rows that the tables have at the start
# binary = true                    # transfer values in binary form where possible
# streaming = "off"                # "on": receive large transactions while they run
# two_phase = false                # true: receive prepared transactions at PREPARE TRANSACTION
# disable_on_error = false         # true: an error of a copy or of applying disables the subscription

# pgbridge's own:
# messages = "log"                 # pg_logical_emit_message: "off", "log", or "table" (<warehouse>/pgbridge/messages)
"""

_ANOTHER_FILE = "remove it, or choose another file with --config"
_PRIVATE, _USUAL = 0o600, 0o666  # the umask takes its part off


def write(config_file: Path, *, name: str, connection: str, publications: Sequence[str], warehouse: str) -> None:
    """Write a configuration file with one subscription; only its owner can read it if it has a password.

    Args:
        name: The subscription's name; empty for the first publication's, as far as it can be one.
        connection: The publisher's connection string.
        publications: Publications to subscribe to.
        warehouse: Folder or URI for the Delta tables.

    Raises:
        ConfigError: The file exists or cannot be written, or a value is not allowed. No new file is left behind.
    """
    name = name or config.default_slot_name(publications[0])
    text = _TEMPLATE.format(
        key=name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name),
        slot_name=config.default_slot_name(name),
        connection=_toml(connection),
        publications=", ".join(map(_toml, publications)),
        warehouse=_toml(warehouse),
        example=_example(warehouse),
    )
    try:
        _create(config_file, text, mode=_PRIVATE if has_password(connection) else _USUAL)
    except FileExistsError:
        raise ConfigError(f"{config_file} already exists", hint=_ANOTHER_FILE) from None
    except OSError as error:
        raise ConfigError(f"configuration file {config_file} cannot be written: {error.strerror}") from error
    try:
        config.load(config_file)
    except ConfigError:
        config_file.unlink()
        raise


def _example(warehouse: str) -> str:
    with suppress(ValueError):
        return table_location(warehouse, "public", "t1")
    return warehouse  # it is refused below


def _create(file: Path, text: str, *, mode: int) -> None:
    """Write a file that does not exist yet."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)


def _toml(text: str) -> str:
    """A string in TOML, which has JSON's escapes but no surrogates."""
    return json.dumps(text, ensure_ascii=False)
