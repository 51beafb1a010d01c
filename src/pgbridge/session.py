"""Spark with Delta as the daemon starts it, to look at its tables."""

from pgbridge.bridge.spark.session import start

__all__ = ["start"]
