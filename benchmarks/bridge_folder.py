"""A subscription's folder for benchmarks: its configuration, its state and its Delta tables; and copies of it."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pgbridge.protocol.lsn import Lsn

NAME: Final = "bench"
"""The subscription's name."""


_COPIED: Final = frozenset("fsr")
"""States of a table whose copy is complete: finishedcopy, syncdone, ready."""


def copies(catalog: Catalog) -> list[bool]:
    """Return for each table whether its copy is complete; nothing before the tables are known."""
    return [rel.state in _COPIED for rel in catalog.rels(NAME)]


def is_copied(catalog: Catalog) -> bool:
    """Whether the copies of all tables are complete."""
    found = copies(catalog)
    return bool(found) and all(found)


class BridgeFolder:
    """A folder with a configuration of one subscription, named `NAME`.

    Args:
        path: The folder; it need not exist yet.

    Attributes:
        config_file: The configuration.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "pgbridge.toml"

    def configure(
        self,
        conninfo: str,
        publication: str,
        *,
        slot_name: str,
        spark: Mapping[str, str] | None = None,
        **keys: str | float | bool,
    ) -> None:
        """Create the folder with a configuration file.

        Args:
            conninfo: The publisher.
            publication: The publication.
            slot_name: The slot.
            spark: Settings of `[spark.conf]`; none, as in a new configuration, by default.
            keys: Other keys of the subscription.
        """
        all_keys = {
            "connection": conninfo,
            "publications": [publication],
            "warehouse": "lake",
            "slot_name": slot_name,
            **keys,
        }
        lines = ['state_dir = "state"', "[spark.conf]"]
        lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in (spark or {}).items()]
        lines += [f"[subscription.{NAME}]", *(f"{key} = {json.dumps(value)}" for key, value in all_keys.items())]
        (self.path / "state").mkdir(parents=True)
        self.config_file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def copied_to(self, path: Path) -> BridgeFolder:
        """Copy the folder. The subscription in the copy goes on from where this one was stopped, in its own tables."""
        shutil.copytree(self.path, path)
        with closing(self.catalog()) as catalog:
            rels = catalog.rels(NAME)
        copy = BridgeFolder(path)
        with closing(copy.catalog()) as catalog:
            for rel in rels:
                catalog.put_rel(NAME, replace(rel, path=rel.path.replace(str(self.path), str(path), 1)))
        return copy

    def catalog(self) -> Catalog:
        """Open the catalog, which is created if it does not exist."""
        return Catalog(catalog_path(self.path / "state"))

    def remote_lsn(self) -> Lsn | None:
        """Return the LSN up to which all is durable; None before the subscription's slot is ready."""
        with closing(self.catalog()) as catalog:
            return catalog.remote_lsn(NAME)

    def paths(self) -> dict[str, str]:
        """Return the Delta tables' paths, by the tables' names."""
        with closing(self.catalog()) as catalog:
            return {rel.name: rel.path for rel in catalog.rels(NAME)}

    def commits(self) -> int:
        """Return the number of Delta commits in all tables."""
        return sum(1 for _ in self.path.glob("lake/*/*/_delta_log/*.json"))

    def last_error(self) -> str | None:
        """Return the subscription's last error, if it stands."""
        with closing(self.catalog()) as catalog:
            row = catalog.last_error(NAME)
        return None if row is None else row.message

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path)
