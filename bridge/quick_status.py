"""`pgbridge status --json` of a running daemon, without loading anything: scripts poll it.

The daemon answers on a Unix socket in its state directory, for the configuration that it runs. Where none answers, the
command itself looks.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

SOCKET = "status.sock"
_TIMEOUT_S = 20.0


def answer(arguments: list[str]) -> bytes | None:
    """Return what a running daemon answers.

    Args:
        arguments: The command line. Only `status --json`, with `--config FILE` or without, is answered.

    Returns:
        The document as text in JSON; None if it must be made otherwise: other arguments, a file that cannot be read, or
        no daemon that answers.
    """
    file = _config_file(arguments)
    if file is None:
        return None
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # the command itself says what is wrong
        return ask(state_dir(Path(file)))
    return None


def _config_file(arguments: list[str]) -> str | None:
    match arguments:
        case ["status", "--json"]:
            return "pgbridge.toml"
        case ["status", "--json", "--config", file] | ["status", "--config", file, "--json"]:
            return file
    return None


def state_dir(file: Path) -> Path:
    """Return the state directory of a configuration file.

    Raises:
        OSError, ValueError, RuntimeError: The file cannot be read, or is not TOML, or names a home that is not known.
    """
    import tomllib  # noqa: PLC0415 - for this command only

    name = tomllib.loads(file.read_text(encoding="utf-8")).get("state_dir", "state")
    return file.resolve().parent / Path(str(name)).expanduser()


def ask(folder: Path, timeout_s: float = _TIMEOUT_S) -> bytes | None:
    """Ask the daemon of a state directory for its status; None if its answer is cut off.

    Raises:
        OSError: None answers, or not in time.
    """
    with socket.socket(socket.AF_UNIX) as client, short_path(folder) as path:
        client.settimeout(timeout_s)
        client.connect(path)
        parts = []
        while part := client.recv(65_536):
            parts.append(part)
    text = b"".join(parts)
    return text if text.endswith(b"\n") else None  # cut off: the daemon was killed


@contextlib.contextmanager
def short_path(state_dir: Path):  # type: ignore[no-untyped-def] # noqa: ANN201 - typing takes as long as all the rest
    """Give the socket's path by way of a descriptor: a socket's address has 107 bytes at most, a path may have more."""
    folder = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)
