"""pgbridge for those who use it.

`python -m pgbridge` is the command line, `pgbridge.session` starts Spark with Delta as the daemon does, `Subscription`
gives a function the committed transactions as Spark DataFrames, and `register` and `export_snapshot` are the Spark data
source "pgoutput". The names in `__all__` are stable. In a wheel the folders `bridge`, `protocol` and `sql` are inside
this package; `hatch_build.py` says why and how.
"""

from typing import TYPE_CHECKING

from pgbridge.bridge.runtime import __version__

if TYPE_CHECKING:
    from pgbridge.bridge.apply.handler import ChangeBatch
    from pgbridge.bridge.batch.change_schema import lsn_text, parse_lsn
    from pgbridge.bridge.runtime.errors import (
        ApplyError,
        BridgeError,
        ConfigError,
        PublisherError,
        SkipError,
        StateError,
        TargetError,
    )
    from pgbridge.bridge.service.embedded import Subscription
    from pgbridge.bridge.snapshots.completeness import complete_until
    from pgbridge.bridge.snapshots.snapshot import Snapshot, snapshot
    from pgbridge.bridge.source.export import ExportedSnapshot, export_snapshot
    from pgbridge.bridge.source.register import register

__all__ = [
    "ApplyError",
    "BridgeError",
    "ChangeBatch",
    "ConfigError",
    "ExportedSnapshot",
    "PublisherError",
    "SkipError",
    "Snapshot",
    "StateError",
    "Subscription",
    "TargetError",
    "__version__",
    "complete_until",
    "export_snapshot",
    "lsn_text",
    "parse_lsn",
    "register",
    "snapshot",
]


def __getattr__(name: str) -> object:
    """Import a name when it is asked for: the command line has no use for Spark."""
    if name == "ChangeBatch":
        from pgbridge.bridge.apply import handler as module  # noqa: PLC0415
    elif name == "Subscription":
        from pgbridge.bridge.service import embedded as module  # type: ignore[no-redef] # noqa: PLC0415
    elif name in {"lsn_text", "parse_lsn"}:
        from pgbridge.bridge.batch import change_schema as module  # type: ignore[no-redef] # noqa: PLC0415
    elif name in {"ExportedSnapshot", "export_snapshot"}:
        from pgbridge.bridge.source import export as module  # type: ignore[no-redef] # noqa: PLC0415
    elif name in {"Snapshot", "snapshot"}:
        from pgbridge.bridge.snapshots import snapshot as module  # type: ignore[no-redef] # noqa: PLC0415
    elif name == "complete_until":
        from pgbridge.bridge.snapshots import completeness as module  # type: ignore[no-redef] # noqa: PLC0415
    elif name == "register":
        from pgbridge.bridge.source import register as module  # type: ignore[no-redef] # noqa: PLC0415
    elif name in __all__:
        from pgbridge.bridge.runtime import errors as module  # type: ignore[no-redef] # noqa: PLC0415
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
