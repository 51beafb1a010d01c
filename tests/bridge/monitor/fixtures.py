"""A daemon's state as the monitor sees it: a real catalog, observations and slots, with names that attack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog import notes
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import CopyRow, RelRow
from pgbridge.bridge.config.config import Config, Subscription
from pgbridge.bridge.monitor.view import Sources, View
from pgbridge.bridge.receive.slot_status import SlotHealth
from pgbridge.bridge.runtime.observer import BatchReport
from pgbridge.protocol.lsn import Lsn
from tests.hostile import NAMES as HOSTILE

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "s3cr3t-w0rd"
NAMES = (*HOSTILE, "back\\slash\nnewline", "orders", "customers")
NOW_S = 1_790_000_000.0
_EPOCH_S = 946_684_800


@dataclass(frozen=True)
class FakeHeap:
    """A heap."""

    used_bytes: int = 700 << 20
    max_bytes: int = 2 << 30


def state(folder: Path) -> View:
    """A subscription that streams, with an hour behind it, and one in error whose slot runs out."""
    catalog = Catalog(catalog_path(folder))
    subscriptions = {
        name: Subscription(
            name=name,
            connection=f"host=db password={SECRET}",
            publications=("pub",),
            warehouse="/srv/lake",
        )
        for name in ("shop", "crm")
    }
    for name in subscriptions:
        catalog.register(name, enabled=True)
        catalog.set_slot(name, slot_name=name, slot_state="ready", system_identifier="7")
    rels = [RelRow("public", table, "r", Lsn(1), f"/srv/lake/public/{number}") for number, table in enumerate(NAMES)]
    catalog.create_origin(
        "shop", Lsn(0x5_0000_0000), "abc", [*rels, RelRow("hr", "people", "d", Lsn(0), "/srv/lake/hr")]
    )
    catalog.create_origin("crm", Lsn(0x4_0000_0000), "abc", [RelRow("public", "leads", "r", Lsn(1), "/srv/crm/leads")])
    catalog.set_state("shop", "streaming", received_lsn=Lsn(0x5_0000_2000))
    catalog.set_state("crm", "error", received_lsn=Lsn(0x4_0000_1000))
    catalog.record_error(
        "crm",
        'conflict insert_exists detected on relation "public.leads" <b>key</b>',
        counter="apply",
        finish_lsn=Lsn(0x4_0000_0800),
        relation="public.leads",
    )
    notes.put_copies(catalog, "shop", [CopyRow("hr", "people", 120_000, 9 << 20, 30 << 20, 40_000.0, 7.0)])
    notes.count_conflicts(catalog, "crm", {"update_missing": 3})
    (folder / "spool" / "shop").mkdir(parents=True)
    (folder / "spool" / "shop" / "1").write_bytes(b"x" * 1000)
    config = Config(state_dir=folder, subscription=subscriptions)
    slots = {
        "shop": SlotHealth("reserved", None, 16 << 20, Lsn(0x5_0000_0000), Lsn(0x5_0000_4000), True, None, None),
        "crm": SlotHealth("extended", 2 << 30, 9 << 30, Lsn(0x4_0000_0000), Lsn(0x6_0000_0000), False, None, 1500.0),
    }
    sources = Sources(
        config=lambda: config, slots=lambda: slots, heap=FakeHeap, spark=lambda: "running", restarts=lambda: 1
    )
    view = View(sources, catalog, started_s=NOW_S - 7200)
    _tell(view)
    return view


def _tell(view: View) -> None:
    """An hour of lag, and the last batches."""
    clock = [NOW_S - 3600]
    for name in ("shop", "crm"):
        view.observations(name)._now_s = lambda: clock[0]  # the clock of the story
    for step in range(360):
        clock[0] = NOW_S - 3600 + step * 10
        shop, crm = view.observations("shop"), view.observations("crm")
        shop.durable(Lsn(0x5_0000_0000 + step - 1))
        if 100 < step < 110:  # the server was away
            shop.stream_ended()
        else:
            shop.stream_begins(Lsn(0x5_0000_0000 + step - 1), Lsn(0x6_0000_0000))
            lag_s = 1.2 + abs(math.sin(step / 20)) * (6 if 200 < step < 260 else 1)
            shop.received(int((clock[0] - lag_s - _EPOCH_S) * 1e6), Lsn(0x5_0000_0000 + step))
        shop.sample(None if 100 < step < 110 else int(40_000 * (1 + abs(math.sin(step / 20)))))
        crm.sample(step * 1_000_000)
        if step % 12 == 0:
            seconds = {"form": 0.1, "commit": 0.9 + 0.4 * abs(math.sin(step)), "flush": 0.05, "record": 0.01}
            commit_time_us = int((clock[0] - 1.5 - _EPOCH_S) * 1e6)
            shop.applied(BatchReport(Lsn(0x5_0000_0000 + step), commit_time_us, 120, 4_800, 3, seconds))
