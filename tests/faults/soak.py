"""Random faults under load, for as long as is asked for; at the end the Delta tables must equal the source.

    python -m tests.faults.soak --seconds 1200 --report tests/faults/reports/…
    python -m tests.faults.soak --promotions  # also of standbys that lack what the daemon has, which it must say
    python -m tests.faults.soak --kind cluster  # or s3, connect: `soak_places.py` has each kind, with its own faults

Everything is real: a PostgreSQL pair, a TCP proxy before it, the daemon with its JVM, a small file system for state and
tables that is filled up (as root; otherwise this fault is left out). The seed decides on the order of faults and the
load, not on the moment at which a fault meets the daemon. Towards the end no fault ends the daemon, so that what grows
in it is seen (`soak_day.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg

from tests.faults import soak_day, soak_end
from tests.faults.load import SCHEMA, Load
from tests.faults.proxy import Proxy
from tests.faults.soak_places import PLACES
from tests.faults.soak_report import report
from tests.faults.soaked_daemon import ROOT, Daemon
from tests.faults.standby import Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgbridge.bridge.demo.server import Setting
    from tests.faults.soak_places import Place

NAME = "soak"
_DISK = "8g"  # nothing is vacuumed within two hours

CONFIG = """
state_dir = "./state"
[spark]
master = "{master}"
[spark.conf]
{conf}
[subscription.soak]
connection = "host=127.0.0.1,127.0.0.1 port={ports} dbname=postgres user=postgres password={password} {attributes}"
publications = ["pub"]
warehouse = "{warehouse}"
target.adopt = true
failover = true
streaming = "{streaming}"
two_phase = {two_phase}
workers.wal_receiver_timeout_s = 10
workers.retry_max_s = 5
batch.max_rows = {batch_rows}
batch.max_bytes = {batch_bytes}
"""


class Soak:
    """One run: what is under test, and the faults."""

    def __init__(
        self, pair: Pair, folder: Path, place: Place, seed: int, *, disk: bool, promotions: bool = False
    ) -> None:
        self.pair, self.folder, self.place, self.disk = pair, folder, place, disk
        self.promotions = promotions
        self.name = NAME
        self.random = place.chance
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self._pair_ports = (pair.primary.port, pair.standby.port if pair.standby else 0)
        self.proxies = [Proxy(lambda: self._address(0)), Proxy(lambda: self._address(1))]
        self.daemon = Daemon(folder)
        self.load = Load(self._conninfo, seed, pause_s=0.05, prepares=True)
        self.two_phase = self.random.choice(("true", "false"))
        self.extra = True
        self.is_night = False
        self._poisons = 0

    def _conninfo(self) -> str:
        return self.pair.primary.conninfo()

    def _address(self, index: int) -> tuple[str, int]:
        """The first proxy leads to whichever is the primary, the second to the standby."""
        server = self.pair.primary if index == 0 else self.pair.standby
        if server is None:
            raise ConnectionRefusedError
        return server.host, server.port

    def configure(self) -> None:
        """Write a configuration; some options differ each time."""
        text = CONFIG.format(
            master=self.place.master,
            conf="\n".join(f'"{key}" = "{value}"' for key, value in self.place.conf.items()),
            warehouse=self.place.warehouse,
            ports=",".join(str(proxy.port) for proxy in reversed(self.proxies)),
            password=self.pair.primary.password,
            attributes="target_session_attrs=read-write connect_timeout=5",
            streaming=self.random.choice(("on", "off")),
            two_phase=self.two_phase,
            batch_rows=self.random.choice((5_000, 50_000, 2_000_000)),
            batch_bytes=self.random.choice((4 << 20, 256 << 20)),  # with the first, large ones are spooled
        )
        path = self.folder / "pgbridge.toml"
        path.write_text(text)
        path.chmod(0o600)

    def execute(self, statement: str) -> None:
        """Run a statement on the primary."""
        with psycopg.connect(self.pair.primary.conninfo(), autocommit=True) as connection:
            connection.execute(statement.encode())

    # --- faults -------------------------------------------------------------------------------------------------------

    def faults(self) -> dict[str, tuple[int, Callable[[], None]]]:
        """Each fault with its weight; at night those that leave the daemon running."""
        faults: dict[str, tuple[int, Callable[[], None]]] = {
            "server restart, fast": (2, lambda: self.pair.primary.restart("fast")),
            "server restart, immediate": (2, lambda: self.pair.primary.restart("immediate")),
            "kill -9 of the server": (2, self._kill_server),
            "promotion of the standby": (2, self._promote),
            "connections cut": (4, lambda: self.on_proxies("cut")),
            "connections half-closed": (3, lambda: self.on_proxies("half_close")),
            "network silent for 15 s": (2, lambda: self._network(silent=True)),
            "connections refused for 8 s": (2, lambda: self._network(refuses=True)),
            "network slow for 10 s": (2, lambda: self._network(delay_s=0.2)),
            "disable and enable": (2, self._disable),
            "refresh with another table": (3, self.refresh),
            "a table copied again": (2, self._resync_table),
            "a transaction that cannot be applied, skipped": (2, self._poison),
            "reload with other options": (3, self._reload),
            "the slot dropped, and the subscription copied again": (1, self._lose_slot),
        }
        if self.promotions:
            faults["promotion of a standby that lacks the tail"] = (3, self._promote_behind)
        if self.disk:
            faults["full disk for 10 s"] = (2, self._fill_disk)
        if not self.is_night:
            faults["kill -9 of the daemon"] = (4, self._kill_daemon)
            faults["SIGTERM of the daemon"] = (2, self._stop_daemon)
            faults["kill -9 of Spark's JVM"] = (2, self._kill_java)
            if self.place.local:
                faults["OPTIMIZE by hand while the daemon is stopped"] = (2, self._optimize)
                faults["a month passes while the daemon is stopped"] = (5, self._pass_month)
        return faults | self.place.faults()

    def last(self, duration_s: float) -> None:
        """Let faults happen for so long."""
        begin_s = time.monotonic()
        while (part := (time.monotonic() - begin_s) / duration_s) < 1:
            self.is_night = part >= soak_day.NIGHT
            time.sleep(self.random.uniform(3, 20))
            self.daemon.measure()
            self.one()
            if self.promotions and soak_end.has_gone_back(self):
                soak_end.helped(self)

    def one(self) -> None:
        """Let a fault happen."""
        faults = self.faults()
        (name,) = self.random.choices(list(faults), [weight for weight, _ in faults.values()])
        began_s = time.monotonic()
        faults[name][1]()
        self.counts[name] += 1
        print(f"{datetime.now(UTC):%H:%M:%S} {name} ({time.monotonic() - began_s:.1f} s)", flush=True)
        if not self.daemon.alive():
            # a daemon gives up after its JVM has died too often, or when its disk is full at the start
            self.counts["daemon started again by its supervisor"] += 1
            self.daemon.start()

    def _kill_daemon(self) -> None:
        self.daemon.end(signal.SIGKILL)
        self.daemon.start()

    def _stop_daemon(self) -> None:
        code = self.daemon.end(signal.SIGTERM)
        if code != 0:
            self.notes.append(f"SIGTERM gave exit code {code}")
        self.daemon.start()

    def _kill_java(self) -> None:
        if (java := self.daemon.java()) is not None:
            with contextlib.suppress(psutil.Error):
                java.kill()

    def _kill_server(self) -> None:
        self.pair.primary.kill()
        self.pair.primary.start()

    def _promote(self) -> None:
        if not self.pair.wait_synchronized(NAME):
            self.counts["promotion left out: the slot was not synchronized"] += 1
            return
        self.pair.fail_over()
        self.on_proxies("cut")
        self.pair.make_standby()

    def on_proxies(self, what: str) -> None:
        """Call a method of both proxies."""
        for proxy in self.proxies:
            getattr(proxy, what)()

    def _network(self, *, silent: bool = False, refuses: bool = False, delay_s: float = 0.0) -> None:
        for proxy in self.proxies:
            proxy.silent, proxy.refuses, proxy.delay_s = silent, refuses, delay_s
        if refuses:
            self.on_proxies("cut")
        time.sleep(15 if silent else 8 if refuses else 10)
        self.on_proxies("heal")

    def _fill_disk(self) -> None:
        filler = self.folder / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"\0" * (1 << 20))
                file.flush()
        time.sleep(10)
        filler.unlink(missing_ok=True)

    def _disable(self) -> None:
        self.daemon.command("disable", NAME)
        time.sleep(3)
        self.daemon.command("enable", NAME)

    def refresh(self) -> None:
        """Publish a table or do not, and have the daemon know."""
        self.extra = not self.extra
        self.execute(f"ALTER PUBLICATION pub {'ADD' if self.extra else 'DROP'} TABLE extra")
        self.daemon.command("refresh", NAME)

    def _resync_table(self) -> None:
        self.daemon.command("refresh", NAME, "--resync", self.random.choice(("docs", "lines", "events")))

    def _optimize(self) -> None:
        """By another process, whose commits the daemon finds when it starts again."""
        self.daemon.end(signal.SIGTERM)
        logs = (self.folder / "lake" / "public").glob("*/_delta_log")
        command = [sys.executable, "-m", "tests.faults.optimize", *(str(log.parent) for log in logs)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            self.notes.append(f"OPTIMIZE failed: {done.stderr[-500:]}")
        self.daemon.start()

    def _pass_month(self) -> None:
        self.daemon.end(signal.SIGTERM)
        soak_day.age(self.folder / "lake")
        soak_day.age_maintenance(self.folder / "state" / "catalog.sqlite")
        self.daemon.start()

    def _lose_slot(self) -> None:
        """As an operator who has dropped it by mistake, and follows the runbook."""
        self.execute(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots "
            f"WHERE slot_name = '{NAME}' AND active_pid IS NOT NULL"
        )
        with contextlib.suppress(psycopg.Error):  # the daemon was faster, and reads it again
            self.execute(f"SELECT pg_drop_replication_slot('{NAME}')")
            self.counts["slots dropped"] += 1
        done = self.daemon.command("resync", NAME)
        if done.returncode != 0:
            self.counts["resync refused"] += 1
            print(done.stderr, flush=True)

    def _promote_behind(self) -> None:
        """The standby lacks what the daemon may have applied already; the daemon must say so, or copy it again."""
        if not self.pair.wait_synchronized(NAME):
            self.counts["promotion left out: the slot was not synchronized"] += 1
            return
        self.pair.let_lag()
        time.sleep(self.random.uniform(2, 10))
        self.pair.fail_over()
        self.on_proxies("cut")
        self.pair.make_standby()

    def _poison(self) -> None:
        """PostgreSQL holds the timestamp infinity, Delta does not."""
        self._poisons += 1
        self.execute(f"INSERT INTO poison VALUES ({self._poisons}, 'infinity')")
        end_s = time.monotonic() + 120
        while time.monotonic() < end_s and self.daemon.alive():
            error = self.daemon.status().get("last_error")
            if error and "infinity" in error["message"]:
                if error["finish_lsn"]:  # else it was met by a copy, which succeeds without it
                    self.daemon.command("skip", NAME, "--lsn", error["finish_lsn"])
                    self.counts["transactions skipped"] += 1
                break
            time.sleep(1)
        self.execute("DELETE FROM poison")  # else the table could never be copied

    def _reload(self) -> None:
        self.configure()
        os.kill(self.daemon.pid, signal.SIGHUP) if self.random.random() < 0.5 else self.daemon.command("reload")


@contextlib.contextmanager
def working_folder(*, disk: bool) -> Iterator[Path]:
    """A folder; with `disk` a small file system of its own."""
    folder = Path(tempfile.mkdtemp(prefix="pgbridge-soak-"))
    try:
        if disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "none", str(folder)], check=True)
        yield folder
    finally:
        if disk:
            subprocess.run(["umount", "-l", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run it; returns 0 if all tables are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kind", choices=PLACES, default="local", help="Where Spark and the tables are.")
    parser.add_argument("--promotions", action="store_true", help="Also promote standbys that lack the tail.")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--keep-log", type=Path, help="Copy the daemon's log there.")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    disk = os.geteuid() == 0
    settings: dict[str, Setting] = {"max_wal_senders": 20, "max_replication_slots": 20, "autovacuum": False}
    settings["max_prepared_transactions"] = 10
    settings["logical_decoding_work_mem"] = "64kB"  # so that transactions are streamed
    kind = PLACES[arguments.kind]
    with (
        working_folder(disk=disk) as folder,
        working_folder(disk=False) as beside,
        kind(beside, random.Random(arguments.seed)) as place,
        Pair(settings) as pair,
    ):
        soak = Soak(pair, folder, place, arguments.seed, disk=disk, promotions=arguments.promotions)
        soak.execute(SCHEMA)
        soak.configure()
        soak.daemon.start()
        soak.load.start()
        try:
            while soak.daemon.alive() and soak.daemon.status().get("state") != "streaming":
                time.sleep(1)
            sampler = soak_day.Sampler(soak.daemon, lambda: place.jvm(soak.daemon), lambda: place.log_files(folder))
            sampler.start()
            soak.last(arguments.seconds)
            sampler.stop()
            soak_end.catch_up(soak)
            if not place.beside:
                soak.daemon.end(signal.SIGTERM)
            verified = soak_end.verified(soak)
            leaked = soak_end.leaks(soak)
            soak.notes += [f"the password is in {place}" for place in leaked]
            soak.daemon.end(signal.SIGTERM)
            found = soak_end.compare(soak)
        finally:
            soak.daemon.end(signal.SIGKILL)
            for proxy in soak.proxies:
                proxy.close()
            if arguments.keep_log:
                shutil.copy(folder / "daemon.log", arguments.keep_log)
        picture = arguments.report.with_suffix(".svg") if arguments.report else None
        text = report(soak, arguments.kind, arguments.seconds, arguments.seed, found, sampler.samples, picture)
    print(text)
    if picture:
        arguments.report.write_text(text, encoding="utf-8")
        picture.write_text(soak_day.draw(sampler.samples), encoding="utf-8")
    different = [*verified, *(line for _, lines in found.values() for line in lines), *soak_day.grown(sampler.samples)]
    print("\n".join(different[:50]))
    return 1 if different or leaked else 0


if __name__ == "__main__":
    sys.exit(main())
