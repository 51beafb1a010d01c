"""pgbridge for those who use it: the name that is the same in a checkout and in an installed wheel.

`python -m pgbridge` is the command line, `pgbridge.session` starts Spark with Delta as the daemon does, and `register`
and `export_snapshot` are the Spark data source "pgoutput". In a wheel the folders `bridge`, `protocol` and `sql` are
inside this package; `hatch_build.py` says why and how.
"""

from typing import TYPE_CHECKING

from bridge import __version__

if TYPE_CHECKING:
    from bridge.source.export import ExportedSnapshot, export_snapshot
    from bridge.source.register import register

__all__ = ["ExportedSnapshot", "__version__", "export_snapshot", "register"]


def __getattr__(name: str) -> object:
    """Import a name when it is first used: the command line does without PyArrow and psycopg for as long as it can."""
    if name == "register":
        from bridge.source.register import register  # noqa: PLC0415

        return register
    if name in {"ExportedSnapshot", "export_snapshot"}:
        from bridge.source import export  # noqa: PLC0415

        return getattr(export, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
