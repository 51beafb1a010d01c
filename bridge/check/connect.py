"""Whether the packages of the extra `connect` are installed, for a Spark Connect server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.check.finding import Finding, failure, passed
from bridge.runtime import remedies

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGES: Final = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "zstandard": "zstandard",
}


def check_connect(find: Callable[[str], object | None]) -> Finding:
    """Look for the packages; whether the server answers is told by Spark's start.

    Args:
        find: Finds a module by its name, as `importlib.util.find_spec`.
    """
    missing = [package for module, package in _PACKAGES.items() if not _is_found(find, module)]
    if missing:
        return failure(
            "Spark Connect",
            f"packages are not installed: {', '.join(missing)}",
            remedy="install them beside pgbridge",
            statement=remedies.install("connect"),
        )
    return passed("Spark Connect", "its packages are installed; the server tells at the start whether it can be used")


def _is_found(find: Callable[[str], object | None], module: str) -> bool:
    try:
        return find(module) is not None
    except ModuleNotFoundError:  # the package above it
        return False
