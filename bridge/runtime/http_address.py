"""Addresses to listen on, and which of them are this machine's own. Pure."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[address]:port`.

    Raises:
        ValueError: It is neither.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"must be host:port or [address]:port, not {text}")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"must be host:port, such as 127.0.0.1:9187, not {text}")
    return host, int(port)
