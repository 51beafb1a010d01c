"""The server answers what it should to whom it should, and nothing else.

Without `[http]` there is nothing; with it the port is taken before Spark starts, and given back.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.request
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.config.daemon_tables import Http
from pgbridge.bridge.monitor import server as module
from pgbridge.bridge.monitor.observations import Observations
from pgbridge.bridge.monitor.server import Access, Monitor, Server
from pgbridge.bridge.runtime.errors import ConfigError, StateError
from pgbridge.bridge.runtime.observer import Observer
from tests.bridge.made_daemon import wait_until
from tests.bridge.monitor.fixtures import NAMES, SECRET


@pytest.fixture
def serve(view):
    """Starts servers with a token or without."""
    made = []

    def start(token: str | None = None) -> Server:
        server = Server("127.0.0.1", 0, Access("127.0.0.1", token), view)
        server.start()
        made.append(server)
        return server

    yield start
    for server in made:
        server.close()


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read().decode()


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/metrics", 200, "text/plain"),
        ("/healthz", 200, "application/json"),
        ("/readyz", 503, "application/json"),
        ("/status.json", 200, "application/json"),
        ("/", 200, "text/html"),
        ("/?x=1", 200, "text/html"),
        ("/page.html", 404, "application/json"),
        ("/../../etc/passwd", 404, "application/json"),
    ],
)
def test_paths(serve, path, status, kind):
    found, headers, body = ask(serve(), path)
    assert found == status
    assert headers["Content-Type"].startswith(kind)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["Cache-Control"] == "no-store"
    assert SECRET not in body


def test_ready_names_who_is_not(serve):
    _, _, body = ask(serve(), "/readyz")
    (reason,) = json.loads(body)["not_ready"]
    assert (reason["subscription"], reason["state"]) == ("crm", "error")


def test_a_head_has_no_body(serve):
    status, headers, body = ask(serve(), "/status.json", "HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) > 100


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(serve, method):
    status, headers, body = ask(serve(), "/status.json", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert json.loads(body) == {"error": "405 Method Not Allowed"}


@pytest.mark.parametrize("headers", [{"Content-Length": "5"}, {"Transfer-Encoding": "chunked"}])
def test_a_request_with_a_body_is_refused(serve, headers):
    assert ask(serve(), "/status.json", **headers)[0] == 400


def test_the_token(serve):
    server = serve("word")
    for path in ("/metrics", "/readyz", "/status.json", "/", "/none"):
        status, headers, body = ask(server, path)
        assert status == 401
        assert headers["WWW-Authenticate"].startswith("Basic")
        assert "shop" not in body
        assert ask(server, path, Authorization="Bearer word")[0] != 401
    assert ask(server, "/healthz")[0] == 200


def test_another_name_on_loopback_is_not_answered(serve):
    """A page of the internet whose name leads to 127.0.0.1 gets nothing."""
    status, _, body = ask(serve(), "/status.json", Host="evil.example")
    assert (status, "shop" in body) == (421, False)


def test_a_loop_that_hangs_is_not_alive(serve, monkeypatch):
    server = serve()
    server.turned_s -= 100
    assert ask(server, "/healthz")[0] == 503
    server.turn()
    assert ask(server, "/healthz")[0] == 200


def test_a_catalog_that_cannot_be_read(serve, view, monkeypatch):
    def fails(*_):
        raise StateError("the disk is full", retry=True)

    monkeypatch.setattr(view.catalog, "subscription", fails)
    server = serve()
    assert ask(server, "/status.json")[0] == 503
    assert json.loads(ask(server, "/readyz")[2]) == {"error": "the disk is full"}
    assert ask(server, "/metrics")[0] == 200


def test_hostile_names_are_data(serve):
    tables = json.loads(ask(serve(), "/status.json")[2])["subscriptions"][0]["tables"]
    assert {table["name"] for table in tables} >= {f"public.{name}" for name in NAMES}
    assert "<script>alert" not in ask(serve(), "/")[2]


def test_each_page_has_its_own_nonce(serve):
    server = serve()
    _, one, body = ask(server, "/")
    _, other, _ = ask(server, "/")
    nonce = one["Content-Security-Policy"].partition("nonce-")[2].partition("'")[0]
    assert body.count(f'nonce="{nonce}"') == 2
    assert "{{nonce}}" not in body
    assert one["Content-Security-Policy"] != other["Content-Security-Policy"]


def test_a_reader_that_hangs_does_not_hold_up_others_or_the_end(serve, monkeypatch):
    monkeypatch.setattr(module._Handler, "timeout", 60)
    server = serve()
    with closing(socket.create_connection(("127.0.0.1", server.port))) as silent:
        silent.sendall(b"GET / HT")
        assert ask(server, "/healthz")[0] == 200
        closer = threading.Thread(target=server.close)
        closer.start()
        closer.join(10)
        assert not closer.is_alive()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x00 not http\r\n\r\n", 400),
        (b"<script>alert(1)</script> / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET /" + b"x" * 65_535 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
    ],
    ids=["binary", "method", "version", "path", "headers"],
)
def test_bytes_that_are_no_request(serve, sent, status):
    """The answer repeats nothing of them, and has the headers of every answer."""
    server = serve()
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as client:
        client.sendall(sent)
        answer = client.recv(10_000)
    assert answer.startswith(f"HTTP/1.0 {status} ".encode())
    assert b"nosniff" in answer
    assert b"script" not in answer
    assert ask(server, "/healthz")[0] == 200


def test_a_request_that_comes_byte_by_byte_has_an_end(serve, monkeypatch):
    monkeypatch.setattr(module._Handler, "timeout", 0.5)
    server = serve()
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=0.1)) as slow:
        for _ in range(100):
            try:
                slow.sendall(b"x")
                assert slow.recv(10) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                pass
            break  # it is closed, unanswered
        else:
            pytest.fail("it is still read")


def test_slow_clients_do_not_keep_out_one_that_asks(serve):
    """50 that send half a request, and come again as soon as they are put out; each probe is answered meanwhile."""
    server = serve()
    over = threading.Event()

    def slow() -> None:
        while not over.is_set():
            with suppress(OSError), closing(socket.create_connection(("127.0.0.1", server.port), timeout=0.2)) as one:
                one.sendall(b"GET / HT")
                while not over.is_set():
                    with suppress(TimeoutError):
                        if not one.recv(1):
                            break

    clients = [threading.Thread(target=slow) for _ in range(module._CONNECTIONS)]
    for client in clients:
        client.start()
    wait_until(lambda: len(server._http._open) == module._CONNECTIONS)
    try:
        assert [ask(server, "/healthz")[0] for _ in range(79)] == [200] * 79
        assert len(server._http._open) <= module._CONNECTIONS
    finally:
        over.set()
        for client in clients:
            client.join()


def test_a_port_that_is_taken(serve, view):
    with pytest.raises(ConfigError, match="cannot be listened on") as caught:
        Server("127.0.0.1", serve().port, Access("127.0.0.1", None), view)
    assert "another port" in caught.value.hint


def test_ipv6(view):
    try:
        server = Server("::1", 0, Access("::1", None), view)
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    server.start()
    with closing(server), closing(http.client.HTTPConnection("::1", server.port, timeout=10)) as connection:
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200


def test_nothing_without_a_table(view):
    with Monitor(None, view.sources) as monitor:
        monitor.start(view.catalog)
        monitor.turn()
        assert type(monitor.observer("shop")) is Observer


def test_it_serves(view):
    with Monitor(Http(listen="127.0.0.1:0"), view.sources) as monitor, capture_logs() as events:
        monitor.start(view.catalog)
        monitor.turn()
        observer = monitor.observer("shop")
        assert isinstance(observer, Observations)
        assert monitor.observer("shop") is observer  # its next worker's, too
        url = events[0]["url"]
        with urllib.request.urlopen(f"{url}healthz", timeout=10) as response:
            assert response.status == 200
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}healthz", timeout=10)


def test_a_jvm_that_hangs_holds_up_no_scrape(view):
    hangs = threading.Event()
    sources = replace(view.sources, heap=lambda: hangs.wait(60) and None)
    with Monitor(Http(listen="127.0.0.1:0"), sources) as monitor, capture_logs() as events:
        monitor.start(view.catalog)
        with urllib.request.urlopen(f"{events[0]['url']}metrics", timeout=10) as response:
            text = response.read().decode()
    hangs.set()
    assert "pgbridge_lag_bytes{" in text
    assert "pgbridge_jvm_heap" not in text


def test_a_token_that_cannot_be_read(view, tmp_path):
    with (
        pytest.raises(ConfigError, match="token_file"),
        Monitor(Http(listen="127.0.0.1:0", token_file=str(tmp_path / "none")), view.sources) as monitor,
    ):
        monitor.start(view.catalog)
