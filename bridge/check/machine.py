"""Rules on this machine: memory, disks, the warehouse, the configuration file's privacy."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.check.finding import Finding, failed, failure, passed, warning
from bridge.commands.status import size_text
from bridge.monitor.access import read_token
from bridge.monitor.server import cannot_listen
from bridge.runtime import process
from bridge.runtime.errors import ConfigError
from bridge.runtime.http_address import is_loopback
from bridge.spark import session
from bridge.spark.launch import names_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bridge.config.config import Http

_LITTLE_BYTES, _TOO_LITTLE_BYTES = 5 << 30, 256 << 20
_OTHERS_READ, _EVERYBODY = 0o044, 0o007


def check_memory(needed_bytes: int, available_bytes: int | None, row_bytes: int | None = None) -> Finding:
    """Compare what Spark and this process may use with what there is; None if that is unknown.

    Args:
        needed_bytes: What they may use.
        available_bytes: What there is.
        row_bytes: The size of a row for which the heap is large enough.
    """
    needed = size_text(needed_bytes) + (f" (for rows of up to {size_text(row_bytes)})" if row_bytes else "")
    if available_bytes is None:
        return passed("memory", f"pgbridge may use {needed}; how much is available is unknown here")
    available = size_text(available_bytes)
    if available_bytes < needed_bytes:
        return warning(
            "memory",
            f"pgbridge may use {needed}, and {available} are available: the kernel may kill Spark's JVM",
            remedy='set a lower "spark.driver.memory" in [spark.conf], or master = "local[N]" with a smaller N',
        )
    return passed("memory", f"pgbridge may use {needed}, and {available} are available")


def check_ports(master: str, conf: Mapping[str, str | float | bool], environment: Mapping[str, str]) -> Finding:
    """Look where Spark's driver listens: who reaches its ports, and is not asked for a secret, runs code there."""
    subject, on_cluster = "Spark's ports", session.on_cluster(master)
    addresses = names_address(conf, environment)
    if not on_cluster and all(map(is_loopback, addresses)):
        return passed(subject, "Spark listens on this machine's loopback only")
    where = ", ".join(dict.fromkeys(addresses)) or "this machine's address"
    web = " (its UI never does)" if str(conf.get("spark.ui.enabled", False)).lower() == "true" else ""
    if str(conf.get("spark.authenticate", False)).lower() == "true":
        return passed(subject, f"Spark listens on {where}, and asks for its secret{web}")
    return warning(
        subject,
        f"Spark listens on {where}, and asks for no secret{web}: who reaches its ports can run code as this user",
        remedy='set "spark.authenticate" = true in [spark.conf]; a standalone cluster needs the same '
        '"spark.authenticate.secret" on each machine. Or let a firewall admit the cluster alone'
        if on_cluster
        else "remove spark.driver.host, spark.driver.bindAddress and SPARK_LOCAL_IP: a local master needs none",
    )


def check_descriptors(subscriptions: int) -> Finding:
    """Compare the limit of open file descriptors with what so many subscriptions may need."""
    needed, most = process.needed(subscriptions), process.limit()
    if most is not None and most < needed:
        return warning(
            "file descriptors",
            f"a process may have {most} open, and {subscriptions} subscriptions may need {needed}",
            remedy="raise the limit before the daemon is started: LimitNOFILE= of its systemd unit, or in the shell",
            statement=f"ulimit -Hn {needed}",
        )
    return passed("file descriptors", f"a process may have {'any number' if most is None else most} open")


def check_http(http: Http, *, running: bool) -> Finding:
    """Look whether the daemon can read its token and listen; a daemon that runs has the port."""
    host, port = http.address
    try:
        if http.token_file is not None:
            read_token(Path(http.token_file))
        if not running:
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except ConfigError as error:
        return failed("http", error)
    except (OSError, OverflowError) as error:
        return failed("http", cannot_listen(host, port, error))
    return passed("http", f"{http.listen} can be listened on")


def check_state_dir(state_dir: Path) -> Iterator[Finding]:
    """Look whether the state directory can be written, and how much room the spool has."""
    if (problem := writes(state_dir)) is not None:
        yield failure("state_dir", problem, remedy="give pgbridge's user write access, or set another state_dir")
        return
    if state_dir.exists() and state_dir.stat().st_mode & _EVERYBODY:
        yield warning(
            "state_dir",
            f"every user of this machine can enter {state_dir}, which has rows and error messages with their values",
            remedy="make it private",
            statement=f"chmod -R o= {shlex.quote(str(state_dir))}",
        )
    else:
        yield passed("state_dir", f"{state_dir} can be written")
    free_bytes = shutil.disk_usage(_existing(state_dir)).free
    text = f"{size_text(free_bytes)} are free for the spool of large, streamed and prepared transactions"
    if free_bytes < _TOO_LITTLE_BYTES:
        yield failure("disk", text, remedy="make room on the disk of state_dir")
    elif free_bytes < _LITTLE_BYTES:
        yield warning("disk", text, remedy="make room on the disk of state_dir")
    else:
        yield passed("disk", text)


def check_warehouse(folder: Path | None, warehouse: str) -> Finding:
    """Write a file into the warehouse and delete it.

    Args:
        folder: Where it is on this machine; None for another file system, which only Spark reaches.
        warehouse: As configured.
    """
    if folder is None:
        return passed(
            "warehouse", f"{warehouse} is not on this machine: Spark alone can tell whether it can be written"
        )
    if (problem := writes(folder)) is not None:
        return failure("warehouse", problem, remedy="give pgbridge's user write access, or set another warehouse")
    return passed("warehouse", f"{folder} can be written")


def check_secrets(config_file: Path, subscription: str, keys: Sequence[str]) -> Iterator[Finding]:
    """Look whether a password stands in a file that others can read.

    Args:
        subscription: The subscription's name.
        keys: Its connection strings that have a password.
    """
    with contextlib.suppress(OSError):
        if keys and config_file.stat().st_mode & _OTHERS_READ:
            yield warning(
                "password",
                f'there is a password in {" and ".join(keys)} of subscription "{subscription}",'
                f" and others can read {config_file}",
                remedy="put it into ~/.pgpass or PGPASSWORD, or make the file private",
                statement=f"chmod 600 {shlex.quote(str(config_file))}",
            )


def writes(folder: Path) -> str | None:
    """Create a file in a folder and delete it; in the nearest folder above it that exists, if it does not.

    Returns:
        Why that is not possible; None if it is.
    """
    place = _existing(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".pgbridge-check-") as file:
            file.write(b"pgbridge check")
            file.flush()
    except OSError as error:
        return f"{place} cannot be written: {error.strerror or error}"
    return None


def _existing(folder: Path) -> Path:
    """The nearest folder above that exists; or the first that this user may not look into, which says so when used."""
    for place in (folder, *folder.parents):
        try:
            if place.exists():
                return place
        except OSError:
            return place
    raise AssertionError("the root exists")
