"""The HTTP server: metrics, health and the status page, to read only; and who may read what.

It is the standard library's: a few requests a minute from a scraper and an operator, on loopback by default. It asks
for a token where one is configured; where none is, it answers only to loopback's own names. `Monitor` is what the
daemon has: nothing at all without an `[http]` table in the configuration.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import io
import json
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from socket import AF_INET, AF_INET6, SHUT_RDWR, socket
from typing import TYPE_CHECKING, Any, Final

from pgbridge.bridge.config.daemon_tables import read_secret
from pgbridge.bridge.monitor.document import not_ready
from pgbridge.bridge.monitor.view import Sources, View, exposition
from pgbridge.bridge.runtime import http_address, log, threads
from pgbridge.bridge.runtime.errors import ConfigError, StateError
from pgbridge.bridge.runtime.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.daemon_tables import Http

TURN_LIMIT_S: Final = 30.0
"""A daemon whose main loop has not turned for so long is not alive. It turns twice a second; starting Spark counts."""

_TIMEOUT_S: Final = 10.0
"""Within this time a whole request must have come, and within this time it must have taken its answer."""

_CONNECTIONS: Final = 50
"""At a time: the daemon needs its descriptors for the server and the tables. One more takes the place of the oldest, so
that clients which are slow, however many, cannot keep out one that asks and reads at once."""

_OPEN: Final = frozenset({"/healthz"})
"""What needs no token: an orchestrator's probe has none, and it tells nothing."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
_METHODS: Final = "GET, HEAD"
_JSON: Final = "application/json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    status: HTTPStatus
    kind: str
    body: bytes
    policy: str = "default-src 'none'; frame-ancestors 'none'"


def cannot_listen(host: str, port: int, error: Exception) -> ConfigError:
    """Return the error for an address that cannot be listened on."""
    return ConfigError(
        f"http.listen: {host}:{port} cannot be listened on: {error}",
        hint="another process may listen there: choose another port",
    )


class Server(threads.Closing):
    """Serves the view from threads of its own. The port is taken when it is made.

    Args:
        port: The port; 0 for any that is free.
        access: Who may read.
        view: What is shown.

    Raises:
        ConfigError: The address cannot be listened on.
    """

    def __init__(self, host: str, port: int, access: Access, view: View) -> None:
        self._view = view
        self.turned_s = time.monotonic()
        server = type("Server", (_Http,), {"address_family": AF_INET6 if ":" in host else AF_INET})
        handler = type("Handler", (_Handler,), {"access": access, "respond": staticmethod(self.respond)})
        try:
            self._http = server((host, port), handler)
        except (OSError, OverflowError) as error:
            raise cannot_listen(host, port, error) from error
        self._thread = threading.Thread(target=self._http.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._http.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def turn(self) -> None:
        """The daemon's main loop has turned."""
        self.turned_s = time.monotonic()

    def close(self) -> None:
        """Stop answering, and give the port back."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    def respond(self, path: str) -> Response:
        """Answer a path."""
        try:
            return self._respond(path)
        except StateError as error:
            return _json({"error": error.message}, HTTPStatus.SERVICE_UNAVAILABLE)

    def _respond(self, path: str) -> Response:
        if path == "/metrics":
            return Response(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", exposition(self._view))
        if path == "/healthz":
            alive = time.monotonic() - self.turned_s <= TURN_LIMIT_S
            return _json({"alive": alive}, HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE)
        if path == "/readyz":
            reasons = not_ready(self._view.sources.spark(), self._view.subscriptions())
            return _json(
                {"ready": not reasons, "not_ready": reasons},
                HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK,
            )
        if path == "/status.json":
            return _json(self._view.document())
        if path == "/":
            return _page()
        return _json({"error": "not found"}, HTTPStatus.NOT_FOUND)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a reader that hangs must not hold up the daemon's end
    request_queue_size = _CONNECTIONS

    def __init__(self, *args: Any) -> None:
        self._lock = threading.Lock()
        self._open: list[socket] = []  # the oldest first
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; the connection that is open for longest makes room."""
        with self._lock:
            self._open.append(request)
            if len(self._open) > _CONNECTIONS:
                with suppress(OSError):  # it may have ended
                    self._open.pop(0).shutdown(SHUT_RDWR)  # its thread ends by that
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that is answered, or that has no thread."""
        with self._lock, suppress(ValueError):  # it made room
            self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a reader that went away."""


class _Reader(io.RawIOBase):
    """Reads a request until a time that does not move, however slowly its bytes come."""

    def __init__(self, connection: socket, timeout_s: float) -> None:
        self._connection = connection
        self._end_s = time.monotonic() + timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server_version = "pgbridge"
    sys_version = ""
    timeout = _TIMEOUT_S
    access: Access
    respond: Callable[[str], Response]

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Reader(self.connection, self.timeout))

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's
        """Standard error is the daemon's log."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no request, or has another method; the base class calls it."""
        del message, explain  # they repeat what came
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        if self.request_version == "HTTP/0.9":
            self.request_version = "HTTP/1.0"  # or the answer would have no status
        self._send(_json({"error": f"{status.value} {status.phrase}"}, status))

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.send_error(HTTPStatus.BAD_REQUEST)  # nothing here takes a body
        elif not self.access.accepts_host(self.headers.get("Host")):
            self._send(_json({"error": "this name is not served here"}, HTTPStatus.MISDIRECTED_REQUEST))
        elif path not in _OPEN and not self.access.accepts(self.headers.get("Authorization")):
            self._send(_json({"error": "a token is needed"}, HTTPStatus.UNAUTHORIZED))
        else:
            self._send(self.respond(path))

    def _send(self, response: Response) -> None:
        self.close_connection = True
        self.connection.settimeout(self.timeout)
        self.send_response(response.status)
        headers = {
            **_HEADERS,
            "Content-Type": response.kind,
            "Content-Length": str(len(response.body)),
            "Content-Security-Policy": response.policy,
        }
        if response.status is HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = 'Basic realm="pgbridge", charset="UTF-8"'
        if response.status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = _METHODS
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)


def _json(document: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(status, _JSON, json.dumps(document).encode())


@cache
def page() -> str:
    """The page as one text, its style and script included; `{{nonce}}` stands where the nonce comes."""
    folder = resources.files(__package__)
    text, style, script = (
        folder.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    return text.replace("{{style}}", style).replace("{{script}}", script)


def _page() -> Response:
    """Return the page, with a nonce that lets only its own script and style run."""
    nonce = secrets.token_urlsafe(16)
    text = page()
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Response(HTTPStatus.OK, "text/html; charset=utf-8", text.replace("{{nonce}}", nonce).encode(), policy)


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
        if self.token is not None or not http_address.is_loopback(self.host):
            return True
        host = (header or "").rsplit(":", 1)[0] if not (header or "").endswith("]") else header or ""
        return http_address.is_loopback(host.strip("[]"))

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


class Monitor(threads.Closing):
    """Serves the daemon's state over HTTP.

    Args:
        http: The configuration; None for no server.
        sources: What it shows beside the catalog.

    Raises:
        ConfigError: From `start`: the port is taken, or the token cannot be read.
    """

    def __init__(self, http: Http | None, sources: Sources) -> None:
        self._http = http
        self._heap = threads.Latest(sources.heap)  # a JVM that hangs is when the other metrics are needed
        self._view = View(replace(sources, heap=self._heap.value))
        self._server: Server | None = None

    def start(self, catalog: Catalog) -> None:
        """Begin to answer, before Spark is started."""
        if self._http is None:
            return
        host, port = self._http.address
        token = None if self._http.token_file is None else read_secret("http.token_file", self._http.token_file)
        self._view.catalog = catalog
        self._server = Server(host, port, Access(host, token), self._view)
        self._server.start()
        self._heap.start()
        shown = f"[{host}]" if ":" in host else host
        log.get().info("serving metrics and the status page", url=f"http://{shown}:{self._server.port}/")

    def observer(self, subscription: str) -> Observer:
        """Return what a subscription's streams are to tell."""
        return Observer() if self._http is None else self._view.observations(subscription)

    def turn(self) -> None:
        """The daemon's main loop has turned."""
        if self._server is not None:
            self._server.turn()
            with suppress(StateError):  # the catalog cannot be read now: a gap in the plot
                self._view.sample()

    def close(self) -> None:
        """Stop answering."""
        self._heap.close()
        if self._server is not None:
            self._server.close()
