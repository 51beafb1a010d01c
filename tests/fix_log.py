"""Logging is set up once for a process; a test that does so does not change what the next one sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Put structlog's configuration and context back as they were before the test."""
    before = structlog.get_config()
    yield
    structlog.contextvars.clear_contextvars()
    structlog.configure(**before)
