"""The tables `[subscription.NAME.tables."schema.table"]` of the configuration file."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from bridge.config.explain import toml
from bridge.runtime.warehouse import MOST_CLUSTERING_COLUMNS, Layout


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


class Table(BaseModel):
    """What one published table has otherwise than its subscription; at least one of the keys.

    Attributes:
        mode: As in `Subscription`; None for the subscription's.
        cluster_by: Columns by which a new Delta table is clustered (liquid clustering).
        partition_by: Columns by which a new Delta table is partitioned.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    mode: Literal["mirror", "changelog", "history"] | None = None
    cluster_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()

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
