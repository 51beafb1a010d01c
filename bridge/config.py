"""The configuration file: read, validated once, frozen.

The keys are those of the contract: PostgreSQL's own subscription options under PostgreSQL's names, plus the
bridge's. A relative path is relative to the file it stands in.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bridge.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")

NOT_YET: dict[tuple[str, Any], str] = {
    ("streaming", "on"): "streamed (in-progress) transactions are not decoded yet",
    ("two_phase", True): "prepared transactions are not decoded at PREPARE yet",
}
"""Values that the contract has and this version refuses, rather than accept and ignore."""


class Subscription(BaseModel):
    """One `[subscription.NAME]` table. Field names and defaults are the file's keys and defaults.

    Attributes:
        batch_max_rows: A batch ends with the transaction that reaches this many changes.
        batch_max_bytes: The same, in bytes as received.
        batch_max_age_s: How long a committed transaction may wait for others to join its batch.
        retry_max_s: The longest pause between two tries after an error.
    """

    model_config = _STRICT

    name: str
    connection: str
    publications: tuple[str, ...] = Field(min_length=1)
    warehouse: str
    slot_name: str = ""
    create_slot: bool = True
    enabled: bool = True
    copy_data: bool = True
    binary: bool = True
    streaming: Literal["off", "on"] = "off"
    two_phase: bool = False
    origin: Literal["any", "none"] = "any"
    disable_on_error: bool = False
    publication_definitions: str | None = None
    conflict: Literal["error", "apply_remote"] = "error"
    schema_evolution: Literal["evolve", "strict"] = "evolve"
    unrepresentable: Literal["error", "null"] = "error"
    batch_max_rows: int = Field(default=500_000, ge=1)
    batch_max_bytes: int = Field(default=256 << 20, ge=1)
    batch_max_age_s: float = Field(default=0.5, ge=0, strict=False)
    retry_max_s: float = Field(default=60, gt=0, strict=False)

    @field_validator("publications", mode="before")
    @classmethod
    def _tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not _NAME.fullmatch(self.name):
            raise ValueError("a subscription's name has letters, digits, and _ . - after the first")
        if not self.slot_name:
            object.__setattr__(self, "slot_name", re.sub(r"[^a-z0-9_]", "_", self.name.lower()))
        if not _SLOT_NAME.fullmatch(self.slot_name):
            raise ValueError(
                f'slot_name "{self.slot_name}" is not allowed: lower case letters, digits and _ only, at most 63'
            )
        for (key, value), why in NOT_YET.items():
            if getattr(self, key) == value:
                raise ValueError(f"{key} = {_toml(value)} is not available in this version: {why}")
        if self.publication_definitions is not None:
            raise ValueError(
                "publication_definitions is not available in this version: "
                "row filters and column lists are those of the publications on the server"
            )
        return self

    @property
    def origin_name(self) -> str:
        """The replication origin's name in errors: PostgreSQL's is pg_<oid>, ours says whose it is."""
        return f"pgbridge_{self.name}"


class Spark(BaseModel):
    """The `[spark]` table: where Spark runs, and settings passed on to it as they are."""

    model_config = _STRICT

    master: str = "local[*]"
    conf: dict[str, str | int | float | bool] = Field(default_factory=dict)


class Config(BaseModel):
    """A whole configuration file."""

    model_config = _STRICT

    state_dir: Path = Field(default=Path("state"), strict=False)
    spark: Spark = Field(default_factory=Spark)
    subscription: dict[str, Subscription] = Field(min_length=1)


def load(path: Path) -> Config:
    """Read and validate a configuration file.

    Returns:
        The configuration, with paths made absolute against the file's folder and names filled in.

    Raises:
        ConfigError: The file is missing, is not TOML, or a key or value is not allowed; the message has one
            line per fault, each with the key's full name and what is allowed.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"configuration file {path} does not exist",
            hint="write one with: pgbridge init --connection … --publication … --warehouse …",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    folder = path.resolve().parent
    _fill(tree, folder)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        lines = [_explain(item) for item in error.errors()]
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines)) from None


def _fill(tree: dict[str, Any], folder: Path) -> None:
    """Give each subscription its name, and resolve relative paths; leaves wrong shapes to the validation."""
    state_dir = tree.get("state_dir", "state")
    if isinstance(state_dir, str):
        tree["state_dir"] = folder / Path(state_dir).expanduser()
    subscriptions = tree.get("subscription")
    for name, table in subscriptions.items() if isinstance(subscriptions, dict) else ():
        if isinstance(table, dict):
            table.setdefault("name", name)
            warehouse = table.get("warehouse")
            if isinstance(warehouse, str) and "://" not in warehouse:
                table["warehouse"] = str(folder / Path(warehouse).expanduser())


def _explain(item: ErrorDetails) -> str:
    """One line for one fault: the key, what stands there, and what is allowed."""
    location = [str(part) for part in item["loc"]]
    key = ".".join(location) or "the file"
    match item["type"]:
        case "missing":
            return f"{key}: this key is required"
        case "extra_forbidden":
            fields = {0: Config, 1: Spark if location[0] == "spark" else Subscription}
            model = Config if len(location) == 1 else fields[1]
            known = [field for field in model.model_fields if field != "name"]
            close = difflib.get_close_matches(location[-1], known, 1)
            guess = f'; did you mean "{close[0]}"?' if close else ""
            return f"{key}: unknown key{guess} (known keys: {', '.join(known)})"
        case "literal_error":
            allowed = str(item["ctx"]["expected"]).replace("'", '"') if "ctx" in item else ""
            return f"{key}: {_toml(item['input'])} is not allowed; allowed values: {allowed}"
        case "value_error":
            return f"{key}: {item['msg'].removeprefix('Value error, ')}"
        case _:
            return f"{key}: {item['msg']}, not {_toml(item['input'])}"


def _toml(value: object) -> str:
    """A value as it stands in the file, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
