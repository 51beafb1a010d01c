"""What arrives at a socket is read while nobody takes it, up to a bound; its end and its failure come last."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pgbridge.bridge.receive.stream.read_ahead import ReadAhead
from tests.bridge.receive.streams import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def reading(buffer_bytes: int) -> Iterator[tuple[socket.socket, ReadAhead]]:
    """A server's end of a socket, and what reads the other."""
    server, client = socket.socketpair()
    client.setblocking(False)
    with server, client, ReadAhead(client, buffer_bytes) as ahead:
        ahead.wait(0)  # from here on it reads
        yield server, ahead


def test_what_comes_before_the_first_wait_is_left_to_others():
    """Before the stream begins, libpq asks the server who it is, on the same socket."""
    server, client = socket.socketpair()
    client.setblocking(False)
    with server, client, ReadAhead(client, 4096) as ahead:
        server.sendall(b"an answer")
        assert client.recv(100) == b"an answer"
        server.sendall(b"a message")
        assert take(ahead, 9) == b"a message"


def take(ahead: ReadAhead, size: int) -> bytes:
    """Take so many bytes."""
    came = b""
    deadline = time.monotonic() + PATIENCE_S
    while len(came) < size and time.monotonic() < deadline:
        ahead.wait(0.1)
        came += b"".join(part.tobytes() for part in ahead.take())
    return came


def test_it_is_bounded_while_nobody_takes():
    """The server's end fills, and what was sent comes whole and in order once it is taken."""
    sent = np.arange(1 << 18, dtype=np.uint32).tobytes()
    with reading(4096) as (server, ahead):
        server.settimeout(0.3)
        done = 0
        with suppress(TimeoutError):
            while done < len(sent):
                done += server.send(sent[done : done + 1024])
        assert sum(map(len, ahead._arrived)) <= 5 * 4096
        assert done < len(sent)
        assert take(ahead, done) == sent[:done]
        assert server.send(b"x") == 1  # there is room again
        assert take(ahead, 1) == b"x"


def test_the_end_comes_after_what_was_sent():
    with reading(4096) as (server, ahead):
        server.sendall(b"last")
        server.close()
        assert take(ahead, 4) == b"last"
        assert ahead.wait(PATIENCE_S)
        assert (ahead.take(), ahead.ended_by) == ([], "server closed the connection unexpectedly")


def test_a_wait_ends_with_its_timeout():
    with reading(4096) as (_, ahead):
        started_s = time.monotonic()
        assert not ahead.wait(0.05)
        assert 0.04 < time.monotonic() - started_s < PATIENCE_S


def test_a_wait_is_ended_by_another_thread():
    """One that comes before the wait counts; what has arrived is told all the same."""
    with reading(4096) as (server, ahead):
        ahead.wake()
        assert not ahead.wait(PATIENCE_S)
        assert not ahead.wait(0.01)  # it counted once
        threading.Timer(0.05, ahead.wake).start()
        assert not ahead.wait()
        server.sendall(b"x")
        assert ahead.wait(PATIENCE_S)
        ahead.wake()
        assert ahead.wait(PATIENCE_S)


def test_a_failure_of_the_thread_reaches_who_takes(monkeypatch):
    with reading(4096) as (server, ahead):
        monkeypatch.setattr(ahead, "_read", lambda: 1 / 0)
        server.sendall(b"x" * 5000)
        ahead._thread.join(PATIENCE_S)
        assert ahead.wait(0)
        with pytest.raises(ZeroDivisionError):
            ahead.take()


def test_it_closes_while_nothing_comes_and_while_it_is_full():
    for sent in (b"", bytes(100_000)):
        with reading(1024) as (server, ahead):
            server.setblocking(False)
            for at in range(0, len(sent), 1000):
                try:
                    server.send(sent[at : at + 1000])
                except BlockingIOError:
                    break
            started_s = time.monotonic()
        assert not ahead._thread.is_alive()
        assert time.monotonic() - started_s < PATIENCE_S
