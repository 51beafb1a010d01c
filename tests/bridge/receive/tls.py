"""TLS before the tests' server, whose programs are built without it; and the certificates for that.

libpq cannot tell the difference to a server with `ssl = on`: it asks for TLS in PostgreSQL's protocol, and everything
after the answer is encrypted.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import subprocess
import threading
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.runtime.threads import Closing

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Server

HOST: Final = "db.pgbridge.test"
"""The name in the certificate. It resolves nowhere: the tests give `hostaddr` beside it."""

_SSL_REQUEST: Final = struct.pack(">ii", 8, 80877103)
_GSSENC_REQUEST: Final = struct.pack(">ii", 8, 80877104)
_BYTES = 65_536


class Authority:
    """A certificate authority in a folder. `certificate` is its own; `issue` makes those of servers."""

    def __init__(self, folder: Path, name: str) -> None:
        self._key, self.certificate = folder / f"{name}.key", folder / f"{name}.pem"
        self._folder = folder
        _openssl(
            *_new_key(self._key, f"/CN={name}"), "-x509", "-days", "2", "-out", self.certificate,
            "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip

    def issue(self, host: str, *, days: int = 2) -> tuple[Path, Path]:
        """Return the files of a certificate for a host, and of its key."""
        key, request, made = (self._folder / f"{host}.{kind}" for kind in ("key", "csr", "pem"))
        extensions = self._folder / f"{host}.ext"
        extensions.write_text(f"subjectAltName=DNS:{host}\n")
        _openssl(*_new_key(key, f"/CN={host}"), "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
            "-days", str(days), "-extfile", extensions, "-out", made,
        )  # fmt: skip
        return made, key


def _new_key(key: Path, subject: str) -> list[str | Path]:
    return [
        "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-subj", subject
    ]  # fmt: skip


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


class TlsFront(Closing):
    """Listens on 127.0.0.1 with a certificate, and forwards what it decrypts to a server.

    Attributes:
        port: Where it listens.
        encrypted: How many connections it has encrypted.
    """

    def __init__(self, server: Server, certificate: Path, key: Path) -> None:
        self._server = server
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self.encrypted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="tls-front", daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that are open end with their clients."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:  # an SSLError is one
            while (request := client.recv(8, socket.MSG_WAITALL)) != _SSL_REQUEST:
                if request != _GSSENC_REQUEST:
                    return  # plain text
                client.sendall(b"N")
            client.sendall(b"S")
            with self._context.wrap_socket(client, server_side=True) as tls, self._connected() as server:
                self.encrypted += 1
                _forward(tls, server)

    def _connected(self) -> socket.socket:
        host, port = self._server.host, self._server.port
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(f"{host}/.s.PGSQL.{port}")
        return connected


def _forward(tls: ssl.SSLSocket, server: socket.socket) -> None:
    """In one thread for both directions: an SSL object is not for two."""
    while True:
        ready = [tls] if tls.pending() else select.select([tls, server], [], [])[0]
        for source, sink in ((tls, server), (server, tls)):
            if source in ready:
                data = source.recv(_BYTES)
                if not data:
                    return
                sink.sendall(data)
