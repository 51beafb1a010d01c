"""Spark with Delta as the daemon starts it, to look at its tables."""

from typing import TYPE_CHECKING

from pgbridge.bridge.runtime import remedies

if TYPE_CHECKING:
    from pgbridge.bridge.spark.session import start

__all__ = ["start"]


def __getattr__(name: str) -> object:
    """Import `start` when it is asked for.

    Raises:
        ImportError: It needs a library that is not installed.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(remedies.imported("pgbridge.bridge.spark.session", f"{__name__}.{name}"), name)
