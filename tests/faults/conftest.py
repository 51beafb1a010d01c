"""Fixtures of the tests of faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from bridge import daemon as daemon_module
from bridge import session
from tests.faults.on_call import SETUP, OnCall

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shop(spark, publisher, tmp_path, pgbridge, monkeypatch) -> Iterator[OnCall]:
    """Both tables are copied, and their changes followed."""
    monkeypatch.setattr(session, "start", lambda *_, **__: spark)
    monkeypatch.setattr(session, "stop", lambda _: None)
    for name in ("keep_freed", "share_interpreter"):  # settings of the whole process
        monkeypatch.setattr(daemon_module, name, lambda: None)
    on_call = OnCall(spark, publisher, tmp_path, pgbridge)
    on_call.execute(SETUP)
    with capture_logs():  # else it would stand between the commands' lines
        on_call.start()
        try:
            on_call.wait_for_state("streaming")
            yield on_call
        finally:
            on_call.stop()
