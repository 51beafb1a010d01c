"""A connection pooler before a server, which drops the startup options.

Each client has a session of the server's to itself, or for a transaction at a time. The server trusts the client.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

import psycopg

from pgbridge.bridge.runtime.threads import Closing

_STARTUP = 196608
_REPORTED = ("server_version", "server_encoding", "client_encoding", "DateStyle", "TimeZone", "integer_datetimes")
_KEPT = ("user", "database", "replication", "client_encoding")


class Pooler(Closing):
    """A pooler on a port of its own.

    Args:
        conninfo: The server, by its Unix socket.
        shared: Whether a session of the server's serves another client after each transaction.

    Attributes:
        dropped: The startup parameters that the server did not get.
    """

    def __init__(self, conninfo: str, *, shared: bool = False) -> None:
        with psycopg.connect(conninfo) as connection:
            info = connection.info
            self._path = f"{info.host}/.s.PGSQL.{info.port}"
            self._reported = {name: info.parameter_status(name) or "" for name in _REPORTED}
        self._shared = shared
        self._idle: list[socket.socket] = []  # the last one used is the next
        self._opened: list[socket.socket] = []
        self.dropped: set[str] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="pooler", daemon=True).start()

    def close(self) -> None:
        """End all sessions."""
        self._listener.close()
        for opened in self._opened:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._opened.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError, struct.error):
            startup = _exactly(client, struct.unpack(">I", _exactly(client, 4))[0] - 4)[4:].split(b"\0")
            parameters = dict(zip(startup[::2], startup[1::2], strict=False))
            kept = b"".join(k + b"\0" + v + b"\0" for k, v in parameters.items() if k.decode() in _KEPT) + b"\0"
            self.dropped |= {name.decode() for name in parameters if name} - set(_KEPT)
            server = None if self._shared else self._session(kept)
            reported = [_message(b"S", f"{n}\0{v}\0".encode()) for n, v in self._reported.items()]
            of_nobody = _message(b"K", struct.pack(">II", 1, int.from_bytes(os.urandom(4), "big")))
            client.sendall(_message(b"R", bytes(4)) + b"".join(reported) + of_nobody + _message(b"Z", b"I"))
            while True:
                first = _exactly(client, 5)
                server = server or (self._idle.pop() if self._idle else self._session(kept))
                _pass_on(first, client, server)
                while first[:1] not in b"QSX":
                    first = _exactly(client, 5)
                    _pass_on(first, client, server)
                status = _until_ready(server, client)
                if self._shared and status == b"I":
                    self._idle.append(server)
                    server = None

    def _session(self, parameters: bytes) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        self._opened.append(server)
        server.connect(self._path)
        body = struct.pack(">I", _STARTUP) + parameters
        server.sendall(struct.pack(">I", len(body) + 4) + body)
        _until_ready(server, None)
        return server


def _message(tag: bytes, body: bytes) -> bytes:
    return tag + struct.pack(">I", len(body) + 4) + body


def _exactly(opened: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = opened.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _pass_on(first: bytes, origin: socket.socket, target: socket.socket | None) -> bytes:
    """Pass on a message of which tag and length were read; returns its body."""
    body = _exactly(origin, struct.unpack(">I", first[1:])[0] - 4)
    if target is not None:
        target.sendall(first + body)
    return body


def _until_ready(server: socket.socket, client: socket.socket | None) -> bytes:
    """Pass on what the server answers; returns the transaction's status."""
    while True:
        first = _exactly(server, 5)
        body = _pass_on(first, server, client)
        if first[:1] == b"Z":
            return body
