"""The configuration file: read, validated once, frozen.

PostgreSQL's subscription options have PostgreSQL's names; the other keys are pgbridge's own. A relative path is
relative to the file.

To add a key of a subscription, touch:

    bridge/config/tables.py             a field of the table that it belongs to, its line under Attributes, a validator
                                        if it needs one; PostgreSQL's own options are fields of `Subscription`
    the module that obeys it            it gets the whole `Subscription`, or the value from `bridge.apply.stream`
    tests/bridge/config/test_config.py  `DEFAULTS`
    docs/configuration.md               what it means

A key that becomes an option of pgoutput goes to `bridge/receive/stream/pgoutput_options.py`, too.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pgbridge.bridge.config.daemon_tables import Http, Spark, read_secret
from pgbridge.bridge.config.explain import explain, toml
from pgbridge.bridge.config.tables import Alerts, Batch, Table, TableMode, TargetTables, Workers, names_in, with_schemas
from pgbridge.bridge.publication import definitions
from pgbridge.bridge.publication.shape import AS_PUBLISHED, Shape
from pgbridge.bridge.runtime import errors, remedies
from pgbridge.bridge.runtime.warehouse import (
    FORGETS,
    IMPLEMENTATION,
    NO_LAYOUT,
    PREFIX,
    CatalogWarehouse,
    Layout,
    forgets,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

    from pgbridge.bridge.publication.shape import Mask

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


_COPIES_AT_ONCE = 4
"""Copies that run at a time by default, of all subscriptions together: PostgreSQL's max_logical_replication_workers."""

PUBLISHER = "publisher"
"""The `filter_server` that is the publisher itself."""


def default_slot_name(name: str) -> str:
    """Return the subscription's name in lower case, with `_` for each character that a slot's name cannot have."""
    return re.sub(r"[^a-z0-9_]", "_", name.lower())


@cache
def _salt(name: str) -> bytes:
    """The salt of a file; a process uses the one that it has read first, or hashes would mix."""
    return read_secret("target.mask_salt_file", name).encode()


class Subscription(BaseModel):
    """One `[subscription.NAME]` table. Field names and defaults are the file's keys and defaults.

    Attributes:
        slot_name: Default: `default_slot_name` of the subscription's name.
        failover: Whether the slot is synchronized to standbys, so that the stream goes on after a promotion (PostgreSQL
            17, and sync_replication_slots there).
        messages: What happens to messages of pg_logical_emit_message: nothing ("off"), a log event for each ("log"), or
            also a row for each in the Delta table `<warehouse>/pgbridge/messages` ("table").
        publication_definitions: A file of CREATE PUBLICATION statements, re-applied to the stream and to the copy.
        schema_evolution: Whether the columns of Delta tables follow the published tables ("evolve"), or a column that
            a Delta table lacks is an error, as for PostgreSQL's subscriber ("strict").
        filter_server: Computes row filters of the definitions that have no exact translation: "publisher", or a libpq
            connection string; None to refuse them.
        mode: Whether a Delta table has the rows of its published table ("mirror"), and those that were deleted
            ("soft_deletes"); a row for each change ("changelog"), or for each version of a row ("history").
        tables: The tables that have another mode, a layout of their files or properties, by `schema.table`.
        batch: How large a batch becomes.
        target: What becomes of the Delta tables.
        workers: How the subscription's workers run.
        alerts: When the log warns of the slot.
    """

    model_config = _STRICT

    name: str
    connection: str = Field(repr=False)
    publications: tuple[str, ...]
    warehouse: str
    slot_name: str = ""
    create_slot: bool = True
    enabled: bool = True
    copy_data: bool = True
    binary: bool = True
    streaming: Literal["off", "on"] = "off"
    two_phase: bool = False
    failover: bool = False
    origin: Literal["any", "none"] = "any"
    messages: Literal["off", "log", "table"] = "log"
    disable_on_error: bool = False
    publication_definitions: str | None = None
    conflict: Literal["error", "apply_remote"] = "error"
    schema_evolution: Literal["evolve", "strict"] = "evolve"
    unrepresentable: Literal["error", "null"] = "error"
    filter_server: str | None = Field(default=None, repr=False)
    mode: TableMode = "mirror"
    tables: dict[str, Table] = Field(default_factory=dict)
    batch: Batch = Field(default_factory=Batch)
    target: TargetTables = Field(default_factory=TargetTables)
    workers: Workers = Field(default_factory=Workers)
    alerts: Alerts = Field(default_factory=Alerts)

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, table: Any) -> Any:
        name = table.get("name") if isinstance(table, dict) else None
        return {"slot_name": default_slot_name(name), **table} if name else table

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError("a subscription's name has letters, digits and _; after the first character also . and -")
        return name

    @field_validator("publications", mode="before")
    @classmethod
    def _publications(cls, value: Any) -> Any:
        return names_in(value, "publication")

    @field_validator("warehouse")
    @classmethod
    def _warehouse(cls, warehouse: str) -> str:
        if not warehouse:
            raise ValueError("must be a folder or a URI, not empty")
        CatalogWarehouse.of(warehouse)
        return warehouse

    @field_validator("slot_name")
    @classmethod
    def _slot_name(cls, slot_name: str) -> str:
        if not _SLOT_NAME.fullmatch(slot_name):
            raise ValueError(
                f"{toml(slot_name)} is not allowed; a slot's name has 1 to 63 lower case letters, digits and _"
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

    @field_validator("tables", mode="before")
    @classmethod
    def _tables(cls, tables: Any) -> Any:
        return with_schemas(tables)

    @field_validator("filter_server")
    @classmethod
    def _filter_server(cls, server: str | None) -> str | None:
        if server is not None and server != PUBLISHER and "=" not in server and "://" not in server:
            raise ValueError(f'must be "{PUBLISHER}" or a connection string')  # the value may be a password
        return server

    @model_validator(mode="after")
    def _maskable(self) -> Self:
        masked = {name: table.mask for name, table in self.tables.items() if table.mask}
        if masked and self.publication_definitions is not None:
            raise ValueError(
                f"tables.{toml(next(iter(masked)))}.mask is not possible with publication_definitions, whose row "
                "filters need the values: publish on the server what the definitions say"
            )
        hashed = [name for name, masks in masked.items() if any(mask.method == "sha256" for mask in masks.values())]
        if hashed and self.target.mask_salt_file is None:
            raise ValueError(f"tables.{toml(hashed[0])}.mask hashes values, and needs target.mask_salt_file")
        return self

    @property
    def needs_tables(self) -> bool:
        """Whether it is of no use without a table; one for logical messages is."""
        return self.messages != "table"

    def mode_of(self, table: str) -> TableMode:
        """Return the mode of a table, by its `schema.table`."""
        own = self.tables.get(table)
        return self.mode if own is None or own.mode is None else own.mode

    def layout_of(self, table: str) -> Layout:
        """Return how a new Delta table's files are laid out, by the table's `schema.table`."""
        own = self.tables.get(table)
        return NO_LAYOUT if own is None else own.layout

    def place_of(self, namespace: str, name: str) -> tuple[str, str, str]:
        """Return the warehouse, the schema and the name of a new Delta table, by the published table's."""
        own = self.tables.get(f"{namespace}.{name}")
        if own is not None and own.rename is not None:
            schema, _, name = own.rename.partition(".")
            return self.warehouse, schema, name
        return self.warehouse, self.target.schemas.get(namespace, namespace), name

    def properties_of(self, table: str) -> dict[str, str]:
        """Return Delta's properties of a new table, by its `schema.table`: its own go before the subscription's."""
        own = self.tables.get(table)
        return {**self.target.properties, **({} if own is None else own.properties)}

    @property
    def masks(self) -> dict[str, dict[str, Mask]]:
        """The masks of columns, by their table's `schema.table` and their names.

        Raises:
            ConfigError: The file with the salt cannot be used.
        """
        return {name: self._salted(table.mask) for name, table in self.tables.items() if table.mask}

    def _salted(self, masks: Mapping[str, Mask]) -> dict[str, Mask]:
        """Masks, of which those that hash know the salt."""
        hashed = any(mask.method == "sha256" for mask in masks.values())
        salt = _salt(self.target.mask_salt_file or "") if hashed else b""
        return {column: replace(mask, salt=salt) if mask.method == "sha256" else mask for column, mask in masks.items()}

    def shape_of(self, table: str) -> Shape:
        """What the Delta table has in place of a table's columns, by its `schema.table`; raises as `masks` does."""
        own = self.tables.get(table)
        return AS_PUBLISHED if own is None else Shape(self._salted(own.mask), own.rename_columns)

    @property
    def filter_connection(self) -> str | None:
        """The server that computes row filters, if it is another than the publisher."""
        return None if self.filter_server == PUBLISHER else self.filter_server

    @property
    def streams(self) -> bool:
        """Whether transactions come while they are in progress.

        Not with a table of messages: the server does not tell which subtransaction a message is of, so its row would
        stay after a ROLLBACK TO SAVEPOINT.
        """
        return self.streaming != "off" and self.messages != "table"

    @property
    def origin_name(self) -> str:
        """The replication origin's name, as errors show it; PostgreSQL's is pg_<oid>."""
        return f"pgbridge_{self.name}"


class Config(BaseModel):
    """A whole configuration file.

    Attributes:
        max_logical_replication_workers: A limit on apply workers and copies together. Each enabled subscription always
            has its apply worker; copies get the rest, at least one. None: `_COPIES_AT_ONCE` copies, or more if a
            subscription's `workers.max_sync_workers` is greater.
    """

    model_config = _STRICT

    state_dir: Path = Field(default=Path("state"), strict=False)
    max_logical_replication_workers: int | None = Field(default=None, ge=1)
    spark: Spark = Field(default_factory=Spark)
    http: Http | None = None
    subscription: dict[str, Subscription] = Field(min_length=1)

    @property
    def copies_at_once(self) -> int:
        """How many tables are copied at a time, by all subscriptions together."""
        subscriptions = self.subscription.values()
        if self.max_logical_replication_workers is None:
            return max(_COPIES_AT_ONCE, *(subscription.workers.max_sync_workers for subscription in subscriptions))
        return max(1, self.max_logical_replication_workers - sum(sub.enabled for sub in subscriptions))

    def choose(self, name: str | None = None) -> list[Subscription]:
        """Return the subscription of that name, or all subscriptions.

        Raises:
            ConfigError: The file has no subscription of that name.
        """
        if name is None:
            return list(self.subscription.values())
        if name not in self.subscription:
            known = ", ".join(f'"{known}"' for known in self.subscription)
            raise errors.ConfigError(f'subscription "{name}" does not exist (known: {known})')
        return [self.subscription[name]]


def load(path: Path) -> Config:
    """Read and validate a configuration file.

    Returns:
        The configuration, with absolute paths, and with each subscription's name from its table's.

    Raises:
        ConfigError: The file is missing or is not TOML, or a key or value is not allowed. The message has one line
            for each such key.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise errors.ConfigError(
            f"configuration file {path} does not exist",
            hint=f"write one with: {remedies.INIT}",
        ) from None
    except OSError as error:
        raise errors.ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise errors.ConfigError(f"configuration file {path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise errors.ConfigError(f"{path} is not valid TOML: {error}") from error
    folder = path.resolve().parent
    try:
        _fill(tree, folder)
        config = Config.model_validate(tree)
        _check_metastore(config)
    except ValidationError as error:
        lines = [_explained(fault) for fault in error.errors()]
        raise errors.ConfigError("\n".join(f"{path}: {line}" for line in lines)) from None
    except ValueError as error:
        raise errors.ConfigError(f"{path}: {error}") from None
    return config


def _check_metastore(config: Config) -> None:
    warehouses = (subscription.warehouse for subscription in config.subscription.values())
    kind = config.spark.conf.get(IMPLEMENTATION)
    if forgets(lambda: kind, warehouses):
        raise ValueError(f'spark.conf: "{IMPLEMENTATION}" = "{kind}": {FORGETS}; remove it, or write "hive"')


def _fill(tree: dict[str, Any], folder: Path) -> None:
    """Set each subscription's name, and make paths absolute. Values of wrong types are left to the validation."""
    state_dir = tree.get("state_dir", "state")
    if isinstance(state_dir, str):
        tree["state_dir"] = _resolved("state_dir", state_dir, folder)
    http = tree.get("http")
    if isinstance(http, dict) and isinstance(http.get("token_file"), str):
        http["token_file"] = str(_resolved("http.token_file", http["token_file"], folder))
    subscriptions = tree.get("subscription")
    for name, table in subscriptions.items() if isinstance(subscriptions, dict) else ():
        if isinstance(table, dict):
            if "name" in table:
                raise ValueError(f"subscription.{name}.name: unknown key; the table has the name: [subscription.NAME]")
            table["name"] = name
            definitions = table.get("publication_definitions")
            if isinstance(definitions, str):
                key = f"subscription.{name}.publication_definitions"
                table["publication_definitions"] = str(_resolved(key, definitions, folder))
            target = table.get("target")
            if isinstance(target, dict) and isinstance(target.get("mask_salt_file"), str):
                key = f"subscription.{name}.target.mask_salt_file"
                target["mask_salt_file"] = str(_resolved(key, target["mask_salt_file"], folder))
            warehouse = table.get("warehouse")
            if isinstance(warehouse, str) and warehouse and not _is_absolute(warehouse):
                table["warehouse"] = str(_resolved(f"subscription.{name}.warehouse", warehouse, folder))


def _is_absolute(warehouse: str) -> bool:
    return warehouse.startswith(PREFIX) or _URI.match(warehouse) is not None


def _resolved(key: str, text: str, folder: Path) -> Path:
    try:
        return folder / Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{key}: the home directory of {toml(text)} is unknown") from error


def _explained(error: ErrorDetails) -> str:
    location = [str(part) for part in error["loc"]]
    if location[0] == "subscription" and location[2:] == ["name"]:
        location.pop()  # the name is no key of the file
    return explain(error, location, known_keys(Config, location))


def known_keys(model: type[BaseModel], location: Sequence[str]) -> list[str]:
    """Return the keys of the table of a model that has the last key of a location: those that it may have."""
    for part in location[:-1]:
        kinds = model.model_fields[part].annotation if part in model.model_fields else model
        nested = [kind for kind in (kinds, *get_args(kinds)) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        model = nested[0] if nested else model
    return [key for key in model.model_fields if key != "name"]
