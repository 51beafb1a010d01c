"""Properties of new Delta tables, as a configuration has them: which ones pgbridge cannot do with.

What Delta itself refuses (a name that it does not know, one property that excludes another), only Delta can tell: see
`bridge.lake.ddl.check_properties`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

RETENTION: Final = "delta.setTransactionRetentionDuration"
_LEAST_RETENTION_S: Final = 86_400
"""Late commits come within minutes. Nobody needs a shorter one: an application id is a line in a checkpoint."""

_FILES: Final = "delta.deletedFileRetentionDuration"
LEAST_FILES_S: Final = 7 * 86_400
"""How long files are kept at least that the latest version does not have: Delta's own default."""

FORGETS: Final = "Delta then forgets which commits of pgbridge a table has, and one that comes late may be made twice"
_SECONDS: Final = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86_400,
    "week": 7 * 86_400,
}
_INTERVAL: Final = re.compile(rf"(\d+)\s*({'|'.join(_SECONDS)})", re.IGNORECASE)

VECTORS: Final = "delta.enableDeletionVectors"
INDEXED: Final = "delta.dataSkippingNumIndexedCols"
STATISTICS: Final = "delta.dataSkippingStatsColumns"
_FORMATS: Final = "delta.universalFormat.enabledFormats"
_WITHOUT_VECTORS: Final = (
    "delta.enableIcebergCompatV1",
    "delta.enableIcebergCompatV2",
    "delta.compatibility.symlinkFormatManifest.enabled",
)
"""With one of them a table has no deletion vectors (Delta's IcebergCompat.scala, GenerateSymlinkManifest.scala)."""


def is_short(interval: str, least_s: float = _LEAST_RETENTION_S) -> bool:
    """Whether a retention, as Delta writes an interval, is too short; by default that of transaction ids."""
    parts = _INTERVAL.findall(interval)
    return bool(parts) and sum(int(count) * _SECONDS[unit.lower()] for count, unit in parts) < least_s


def as_properties(given: Any) -> Any:
    """Properties as a configuration gives them, names and values as Delta writes them; no table is left as it is.

    Raises:
        ValueError: A name was written without quotes, a value is neither text nor a number nor a boolean, or pgbridge
            cannot do with the property.
    """
    if not isinstance(given, dict):
        return given
    properties: dict[str, str] = {}
    for name, value in given.items():
        if isinstance(value, dict):
            raise ValueError(  # noqa: TRY004 - pydantic collects ValueErrors
                f'put the names of properties in quotes, as in "delta.enableChangeDataFeed", not {name}.…'
            )
        if not isinstance(value, str | int | float):
            raise ValueError(f'"{name}" must be a string, a number or a boolean')  # noqa: TRY004 - as above
        own = str(_SPELLED.get(name.lower(), name))  # Delta takes its own in any case
        if own in properties:
            raise ValueError(f'"{own}" is there twice')
        text = str(value)
        properties[own] = text.lower() if text.lower() in {"true", "false"} else text
        if (why := _refusal(own, properties[own])) is not None:
            raise ValueError(f'"{name}" cannot be {properties[own]}: {why}')
    return properties


_APPEND_ONLY: Final = "delta.appendOnly"
_ISOLATION: Final = "delta.isolationLevel"
_SPELLED: Final[dict[str, str]] = {
    name.lower(): name
    for name in (
        *(VECTORS, INDEXED, STATISTICS, RETENTION, _FILES, _FORMATS, _APPEND_ONLY, _ISOLATION, *_WITHOUT_VECTORS),
        *("delta.enableChangeDataFeed", "delta.enableRowTracking", "delta.logRetentionDuration"),
    )
}
"""The names that pgbridge looks at, by their lower case."""


def _refusal(name: str, value: str) -> str | None:
    if name.lower().startswith("pgbridge."):
        return "pgbridge says by properties of this name which tables are its own"
    if name == _APPEND_ONLY and value == "true":
        return "rows are changed and deleted, in a changelog and a history, too, when a batch is taken back"
    if name == _ISOLATION and value.lower() != "serializable":
        return "a batch relies on what it has read, and would not notice rows that another writer adds meanwhile"
    if name == RETENTION and is_short(value):
        return FORGETS
    if name == _FILES and is_short(value, LEAST_FILES_S):
        return "a batch that is taken back, and readers, need files for a week"
    return None


def completed(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties, and that a table has no deletion vectors, if others say so: pgbridge would switch them on."""
    without = any(properties.get(name) == "true" for name in _WITHOUT_VECTORS) or properties.get(_FORMATS)
    return {**({VECTORS: "false"} if without else {}), **properties}
