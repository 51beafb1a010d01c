"""The tables `[spark]` and `[http]` of the configuration file."""

from __future__ import annotations

import pytest

from pgbridge.bridge.config.daemon_tables import Http, Spark
from tests.bridge.config.test_config import read
from tests.bridge.configurations import SHOP

__all__ = ["read"]


def test_http(read, tmp_path):
    """Nothing is served by default; a token's file is relative to the configuration."""
    assert read(SHOP).http is None
    http = read(f"[http]\n{SHOP}").http
    assert http is not None
    assert (http.address, http.token_file, http.allow_anonymous) == (("127.0.0.1", 9187), None, False)
    http = read(f'[http]\nlisten = "[::]:80"\ntoken_file = "token"\n{SHOP}').http
    assert http is not None
    assert (http.address, http.token_file) == (("::", 80), str(tmp_path / "token"))
    assert read(f'[http]\nlisten = "0.0.0.0:80"\nallow_anonymous = true\n{SHOP}').http is not None


def test_values_of_spark_settings_keep_their_kind(read):
    settings = read('[spark.conf]\n"a.b" = "text"\n"c" = 2\n"d" = true\n"e" = 0.5' + SHOP)
    assert settings.spark.conf == {"a.b": "text", "c": 2, "d": True, "e": 0.5}
    assert settings.spark.conf["d"] is True


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Http(listen="0.0.0.0:80"), "is not this machine's own address: set token_file, or allow_anonymous"),
        (lambda: Http(listen="nowhere"), "host:port"),
        (lambda: Spark(conf={"spark.master": "local"}), "is set by the key master of"),
        (lambda: Spark(conf={"spark": {"driver.memory": "1g"}}), "put the names of settings in quotes"),
        (lambda: Spark(conf={"a": [1]}), "must be a string, a number or a boolean"),
        (lambda: Spark(conf={"spark.driver.memory": "much"}), "much"),
        (lambda: Spark(master="yarnish"), "yarnish"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
