"""Who may read: a token where one is configured, and loopback's own names where none is."""

from __future__ import annotations

import base64
import subprocess

import pytest

from pgbridge.bridge.config.daemon_tables import read_secret
from pgbridge.bridge.monitor.server import Access
from pgbridge.bridge.runtime.errors import ConfigError


def basic(password: str, user: str = "me") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


OPEN, CLOSED = Access("127.0.0.1", None), Access("127.0.0.1", "tökén")


@pytest.mark.parametrize("given", ["Bearer tökén", "bearer tökén", basic("tökén"), basic("tökén", "")])
def test_the_token(given):
    assert CLOSED.accepts(given)


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", "Bearer token", "tökén", "Basic !!!", "Basic", basic("token"), "Digest tökén"],
)
def test_no_token(given):
    assert not CLOSED.accepts(given)
    assert OPEN.accepts(given)


@pytest.mark.parametrize("host", ["localhost", "localhost:9187", "127.0.0.1:9187", "[::1]:9187", "[::1]", "127.8.8.8"])
def test_names_of_loopback(host):
    assert OPEN.accepts_host(host)


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "evil.example:9187", "127.0.0.1.evil.example:9187", "[::2]:1"]
)
def test_other_names_are_not_answered_on_loopback_without_a_token(host):
    assert not OPEN.accepts_host(host)
    assert CLOSED.accepts_host(host)
    assert Access("10.0.0.1", None).accepts_host(host)


def test_a_token_file(tmp_path):
    file = tmp_path / "a token"
    file.write_text(" word \nrest\n")
    file.chmod(0o600)
    assert read_secret("http.token_file", str(file)) == "word"
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="others can read") as caught:
        read_secret("http.token_file", str(file))
    subprocess.run(["sh", "-c", caught.value.hint], check=True)
    assert read_secret("http.token_file", str(file)) == "word"


@pytest.mark.parametrize("content", ["", "\nword", "  \n"])
def test_an_empty_token_file(tmp_path, content):
    """An empty token would let everybody in."""
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="is empty"):
        read_secret("http.token_file", str(file))


def test_a_missing_token_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_secret("http.token_file", str(tmp_path / "none"))
