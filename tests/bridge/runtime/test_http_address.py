"""Addresses to listen on."""

from __future__ import annotations

import pytest

from pgbridge.bridge.runtime.http_address import is_loopback, split_address


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9187", ("127.0.0.1", 9187)), ("[::1]:0", ("::1", 0)), ("localhost:80", ("localhost", 80))],
)
def test_addresses(text, address):
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "9187", ":9187", "127.0.0.1", "127.0.0.1:x", "::1:80", "h:65536", "h:-1", "[::1]"]
)
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match="must be"):
        split_address(text)


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("example.org", False)],
)  # fmt: skip
def test_loopback(host, own):
    assert is_loopback(host) is own
