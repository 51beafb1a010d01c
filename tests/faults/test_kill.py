"""kill -9 at every named point: the next start goes on from there; at the end all is as in a native subscriber."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

from pgbridge.bridge.lake.location import read_table
from pgbridge.bridge.publication.shape import Mask
from pgbridge.bridge.runtime.faults import FAULT_POINTS
from tests.oracle.delta import delta_table, differences, unequal
from tests.oracle.extension_types import TYPES
from tests.oracle.native import NativeSubscriber
from tests.oracle.replayed import fed, mirrored
from tests.oracle.workload import TABLES
from tests.oracle.workload_prepared import PreparedWorkload

# of the four tables' copies, the second is cut short: what was copied before it stays, the rest has another snapshot
POINTS = tuple("table_copied:2" if point == "table_copied" else point for point in FAULT_POINTS)


FEED = 'tables__"public.labels"__properties__"delta.enableChangeDataFeed"'
"""One of the tables has a feed of its changes, which loses none and has none twice."""

SALT = "a long random word"
SHAPED = {
    'tables__"public.docs"__mode': "soft_deletes",
    'tables__"public.docs"__mask__title': "sha256",
    'tables__"public.docs"__mask__body__first': 9,
    'tables__"public.lines"__rename_columns__order_id': "customer order",
    'tables__"public.lines"__rename_columns__quantity': "pieces",
    "target__vector": "array",
    "target__geometry": "wkb",
    "target__conflict_log_destination": "all",
    "target__sequences_every_s": 1,
    "workers__refresh": "auto",
}
"""Tables in other shapes: deleted rows that stay, masked values, other names of columns, also of the key's."""


PLACES = f"""
    {TYPES}
    CREATE TABLE places (id serial PRIMARY KEY, v vector, g geometry);
    ALTER PUBLICATION pub ADD TABLE places
"""
PLACED = """
    INSERT INTO places (v, g) SELECT format('[%s,0.5]', n)::vector, upper(lpad(to_hex(n), 10, '0'))::geometry
      FROM generate_series(1, 9) n;
    UPDATE places SET v = '[-1]', g = '00' WHERE id % 7 = 0; DELETE FROM places WHERE id % 5 = 0
"""


class Shaped:
    """What the shaped tables are to have of a native subscriber's rows."""

    def __init__(self, native):
        self._native = native

    def rows(self, table, columns=None):
        rows = self._native.rows(table, columns)
        if table == "places":  # as an array's and a bytea's texts
            return [(id_, v.translate({91: "{", 93: "}"}), f"\\x{g.lower()}") for id_, v, g in rows]
        if table != "docs":
            return rows
        masks = {"title": Mask("sha256", salt=SALT.encode()), "body": Mask("first", characters=9)}
        return [
            tuple(
                text if text is None or name not in masks else (masks[name].of(text.encode()) or b"").decode()
                for name, text in zip(columns, row, strict=True)
            )
            for row in rows
        ]


def unequal_shaped(spark, path, native, table):
    rows = delta_table(spark, path)
    if table == "docs":
        rows = rows.filter(rows["row_deleted_lsn"].is_null())
        rows = rows.drop_columns([name for name in rows.column_names if name.startswith("row_")])
    back = {"customer order": "order_id", "pieces": "quantity"}
    return unequal(rows.rename_columns([back.get(name, name) for name in rows.column_names]), Shaped(native), table)


MAKE_SLOTS = frozenset({"slot_created", "table_copied:2"})
"""After a kill at one of these a slot is made again, for which the server waits until prepared transactions end."""


@pytest.mark.soak  # `bridge/service/test_daemon.py` has one of them, `test_apply` a fault at each step of a batch
@pytest.mark.parametrize("shaped", [False, True], ids=["as published", "shaped"])
def test_the_daemon_is_killed(spark, publisher, daemon, tmp_path, shaped):
    """Each life recovers from the kill before it, and is killed at the next point: one after the other.

    Everything is streamed, and transactions are prepared in one life and committed or rolled back in another.
    """
    assert {point.partition(":")[0] for point in POINTS} == set(FAULT_POINTS)
    options: dict[str, str | bool] = {"streaming": "on", "two_phase": True}
    publisher.stream_everything()
    others: dict[str, object] = {FEED: True}
    compared: Any = differences
    if shaped:
        (tmp_path / "salt").write_text(SALT)
        (tmp_path / "salt").chmod(0o600)
        others = {**SHAPED, "target__mask_salt_file": str(tmp_path / "salt")}
        compared = unequal_shaped
    with PreparedWorkload(publisher.conninfo, 7) as workload:
        workload.create_tables()
        workload.publication("pub")
        tables = (*TABLES, "places") if shaped else TABLES
        if shaped:
            publisher.execute(PLACES)
        workload.step(40)
        workload.finish_prepared()
        with NativeSubscriber(publisher.conninfo, ["pub"], options=options) as native:
            native.wait_caught_up()
            bridge = daemon(batch__max_age_s=0.0, batch__max_rows=500, **others, **options)
            for point in POINTS:
                code = bridge.run_until_caught_up(fault=point)
                assert code == -signal.SIGKILL, f"{point} was not reached (exit code {code}):\n{bridge.log_tail()}"
                workload.step(25)
                if shaped:
                    publisher.execute(PLACED)
                if point in MAKE_SLOTS:
                    workload.finish_prepared()
                else:
                    workload.prepare()
            assert bridge.run_until_caught_up() == 0, bridge.log_tail()
            native.wait_caught_up()
            for table in tables:
                assert compared(spark, bridge.path(table), native, table) == []
            workload.finish_prepared()
            assert bridge.run_until_caught_up() == 0, bridge.log_tail()
            native.wait_caught_up()
            for table in tables:
                assert compared(spark, bridge.path(table), native, table) == []
            if not shaped:
                assert fed(spark, bridge.path("labels")) == mirrored(spark, bridge.path("labels"))
            if shaped:
                values = read_table(spark, f"{bridge.folder}/lake/pgbridge/sequences").filter("name = 'places_id_seq'")
                assert values.count() == 1
            verify = ["verify", "--config", str(bridge.config)]
            subprocess.run([*bridge.program, *verify], check=True, cwd=bridge.folder, capture_output=True)
            assert list((bridge.folder / "state" / "spool" / bridge.name).iterdir()) == []
