"""The location of a published table's Delta table: one text for each, which the state, the status and messages have.

It is a path or a URI, or `catalog:CATALOG.NAMESPACE.TABLE` for a table of a catalog of Spark. Statements name the table
by `sql_name`; `bridge.lake.location` reads it, `bridge.lake.writes` writes it.
"""

from __future__ import annotations

import re
from typing import Final

from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.runtime.warehouse import PREFIX, CatalogWarehouse, folded, unsupported_name

_NO_TABLES: Final = frozenset({"_delta_log", "_samples"})  # DeltaTableUtils.findDeltaTableRoot
_TIME_TRAVEL: Final = re.compile("@(?=(?:[vV][0-9]+|[0-9]{17})$)")  # DeltaTimeTravelSpec: @v<version>, @<time>

OWN_NAMESPACE: Final = "pgbridge"
"""The schema, in a warehouse, of tables that are no published table's."""


def table_location(warehouse: str, namespace: str, name: str) -> str:
    """The location of a published table's Delta table.

    Two tables have one location if the warehouse is a namespace and their names are equal, or if it is a catalog and
    they differ in case only.

    Raises:
        TargetError: The catalog cannot have such a name.
    """
    catalog = CatalogWarehouse.of(warehouse)
    if catalog is None:
        return table_path(warehouse, namespace, name)
    reason = unsupported_name(warehouse, namespace, name)
    if reason is not None:
        raise TargetError(f'the Delta table of "{namespace}.{name}" has no place: {reason}')
    return f"{PREFIX}{catalog.catalog}.{catalog.namespace or folded(namespace)}.{folded(name)}"


def own_location(warehouse: str, name: str) -> str:
    """The location of a table that pgbridge keeps beside the published ones, as `messages`: `pgbridge.<name>`.

    It is `pgbridge_<name>` where all tables are in one namespace of a catalog.
    """
    catalog = CatalogWarehouse.of(warehouse)
    if catalog is not None and catalog.namespace is not None:
        return table_location(warehouse, catalog.namespace, f"{OWN_NAMESPACE}_{name}")
    return table_location(warehouse, OWN_NAMESPACE, name)


def catalog_parts(location: str) -> tuple[str, str, str] | None:
    """Catalog, namespace and name of a catalog's table; None for a path."""
    if not location.startswith(PREFIX):
        return None
    catalog, namespace, name = location.removeprefix(PREFIX).split(".")
    return catalog, namespace, name


def sql_name(location: str) -> str:
    """The table in Spark SQL: `delta.`…`` of a path, or the catalog's name of it."""
    parts = catalog_parts(location)
    return f"delta.{quoted(location)}" if parts is None else ".".join(map(quoted, parts))


def quoted(name: str) -> str:
    """A name or path in Spark SQL's backticks."""
    return "`" + name.replace("`", "``") + "`"


def table_path(warehouse: str, namespace: str, name: str) -> str:
    """`<warehouse>/<namespace>/<name>`; in a name, a slash is written %2F, and a percent sign %25.

    So is what Delta would not take for a name. `_delta_log`, which makes a table of the folder above it, becomes
    `%5Fdelta_log`, and so does `_samples`, where Delta looks for no table. `t@v1`, which to Delta is version 1 of `t`,
    becomes `t%40v1`.
    """
    parts = [part.replace("%", "%25").replace("/", "%2F") for part in (namespace, name)]
    parts = ["%2E" * len(part) if part in {".", ".."} else part for part in parts]
    parts = [part.replace("_", "%5F", 1) if part in _NO_TABLES else part for part in parts]
    parts = [_TIME_TRAVEL.sub("%40", part) for part in parts]
    return "/".join([warehouse.rstrip("/"), *parts])
