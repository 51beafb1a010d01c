"""The tables within `[subscription.NAME]`: batch, target, workers, alerts, and `tables."schema.table"`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from pgbridge.bridge.config.explain import toml
from pgbridge.bridge.publication.shape import Mask
from pgbridge.bridge.runtime.warehouse import MOST_CLUSTERING_COLUMNS, Layout
from pgbridge.bridge.targets.location import OWN_NAMESPACE
from pgbridge.bridge.targets.properties import LEAST_FILES_S, as_properties

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)

_LEAST_RETENTION_H = LEAST_FILES_S // 3600

Properties = Annotated[dict[str, str], BeforeValidator(as_properties)]


def _schema_name(schema: str) -> str:
    if not schema:
        raise ValueError("a schema's name is not empty")
    if schema.lower() == OWN_NAMESPACE:  # a catalog ignores case
        raise ValueError(f"{toml(schema)} is where pgbridge keeps tables of its own")
    return schema


SchemaName = Annotated[str, AfterValidator(_schema_name)]


class Batch(BaseModel):
    """How large a batch becomes; all transactions are whole.

    Attributes:
        max_rows: A batch takes no more transactions once it has this many rows: those that it touches, each once.
        max_bytes: The same for the memory that these rows take.
        max_age_s: How long a transaction of an idle stream waits for others to join its batch.
        commit_interval_s: A batch begins no sooner than this after the one before has, unless it is full; the first
            one after a pause does not wait. PostgreSQL's commit_delay, and the interval of Spark's
            `Trigger.ProcessingTime`.
    """

    model_config = _STRICT

    max_rows: int = Field(default=2_000_000, ge=1)
    max_bytes: int = Field(default=256 << 20, ge=1)
    max_age_s: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    commit_interval_s: float = Field(default=1.0, ge=0, allow_inf_nan=False)


class TargetTables(BaseModel):
    """What becomes of the Delta tables.

    Attributes:
        jsonb: Whether columns of jsonb become strings or VARIANT in new Delta tables, and where they are added.
        vector: Whether pgvector's vector and halfvec become strings or arrays of reals there.
        geometry: Whether PostGIS's geometry and geography become strings or EWKB there.
        adopt: Whether the copy may replace rows that a Delta table already has at the subscription's first start.
        maintenance: Which tables are optimized and vacuumed: those that pgbridge created, all, or none.
        vacuum_retention_h: How many hours VACUUM keeps files that the latest version does not have; 0 for no VACUUM.
        properties: Delta's properties of new tables.
        schemas: The schemas of new Delta tables that have another name than the published table's, by the latter.
        conflict_log_destination: Where conflicts are told, as for PostgreSQL 20's subscriptions: in the log, in the
            Delta table `<warehouse>/pgbridge/conflicts`, or in both ("all").
        mask_salt_file: A file that only its owner can read, whose first line is the salt of hashed columns.
        sequences_every_s: How often the values of sequences are written to `<warehouse>/pgbridge/sequences`; 0 for
            never.
    """

    model_config = _STRICT

    jsonb: Literal["string", "variant"] = "string"
    vector: Literal["string", "array"] = "string"
    geometry: Literal["string", "wkb"] = "string"
    adopt: bool = False
    maintenance: Literal["created", "all", "none"] = "created"
    vacuum_retention_h: int = Field(default=168, ge=0)
    properties: Properties = Field(default_factory=dict)
    schemas: dict[str, SchemaName] = Field(default_factory=dict)
    conflict_log_destination: Literal["log", "table", "all"] = "log"
    mask_salt_file: str | None = None
    sequences_every_s: float = Field(default=0, ge=0, allow_inf_nan=False)

    @property
    def parsed(self) -> frozenset[str]:
        """The types, by their keys here, whose columns do not become strings in new Delta tables."""
        chosen = {"jsonb": self.jsonb, "vector": self.vector, "geometry": self.geometry}
        return frozenset(name for name, becomes in chosen.items() if becomes != "string")

    @field_validator("vacuum_retention_h")
    @classmethod
    def _vacuum_retention_h(cls, hours: int) -> int:
        if 0 < hours < _LEAST_RETENTION_H:
            raise ValueError(
                f"must be 0, for no VACUUM, or at least {_LEAST_RETENTION_H}, Delta's own least: readers may still use "
                f"what is younger, not {hours}"
            )
        return hours


class Workers(BaseModel):
    """How the subscription's workers run.

    Attributes:
        max_sync_workers: How many tables are copied at a time (PostgreSQL's max_sync_workers_per_subscription).
        wal_receiver_timeout_s: How long the server may be silent (PostgreSQL's wal_receiver_timeout); 0 for ever.
        retry_max_s: The longest pause between two tries after an error.
        catalog_check_s: How often what is published is compared with what is followed.
        refresh: Who has tables that join the publications copied and followed: `pgbridge refresh`, or the daemon.
        max_copy_rate_bytes_s: How much all copies together read a second, in COPY's format; 0 for no limit.
        verify_every_h: How often the daemon compares each table with the published one, in hours; 0 for never.
        max_verify_rate_bytes_s: How much of the source that reads a second, over time, by tables' sizes on disk.
    """

    model_config = _STRICT

    max_sync_workers: int = Field(default=2, ge=1, le=64)
    wal_receiver_timeout_s: float = Field(default=60, ge=0, allow_inf_nan=False)
    retry_max_s: float = Field(default=60, gt=0, allow_inf_nan=False)
    catalog_check_s: float = Field(default=60, gt=0, allow_inf_nan=False)
    refresh: Literal["manual", "auto"] = "manual"
    max_copy_rate_bytes_s: int = Field(default=0, ge=0)
    verify_every_h: float = Field(default=0, ge=0, allow_inf_nan=False)
    max_verify_rate_bytes_s: int = Field(default=8 << 20, ge=1)


class Alerts(BaseModel):
    """When the log warns of the slot.

    Attributes:
        retained_bytes: The server keeps so much WAL for the slot; told again each time it has doubled. 0 for never.
        slot_left_s: The slot is lost within this time at the present rate (max_slot_wal_keep_size).
    """

    model_config = _STRICT

    retained_bytes: int = Field(default=10 << 30, ge=0)
    slot_left_s: float = Field(default=3600, ge=0, allow_inf_nan=False)


def names_in(value: Any, kind: str) -> tuple[str, ...]:
    """An array of names of a kind, for example "column".

    Raises:
        ValueError: It is no array of names, has none, or has one twice.
    """
    names = tuple(value) if isinstance(value, list | tuple) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"must be an array with the names of one or more {kind}s, not {toml(value)}")
    if more := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{kind} name {toml(more[0])} used more than once")
    return names


def with_schemas(tables: Any) -> Any:
    """The tables of a subscription, by their names: each `schema.table`, as all commands show it.

    Raises:
        ValueError: A name has no schema; or was written without quotes, so that it is a table in a table for TOML.
    """
    for name, table in tables.items() if isinstance(tables, dict) else ():
        schema, dot, rest = name.partition(".")
        if (schema and dot and rest) or not isinstance(table, dict | Table):
            continue
        inner = [key for key, value in table.items() if isinstance(value, dict)] if isinstance(table, dict) else []
        reason = "the quotes are missing" if inner else "the schema is missing"
        meant = f"{name}.{inner[0]}" if inner else f"public.{name}"
        raise ValueError(f"{toml(name)} is not the name of a table: {reason}; write tables.{toml(meant)}")
    return tables


def _as_mask(value: Any) -> Mask:
    """The mask that the file has for a column.

    Raises:
        ValueError: It is none.
    """
    match value:
        case Mask():
            return value
        case "sha256" | "null" | "none":
            return Mask(value)
        case {"text": str(text), **others} if not others and "\0" not in text:
            return Mask("text", text=text)
        case {"first": int(characters), **others} if not others and characters > 0 and characters is not True:
            return Mask("first", characters=characters)
    raise ValueError(f'must be "sha256", "null", "none", {{ text = "…" }} or {{ first = 3 }}, not {toml(value)}')


ColumnMask = Annotated[Any, BeforeValidator(_as_mask)]

TableMode = Literal["mirror", "changelog", "history", "soft_deletes"]
"""What a Delta table has of its published table (`Subscription.mode`)."""

BEGINNING_ANEW: Final[frozenset[TableMode]] = frozenset({"changelog", "history"})
"""The modes of tables that lose what they have beside the published rows when they are copied afresh."""


class Table(BaseModel):
    """What one published table has otherwise than its subscription; at least one of the keys.

    Attributes:
        mode: As in `Subscription`; None for the subscription's.
        rename: `schema.table` of a new Delta table; None for the published table's.
        cluster_by: Columns by which a new Delta table is clustered (liquid clustering).
        partition_by: Columns by which a new Delta table is partitioned.
        properties: Delta's properties of a new table, beside and before those of the subscription.
        mask: What becomes of the values of columns, by the columns' names.
        rename_columns: The names of columns in the Delta table, by the published columns' names.
    """

    model_config = _STRICT

    mode: TableMode | None = None
    rename: str | None = None
    cluster_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    properties: Properties = Field(default_factory=dict)
    mask: dict[str, ColumnMask] = Field(default_factory=dict)
    rename_columns: dict[str, str] = Field(default_factory=dict)

    @field_validator("rename")
    @classmethod
    def _rename(cls, name: str | None) -> str | None:
        if name is not None:
            schema, dot, table = name.partition(".")
            if not (dot and table):
                raise ValueError(f"must be a schema and a table, as in {toml(f'public.{name}')}")
            _schema_name(schema)
            if table.lower().startswith(f"{OWN_NAMESPACE}_"):  # as in a catalog's namespace
                raise ValueError(f"{toml(table)} begins as the names of pgbridge's own tables")
        return name

    @field_validator("rename_columns")
    @classmethod
    def _distinct(cls, names: dict[str, str]) -> dict[str, str]:
        names_in([name.lower() for name in names.values()], "column") if names else ()
        return names

    @field_validator("cluster_by", "partition_by", mode="before")
    @classmethod
    def _columns(cls, value: Any) -> Any:
        return names_in(value, "column")

    @field_validator("cluster_by")
    @classmethod
    def _few(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(names) > MOST_CLUSTERING_COLUMNS:
            raise ValueError(f"Delta clusters a table by at most {MOST_CLUSTERING_COLUMNS} columns, not {len(names)}")
        return names

    @model_validator(mode="after")
    def _one_layout(self) -> Self:
        if self.cluster_by and self.partition_by:
            raise ValueError("a Delta table has cluster_by or partition_by, not both: remove one of them")
        if not self.model_fields_set:
            raise ValueError(f"at least one of the keys {', '.join(type(self).model_fields)} is required")
        return self

    @property
    def layout(self) -> Layout:
        """The layout of a new Delta table."""
        return Layout(self.cluster_by, self.partition_by)
