"""Where scratch folders are made, for what warms Spark up."""

from tests.bridge.applying import scratch_base

__all__ = ["scratch_base"]
