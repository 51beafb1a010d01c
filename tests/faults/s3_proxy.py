"""An HTTP proxy before an S3 server: it is slow, answers 503, and cuts before or after a request arrives."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar, Literal

from pgbridge.bridge.runtime.threads import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Fault = Literal["slow down", "cut before", "cut after"]
"""The server's refusal; the connection is cut before the request arrives; or after, before its answer."""

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_PER_HOP = frozenset({"connection", "transfer-encoding", "keep-alive"})


@dataclass(frozen=True, slots=True)
class Request:
    """A request that came.

    Attributes:
        method: GET, PUT, …
        path: With its query.
        headers: In lower case.
        status: The answer's; 0 if there was none.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    status: int


class S3Proxy(Closing):
    """Forwards requests to an S3 server.

    Args:
        port: The server's, on this machine.

    Attributes:
        delay_s: How long each request is held back.
        fault: Decides on each request by its method and path.
        requests: Those that came, in order of their end.
    """

    def __init__(self, port: int) -> None:
        self.delay_s = 0.0
        self.fault: Callable[[str, str], Fault | None] = lambda _method, _path: None
        self.requests: list[Request] = []
        handler = type("Handler", (_Handler,), {"proxy": self, "server_port": port})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="S3 proxy", daemon=True).start()

    def once(self, fault: Fault, method: str, part: str, *, times: int = 1) -> Callable[[], int]:
        """Have the next requests with this method, and this text in their path, fail.

        Returns:
            A function that returns how often the fault still has to happen.
        """
        left = [fault] * times

        def decide(its_method: str, path: str) -> Fault | None:
            return left.pop() if left and its_method == method and part in path else None

        self.fault = decide
        return lambda: len(left)

    def heal(self) -> None:
        """Be as at the start."""
        self.delay_s = 0.0
        self.fault = lambda _method, _path: None

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: ClassVar[S3Proxy]
    server_port: ClassVar[int]

    def _handle(self) -> None:
        if self.headers.get("expect", "").lower() == "100-continue":
            pass  # the base class has answered it
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.proxy.delay_s:
            time.sleep(self.proxy.delay_s)
        fault = self.proxy.fault(self.command, self.path)
        status = 0
        if fault == "slow down":
            status = 503
            self._answer(status, {"content-type": "application/xml"}, _SLOW_DOWN)
        elif fault == "cut before":
            self._cut()
        else:
            status = self._forward(body, answer=fault is None)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.proxy.requests.append(Request(self.command, self.path, headers, status))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815 - the base class looks for these names

    def _forward(self, body: bytes, *, answer: bool) -> int:
        connection = HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {*_PER_HOP, "expect"}:
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            found = response.read()
            headers = {name: value for name, value in response.getheaders() if name.lower() not in _PER_HOP}
        except (OSError, HTTPException):
            self._cut()
            return 0
        finally:
            connection.close()
        if answer:
            self._answer(response.status, headers, found)
        else:
            self._cut()
        return response.status

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        with contextlib.suppress(OSError):  # the client is gone
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "content-length" not in {name.lower() for name in headers}:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing."""
