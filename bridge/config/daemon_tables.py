"""The tables of the configuration file that are the daemon's: `[spark]` and `[http]`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pgbridge.bridge.config.explain import toml
from pgbridge.bridge.config.spark_master import check_master, heap_bytes
from pgbridge.bridge.runtime import http_address
from pgbridge.bridge.runtime.errors import ConfigError

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)


class Spark(BaseModel):
    """The `[spark]` table: where Spark runs, and settings that are passed to it unchanged."""

    model_config = _STRICT

    master: str = "local[*]"
    conf: dict[str, str | int | float | bool] = Field(default_factory=dict)

    @field_validator("master")
    @classmethod
    def _master(cls, master: str) -> str:
        check_master(master)
        return master

    @field_validator("conf", mode="before")
    @classmethod
    def _scalars(cls, conf: Any) -> Any:
        for key, value in conf.items() if isinstance(conf, dict) else ():
            if key in {"spark.master", "spark.remote"}:
                raise ValueError(f"{toml(key)} is set by the key master of [spark]")
            if isinstance(value, dict):
                raise ValueError(  # noqa: TRY004 - pydantic collects ValueErrors
                    f'put the names of settings in quotes, as in "spark.driver.memory", not {key}.…'
                )
            if not isinstance(value, str | int | float):
                raise ValueError(  # noqa: TRY004 - as above
                    f"{toml(key)} must be a string, a number or a boolean, not {toml(value)}"
                )
            if key == "spark.driver.memory":
                heap_bytes(str(value))
        return conf


class Http(BaseModel):
    """The `[http]` table: where metrics, health and the status page are served. Without it, nowhere.

    Attributes:
        listen: `host:port` or `[address]:port`.
        token_file: A file that only its owner can read; a request must bring its first line.
        allow_anonymous: Serve another address than loopback's without a token.
    """

    model_config = _STRICT

    listen: str = "127.0.0.1:9187"
    token_file: str | None = None
    allow_anonymous: bool = False

    @field_validator("listen")
    @classmethod
    def _listen(cls, listen: str) -> str:
        http_address.split_address(listen)
        return listen

    @model_validator(mode="after")
    def _protected(self) -> Self:
        host = self.address[0]
        if self.token_file is None and not self.allow_anonymous and not http_address.is_loopback(host):
            raise ValueError(
                f"{host} is not this machine's own address: set token_file, or allow_anonymous = true to show tables, "
                "errors and positions to everybody who can reach it"
            )
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return http_address.split_address(self.listen)


_OTHERS: Final = 0o077


def read_secret(key: str, name: str) -> str:
    """Read the first line of a file that only its owner can read.

    Args:
        key: The key of the configuration that names the file.
        name: The file.

    Raises:
        ConfigError: It cannot be read, is empty, or others can read it.
    """
    path = Path(name)
    try:
        if path.stat().st_mode & _OTHERS:
            raise ConfigError(f"{key}: others can read {path}", hint=f"chmod 600 {shlex.quote(str(path))}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error}") from error
    if not lines or not lines[0].strip():
        raise ConfigError(f"{key}: the first line of {path} is empty", hint="put a long random word there")
    return lines[0].strip()
