"""One transaction of millions of rows, end to end, and what the daemon's Python process holds of it.

`python -m benchmarks.large_transaction` starts a private server, lets `pgbridge run --until-caught-up` take it, and
prints seconds and the peak resident set of the Python process. Spark's JVM is another process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import psycopg
import typer

from benchmarks.processes import peak_bytes as peak_bytes_of
from pgbridge.bridge.demo.server import EmbeddedPostgres

_ROOT: Final = Path(__file__).parents[1]
_TABLE: Final = """
CREATE TABLE w1 (
    id bigint PRIMARY KEY, parent bigint, ratio float8, code text, digest text,
    at timestamptz, active boolean, amount numeric(12,2)
);
CREATE PUBLICATION pub FOR TABLE w1
"""
_INSERT: Final = """
INSERT INTO w1 SELECT i, i::bigint * 7919 % 1000003, sqrt(i), lpad(i::text, 20, 'x'), md5(i::text),
    timestamptz '2026-01-01 00:00Z' + i * interval '1.000001 s', i % 3 = 0, (i::bigint * 104729 % 1000000007) / 100.0
FROM generate_series(1, {rows}) i
"""
_POLL_S: Final = 0.1


def main(
    rows: Annotated[int, typer.Option(help="Number of rows that the transaction inserts.")] = 5_000_000,
    updates: Annotated[int, typer.Option(help="Number of these rows that it then updates.")] = 0,
    *,
    streaming: Annotated[bool, typer.Option(help="Receive the transaction while it runs.")] = True,
) -> None:
    """Measure one large transaction."""
    with EmbeddedPostgres(settings={"max_wal_size": "16GB"}, fsync=False) as server, _folder() as folder:
        config = _configure(folder, server.conninfo(), streaming=streaming)
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            connection.execute(_TABLE.encode())
            _run(config, folder)
            with connection.transaction():
                connection.execute(_INSERT.format(rows=rows).encode())
                connection.execute(f"UPDATE w1 SET ratio = ratio + 1 WHERE id <= {updates}".encode())
        seconds, peak_bytes, spool_bytes = _run(config, folder)
    typer.echo(
        f"{rows} inserts and {updates} updates in one transaction, streaming = {'on' if streaming else 'off'}: "
        f"{seconds:.0f} s with Spark's start; Python's peak {peak_bytes / 2**20:.0f} MiB, "
        f"spool {spool_bytes / 2**20:.0f} MiB"
    )


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="pgbridge-large-")


def _configure(folder: str, conninfo: str, *, streaming: bool) -> Path:
    config = Path(folder, "pgbridge.toml")
    config.write_text(
        f"""[spark]
master = "local[2]"
[spark.conf]
"spark.driver.memory" = "4g"
[subscription.large]
connection = "{conninfo}"
publications = ["pub"]
warehouse = "./lake"
streaming = "{"on" if streaming else "off"}"
"""
    )
    return config


def _run(config: Path, folder: str) -> tuple[float, int, int]:
    """Run the daemon; return the seconds, Python's peak resident set, and the peak size of the spool files."""
    command = [sys.executable, "-m", "pgbridge", "run", "--until-caught-up", "--config", str(config)]
    started_s = time.monotonic()
    with Path(folder, "daemon.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=_ROOT, stdout=log, stderr=log)
    peak_bytes = spool_bytes = 0
    while process.poll() is None:
        peak_bytes = max(peak_bytes, peak_bytes_of(process.pid))
        spool_bytes = max(spool_bytes, sum(file.stat().st_size for file in _files(folder)))
        time.sleep(_POLL_S)
    if process.returncode:
        sys.exit(Path(folder, "daemon.log").read_text(encoding="utf-8")[-4000:])
    return time.monotonic() - started_s, peak_bytes, spool_bytes


def _files(folder: str) -> list[Path]:
    return list(Path(folder, "state", "spool", "large").glob("*"))


if __name__ == "__main__":
    typer.run(main)
