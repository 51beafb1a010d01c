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

from bridge import remedies
from bridge.errors import ConfigError
from bridge.publication import definitions

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


_COPIES_AT_ONCE = 4
"""By default, whatever the number of subscriptions: the server's own max_logical_replication_workers."""


def default_slot_name(name: str) -> str:
    """The subscription's name, with what a slot's name cannot have replaced."""
    return re.sub(r"[^a-z0-9_]", "_", name.lower())


class Subscription(BaseModel):
    """One `[subscription.NAME]` table. Field names and defaults are the file's keys and defaults.

    Attributes:
        adopt: Rows that a Delta table holds before the subscription has it are replaced by the copy.
        publication_definitions: A file of CREATE PUBLICATION statements, re-applied to the stream and to the copy.
        untranslatable_filters: A row filter of the definitions that cannot be translated exactly is refused, or a
            server computes it.
        filter_connection: That server, if it is not the publisher.
        messages: What becomes of pg_logical_emit_message's messages: nothing, events of the log, or those and rows
            of the Delta table `<warehouse>/pgbridge/messages`.
        schema_evolution: Whether the targets' columns follow the published tables', or a column that a target lacks is
            an error, as in PostgreSQL's subscriber.
        batch_max_rows: A batch ends with the transaction that reaches this many changes.
        batch_max_bytes: The same, in bytes as received.
        batch_max_age_s: How long a committed transaction may wait for others to join its batch.
        max_sync_workers: How many tables are copied at a time (max_sync_workers_per_subscription of PostgreSQL).
        wal_receiver_timeout_s: How long the server may be silent (wal_receiver_timeout of PostgreSQL); 0 for ever.
        retry_max_s: The longest pause between two tries after an error.
    """

    model_config = _STRICT

    name: str
    connection: str
    publications: tuple[str, ...]
    warehouse: str
    slot_name: str = ""  # what `default_slot_name` makes of the name
    create_slot: bool = True
    enabled: bool = True
    copy_data: bool = True
    binary: bool = True
    streaming: Literal["off", "on"] = "off"
    two_phase: bool = False
    origin: Literal["any", "none"] = "any"
    messages: Literal["off", "log", "table"] = "log"
    disable_on_error: bool = False
    publication_definitions: str | None = None
    conflict: Literal["error", "apply_remote"] = "error"
    schema_evolution: Literal["evolve", "strict"] = "evolve"
    unrepresentable: Literal["error", "null"] = "error"
    untranslatable_filters: Literal["refuse", "server"] = "refuse"
    filter_connection: str | None = None
    adopt: bool = False
    batch_max_rows: int = Field(default=500_000, ge=1)
    batch_max_bytes: int = Field(default=256 << 20, ge=1)
    batch_max_age_s: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    max_sync_workers: int = Field(default=2, ge=1, le=64)
    wal_receiver_timeout_s: float = Field(default=60, ge=0, allow_inf_nan=False)
    retry_max_s: float = Field(default=60, gt=0, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, table: Any) -> Any:
        name = table.get("name") if isinstance(table, dict) else None
        return {"slot_name": default_slot_name(name), **table} if name else table

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError("a subscription's name has letters, digits and _, after the first character also . and -")
        return name

    @field_validator("publications", mode="before")
    @classmethod
    def _publications(cls, value: Any) -> Any:
        names = tuple(value) if isinstance(value, list | tuple) else ()
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"must be an array with the names of one or more publications, not {_toml(value)}")
        if more := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"publication {_toml(more[0])} is named more than once")
        return names

    @field_validator("warehouse")
    @classmethod
    def _warehouse(cls, warehouse: str) -> str:
        if not warehouse:
            raise ValueError("must be a folder or a URI, not empty")
        return warehouse

    @field_validator("slot_name")
    @classmethod
    def _slot_name(cls, slot_name: str) -> str:
        if not _SLOT_NAME.fullmatch(slot_name):
            raise ValueError(
                f"{_toml(slot_name)} is not allowed; a slot's name has lower case letters, digits and _, at most 63"
            )
        return slot_name

    @field_validator("publication_definitions")
    @classmethod
    def _definitions(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                definitions.load(Path(value))
            except definitions.DefinitionError as error:
                raise ValueError(str(error)) from error
        return value

    @model_validator(mode="after")
    def _filter_server(self) -> Self:
        if self.filter_connection is not None and self.untranslatable_filters != "server":
            raise ValueError('filter_connection is for untranslatable_filters = "server"')
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

    @field_validator("conf", mode="before")
    @classmethod
    def _scalars(cls, conf: Any) -> Any:
        for key, value in conf.items() if isinstance(conf, dict) else ():
            if isinstance(value, dict):
                raise ValueError(  # noqa: TRY004 - the kind that pydantic collects
                    f'the names of settings stand in quotes, as in "spark.driver.memory", not {key}.…'
                )
            if not isinstance(value, str | int | float):
                raise ValueError(  # noqa: TRY004 - the same
                    f"{_toml(key)} must be a string, a number or a boolean, not {_toml(value)}"
                )
        return conf


class Config(BaseModel):
    """A whole configuration file.

    Attributes:
        max_logical_replication_workers: Apply workers, of which each enabled subscription has one in any case, and
            tables that are copied, all together.
    """

    model_config = _STRICT

    state_dir: Path = Field(default=Path("state"), strict=False)
    max_logical_replication_workers: int | None = Field(default=None, ge=1)
    spark: Spark = Field(default_factory=Spark)
    subscription: dict[str, Subscription] = Field(min_length=1)

    @property
    def copies_at_once(self) -> int:
        """How many tables are copied at a time: what the apply workers leave of the limit, and one at least."""
        subscriptions = self.subscription.values()
        if self.max_logical_replication_workers is None:
            return max(_COPIES_AT_ONCE, *(subscription.max_sync_workers for subscription in subscriptions))
        return max(1, self.max_logical_replication_workers - sum(one.enabled for one in subscriptions))

    def choose(self, name: str | None = None) -> list[Subscription]:
        """Return the subscription of that name, or all subscriptions.

        Raises:
            ConfigError: The file has no subscription of that name.
        """
        if name is None:
            return list(self.subscription.values())
        if name not in self.subscription:
            known = ", ".join(f'"{known}"' for known in self.subscription)
            raise ConfigError(f'subscription "{name}" does not exist (known: {known})')
        return [self.subscription[name]]


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
            hint=f"write one with: {remedies.INIT}",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    folder = path.resolve().parent
    try:
        _fill(tree, folder)
        return Config.model_validate(tree)
    except ValidationError as error:
        lines = [_explain(item) for item in error.errors()]
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines)) from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _fill(tree: dict[str, Any], folder: Path) -> None:
    """Give each subscription its name, and resolve relative paths; leaves wrong shapes to the validation."""
    state_dir = tree.get("state_dir", "state")
    if isinstance(state_dir, str):
        tree["state_dir"] = _resolved("state_dir", state_dir, folder)
    subscriptions = tree.get("subscription")
    for name, table in subscriptions.items() if isinstance(subscriptions, dict) else ():
        if isinstance(table, dict):
            if "name" in table:
                raise ValueError(f"subscription.{name}.name: unknown key; the name is the table's: [subscription.NAME]")
            table["name"] = name
            definitions = table.get("publication_definitions")
            if isinstance(definitions, str):
                key = f"subscription.{name}.publication_definitions"
                table["publication_definitions"] = str(_resolved(key, definitions, folder))
            warehouse = table.get("warehouse")
            if isinstance(warehouse, str) and warehouse and not _URI.match(warehouse):
                table["warehouse"] = str(_resolved(f"subscription.{name}.warehouse", warehouse, folder))


def _resolved(key: str, text: str, folder: Path) -> Path:
    try:
        return folder / Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{key}: {_toml(text)} has no home directory to begin with") from error


_KINDS = {
    "bool_type": "a boolean (true or false)",
    "dict_type": "a table",
    "float_type": "a number",
    "int_type": "an integer",
    "model_type": "a table",
    "path_type": "a string",
    "string_type": "a string",
}
"""pydantic's names of wrong types -> TOML's words."""


def _explain(item: ErrorDetails) -> str:
    """One line for one fault: the key, what stands there, and what is allowed."""
    location = [str(part) for part in item["loc"]]
    if location[0] == "subscription" and location[2:] == ["name"]:
        location.pop()  # no key of the file
    key = ".".join(location)
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
        case kind if kind in _KINDS:
            return f"{key}: must be {_KINDS[kind]}, not {_toml(item['input'])}"
        case _:
            return f"{key}: {item['msg'].replace('Input should', 'must')}, not {_toml(item['input'])}"


def _toml(value: object) -> str:
    """A value as it stands in the file, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
