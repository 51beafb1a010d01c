"""How the files of a new Delta table are laid out: clustered, partitioned, or neither."""

from __future__ import annotations

from typing import Final, NamedTuple

MOST_CLUSTERING_COLUMNS: Final = 4
"""Delta's own limit."""


class Layout(NamedTuple):
    """The columns by which a Delta table's files are laid out; at most one of both has some.

    Attributes:
        cluster_by: The columns of liquid clustering.
        partition_by: The partition columns, in the order of the folders.
    """

    cluster_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All its columns."""
        return self.cluster_by + self.partition_by

    @property
    def option(self) -> str:
        """The key of the configuration that has its columns."""
        return "cluster_by" if self.cluster_by else "partition_by"


NO_LAYOUT: Final = Layout()
