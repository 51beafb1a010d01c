"""The fixtures of what applies batches."""

from tests.bridge.applying import catalog, merging, parts, scratch_base, strict, target

__all__ = ["catalog", "merging", "parts", "scratch_base", "strict", "target"]
