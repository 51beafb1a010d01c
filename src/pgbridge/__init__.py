"""pgbridge for those who use it.

`python -m pgbridge` is the command line, `pgbridge.session` starts Spark with Delta as the daemon does, `Subscription`
gives a function the committed transactions as Spark DataFrames, and `register` and `export_snapshot` are the Spark data
source "pgoutput". The names in `__all__` are stable. In a checkout the folders `bridge`, `protocol` and `sql` are links
to those of its top level; docs/decisions/package.md says why.
"""

from typing import TYPE_CHECKING

from pgbridge.bridge.runtime import __version__, remedies

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
    from pgbridge.bridge.source.merge import merge_into
    from pgbridge.bridge.source.register import register
    from pgbridge.bridge.source.stream import stream

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
    "merge_into",
    "parse_lsn",
    "register",
    "snapshot",
    "stream",
]


_MODULES = {
    "ChangeBatch": "apply.handler",
    "ExportedSnapshot": "source.export",
    "Snapshot": "snapshots.snapshot",
    "Subscription": "service.embedded",
    "complete_until": "snapshots.completeness",
    "export_snapshot": "source.export",
    "lsn_text": "batch.change_schema",
    "merge_into": "source.merge",
    "parse_lsn": "batch.change_schema",
    "register": "source.register",
    "snapshot": "snapshots.snapshot",
    "stream": "source.stream",
}
"""Where a name is, if it is not an error."""


def __getattr__(name: str) -> object:
    """Import a name when it is asked for: the command line has no use for Spark.

    Raises:
        ImportError: It needs a library that is not installed.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = f"{__name__}.bridge.{_MODULES.get(name, 'runtime.errors')}"
    return getattr(remedies.imported(module, f"{__name__}.{name}"), name)
