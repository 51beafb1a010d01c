"""A daemon's state for the tests of what shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.bridge.monitor.fixtures import state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgbridge.bridge.monitor.view import View


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    """The state of `fixtures.state`; its catalog is closed afterwards."""
    made = state(tmp_path)
    yield made
    assert made.catalog is not None
    made.catalog.close()
