"""The socket of the status: private, and harmless whatever its readers and the catalog do."""

from __future__ import annotations

import errno
import socket
import stat
from contextlib import closing

from bridge.errors import StateError
from bridge.quick_status import SOCKET, short_path
from bridge.status_socket import StatusSocket


def ask(folder) -> bytes:
    with closing(socket.socket(socket.AF_UNIX)) as client, short_path(folder) as path:
        client.settimeout(20)
        client.connect(path)
        return b"".join(iter(lambda: client.recv(1000), b""))


def test_only_its_owner_can_connect(tmp_path):
    with StatusSocket(tmp_path, dict) as served:
        served.start()
        assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600
        assert ask(tmp_path) == b"{}\n"
    assert not (tmp_path / SOCKET).exists()


def test_a_status_that_fails_is_no_answer_and_the_next_one_is_tried(tmp_path):
    answers = [StateError("the disk is full"), RuntimeError("a bug"), None]

    def document():
        if (error := answers.pop(0)) is not None:
            raise error
        return {"a": 1}

    with StatusSocket(tmp_path, document) as served:
        served.start()
        assert [ask(tmp_path) for _ in range(3)] == [b"", b"", b'{\n  "a": 1\n}\n']


def test_a_reader_that_goes_away(tmp_path):
    with StatusSocket(tmp_path, lambda: {"x": "y" * 10_000_000}) as served:
        served.start()
        with closing(socket.socket(socket.AF_UNIX)) as client, short_path(tmp_path) as path:
            client.connect(path)
        assert len(ask(tmp_path)) > 10_000_000


def test_a_folder_that_takes_no_socket(tmp_path):
    """Then the command looks itself."""
    with StatusSocket(tmp_path / "none", dict) as served:
        served.start()
    with StatusSocket(tmp_path, dict):
        pass  # a daemon that ends before it has begun


def test_no_descriptor_is_free(tmp_path, monkeypatch):
    """As with EMFILE: the next reader is answered."""
    monkeypatch.setattr("bridge.status_socket._TURN_S", 0.05)
    with StatusSocket(tmp_path, dict) as served:
        served.start()
        listener, failures = served._listener, [1, 2]

        class Exhausted:
            """A listener that cannot accept at first."""

            def accept(self):
                if failures:
                    failures.pop()
                    raise OSError(errno.EMFILE, "Too many open files")
                return listener.accept()

            def close(self):
                listener.close()

        served._listener = Exhausted()  # type: ignore[assignment]
        assert [ask(tmp_path) for _ in range(2)] == [b"{}\n"] * 2
        assert not failures
