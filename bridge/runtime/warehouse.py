"""Reads a `warehouse`: a folder or a URI, below which each table has a path, or a catalog of Spark. Pure.

`catalog:CATALOG` has a namespace for each schema: the table s.t becomes CATALOG.s.t. With `catalog:CATALOG.NAMESPACE`
all tables are in one namespace: s.t becomes CATALOG.NAMESPACE.t.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

PREFIX: Final = "catalog:"
"""The prefix of a catalog's warehouses and tables, in the configuration and in the state."""

SPARK_CATALOG: Final = "spark_catalog"
"""Spark's own catalog: a Hive metastore, or a database of Spark's own."""

IMPLEMENTATION: Final = "spark.sql.catalogImplementation"
"""The setting that says what Spark's own catalog is."""

FORGETS: Final = f"{SPARK_CATALOG} in memory forgets its tables when Spark ends"

FORMS: Final = f'"{PREFIX}CATALOG" or "{PREFIX}CATALOG.NAMESPACE"'

_CATALOG: Final = re.compile(r"[A-Za-z0-9_-]+")  # a part of the setting spark.sql.catalog.CATALOG
_OF_METASTORE: Final = re.compile(r"[A-Za-z0-9_]+")  # Spark's SessionCatalog.validateName
_REFUSED: Final = re.compile(r"[\x00-\x20./\x7f]")  # by Unity


@dataclass(frozen=True, slots=True)
class CatalogWarehouse:
    """A catalog, or a namespace of it.

    Attributes:
        catalog: The catalog's name in Spark.
        namespace: Where all tables go, in lower case; None if each schema has a namespace of its own.
    """

    catalog: str
    namespace: str | None = None

    @classmethod
    def of(cls, warehouse: str) -> Self | None:
        """Read a configured warehouse; None for a folder or a URI.

        Raises:
            ValueError: It is meant to be a catalog, but is not written as one.
        """
        if not warehouse.startswith(PREFIX):
            return None
        catalog, dot, namespace = warehouse.removeprefix(PREFIX).partition(".")
        if not _CATALOG.fullmatch(catalog) or (dot and not can_hold(catalog, namespace)):
            what = "letters, digits and _" if catalog == SPARK_CATALOG else "letters, digits, _ and -"
            raise ValueError(f'must be {FORMS}, each name of {what}, not "{warehouse}"')
        return cls(catalog, folded(namespace) if dot else None)


def catalogs(warehouses: Iterable[str]) -> set[str]:
    """The catalogs that warehouses are in."""
    return {place.catalog for place in map(CatalogWarehouse.of, warehouses) if place is not None}


def with_metastore(settings: Mapping[str, str], warehouses: Iterable[str]) -> dict[str, str]:
    """Have Spark's own catalog be a Hive metastore, if a warehouse is there and nothing else is set."""
    own = {IMPLEMENTATION: "hive"} if SPARK_CATALOG in catalogs(warehouses) else {}
    return {**own, **settings}


def forgets(implementation: Callable[[], object], warehouses: Iterable[str]) -> bool:
    """Whether a warehouse is in Spark's own catalog while that is in memory, as it is by default.

    Args:
        implementation: The setting `IMPLEMENTATION`; asked for only if a warehouse is in that catalog.
    """
    return SPARK_CATALOG in catalogs(warehouses) and implementation() == "in-memory"


def can_hold(catalog: str, name: str) -> bool:
    """Whether a catalog can have a table or a namespace of that name."""
    if catalog == SPARK_CATALOG:
        return _OF_METASTORE.fullmatch(name) is not None
    return bool(name) and _REFUSED.search(name) is None


def unsupported_name(warehouse: str, namespace: str, name: str) -> str | None:
    """Why a warehouse cannot hold a table because of its name, as one sentence; None if it can."""
    place = CatalogWarehouse.of(warehouse)
    if place is None:
        return None
    what = "letters of ASCII, digits and _ only" if place.catalog == SPARK_CATALOG else "no dot, slash or space"
    schema = [("schema", namespace)] if place.namespace is None else []
    for kind, part in (*schema, ("table", name)):
        if not can_hold(place.catalog, part):
            return f'catalog "{place.catalog}" cannot have the name of {kind} "{part}": its names have {what}'
    return None


def shared_name_hint(warehouse: str, first: tuple[str, str], second: tuple[str, str]) -> str:
    """Say what to do about two tables, each (schema, name), that would become one table of a catalog."""
    place = CatalogWarehouse.of(warehouse)
    if place is not None and place.namespace is not None and folded(first[0]) != folded(second[0]):
        return f'set warehouse = "{PREFIX}{place.catalog}", which gives each schema a namespace, or publish one of them'
    return "a catalog ignores case: rename one of them, or publish one of them only"


def correct_name(name: str, columns: Collection[str]) -> str:
    """What to write in place of a column's name that a table does not have: one in another case, or any of them."""
    near = next((column for column in columns if column.lower() == name.lower()), None)
    return f'write "{near}"' if near else f"its columns are {', '.join(columns)}"


def folded(name: str) -> str:
    """A name as a catalog has it: Hive's metastore and Unity keep names in lower case."""
    return name.lower()


# --- How the files of a new Delta table are laid out: clustered, partitioned, or neither ------------------------------

MOST_CLUSTERING_COLUMNS: Final = 4
"""Delta's own limit."""


class Layout(NamedTuple):
    """The columns by which a Delta table's files are laid out; at most one of both has some.

    Attributes:
        cluster_by: The columns of liquid clustering.
        partition_by: The partition columns, in the order of the folders.
    """

    cluster_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All its columns."""
        return self.cluster_by + self.partition_by

    @property
    def option(self) -> str:
        """The key of the configuration that has its columns."""
        return "cluster_by" if self.cluster_by else "partition_by"


NO_LAYOUT: Final = Layout()
