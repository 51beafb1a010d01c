"""pgbridge for those who use it: the name that is the same in a checkout and in an installed wheel.

`python -m pgbridge` is the command line, and `pgbridge.session` starts Spark with Delta as the daemon does. In a wheel
the folders `bridge`, `protocol` and `sql` are inside this package; `hatch_build.py` says why and how.
"""

from typing import TYPE_CHECKING

from bridge import __version__

if TYPE_CHECKING:
    from bridge.snapshot import snapshot

__all__ = ["__version__", "snapshot"]


def __getattr__(name: str) -> object:
    """Import a name when it is asked for: the command line has no use for Spark."""
    if name == "snapshot":
        from bridge import snapshot as module  # noqa: PLC0415

        return module.snapshot
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
