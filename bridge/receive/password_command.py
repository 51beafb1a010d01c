"""`password_command` in a connection string: a command whose output is the password, asked for at each connection.

It is a parameter of pgbridge's own, beside libpq's, so that it goes wherever a connection string does, as to the tasks
that copy a table. Tokens of RDS IAM, Entra and Cloud SQL are valid for minutes. The data source refuses it: whoever may
name the format in SQL could run commands on Spark's machines.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import Final
from urllib.parse import unquote

from pgbridge.bridge.runtime.errors import ConfigError, PublisherError

_NAME: Final = "password_command"
_TIMEOUT_S: Final = 30.0

_PAIR: Final = re.compile(r"\s*(?P<name>\w+)\s*=\s*(?P<value>'(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?=\s|$)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def apart(conninfo: str) -> tuple[str, str | None]:
    """Return a connection string or URI as libpq takes it, and the command in it; None if it has none.

    Raises:
        ConfigError: The command is empty, or there are two.
    """
    if _NAME not in conninfo:
        return conninfo, None
    if "://" in conninfo.partition("=")[0]:
        rest, commands = _apart_uri(conninfo)
    else:
        pairs = list(_PAIR.finditer(conninfo))
        commands = [_value(pair["value"]) for pair in pairs if pair["name"] == _NAME]
        if "".join(pair[0] for pair in pairs).strip() != conninfo.strip() or not commands:
            return conninfo, None  # libpq says what is wrong with it
        rest = "".join(pair[0] for pair in pairs if pair["name"] != _NAME).strip()
    if not commands:
        return conninfo, None
    if len(commands) > 1 or not commands[0].strip():
        raise ConfigError(f"connection: {_NAME} must be there once, and not empty")
    return rest, commands[0]


def _apart_uri(uri: str) -> tuple[str, list[str]]:
    place, _, query = uri.partition("?")
    parameters = [parameter.partition("=") for parameter in query.split("&")]
    rest = "&".join("".join(parameter) for parameter in parameters if parameter[0] != _NAME)
    return f"{place}?{rest}" if rest else place, [unquote(value) for name, _, value in parameters if name == _NAME]


def _value(text: str) -> str:
    return _ESCAPED.sub(r"\1", text[1:-1] if text.startswith("'") else text)


def asked(command: str) -> str:
    """Run a command in a shell, and return the first line of what it prints. Nothing of it is shown or logged.

    Raises:
        PublisherError: It fails, prints nothing, or takes too long; the next try may succeed.
    """
    # not a pipe: a process that the command leaves behind would keep it open
    with open(os.memfd_create(_NAME), "w+b") as output:  # noqa: PTH123 - a descriptor
        try:
            done = subprocess.run(  # noqa: S603 - the command is the operator's
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                check=False,
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise _failed(f"did not end within {_TIMEOUT_S:g} s") from None
        output.seek(0)
        printed = output.read()
    if done.returncode:
        raise _failed(f"ended with status {done.returncode}")
    lines = printed.decode(errors="replace").splitlines()
    if not lines or not lines[0]:
        raise _failed("printed no password")
    return lines[0]


def _failed(how: str) -> PublisherError:
    return PublisherError(
        f"cannot connect to the publisher: {_NAME} {how}",
        hint="run the command in a shell, as the user of pgbridge; its output is not shown here",
        retry=True,
    )
