"""A subscription whose Delta tables are in memory, and the commands that its errors print, typed."""

from __future__ import annotations

import shlex
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from pgbridge.bridge.service import cli
from tests.fix_bridge import Pipeline
from tests.oracle.memory_tables import in_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fix_postgres import Publisher

    Rows = Callable[[str], list[dict[str, Any]]]


@contextmanager
def bridge(publisher: Publisher, folder: Path, **options: Any) -> Iterator[tuple[Pipeline, Rows]]:
    """A subscription, and how to read one of its tables."""
    with in_memory() as tables:
        pipeline = Pipeline(tables, publisher, folder, workers__retry_max_s=0.2, **options)
        with closing(pipeline.catalog):
            yield pipeline, lambda table: sorted(tables.arrow(pipeline.path(table)).to_pylist(), key=str)


def type_in(pipeline: Pipeline, command: str) -> None:
    """Run a printed command, as the shell would."""
    subscription, file = pipeline.subscription, pipeline.folder / "pgbridge.toml"
    file.write_text(
        f'state_dir = "state"\n[subscription."{subscription.name}"]\nconnection = "{subscription.connection}"\n'
        f'publications = ["pub"]\nwarehouse = "{subscription.warehouse}"\n'
        f"two_phase = {str(subscription.two_phase).lower()}\n"
    )
    cli.app([*shlex.split(command)[1:], "--config", str(file)], standalone_mode=False)
