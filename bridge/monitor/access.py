"""Who may read what: a token where one is configured, and only loopback's own names where none is. Pure."""

from __future__ import annotations

import base64
import binascii
import hmac
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.runtime.errors import ConfigError
from bridge.runtime.http_address import is_loopback

if TYPE_CHECKING:
    from pathlib import Path

_OTHERS = 0o077


def read_token(path: Path) -> str:
    """Read the first line of a file that only its owner can read.

    Raises:
        ConfigError: It cannot be read, is empty, or others can read it.
    """
    try:
        if path.stat().st_mode & _OTHERS:
            raise ConfigError(f"http.token_file: others can read {path}", hint=f"chmod 600 {shlex.quote(str(path))}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"http.token_file: {path} cannot be read: {error}") from error
    if not lines or not lines[0].strip():
        raise ConfigError(f"http.token_file: the first line of {path} is empty", hint="put a long random word there")
    return lines[0].strip()


@dataclass(frozen=True, slots=True)
class Access:
    """Decides on requests.

    Attributes:
        host: The address that is listened on.
        token: What a request must bring; None for none.
    """

    host: str
    token: str | None

    def accepts_host(self, header: str | None) -> bool:
        """Whether a request's Host may be answered.

        A page of the internet can have its own name lead to 127.0.0.1 (DNS rebinding). So without a token, on loopback,
        only the names of loopback are answered.
        """
        if self.token is not None or not is_loopback(self.host):
            return True
        host = (header or "").rsplit(":", 1)[0] if not (header or "").endswith("]") else header or ""
        return is_loopback(host.strip("[]"))

    def accepts(self, authorization: str | None) -> bool:
        """Whether a request brings the token: as `Bearer`, or as the password of `Basic`, which a browser asks for."""
        if self.token is None:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode(), self.token.encode())
