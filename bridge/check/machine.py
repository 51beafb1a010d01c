"""Rules on this machine: memory, disks, the warehouse, the configuration file's privacy, and what Spark needs here.

That is a Java, found as Spark's launcher finds it (by JAVA_HOME, else on the PATH); or for a Spark Connect server, the
packages of the extra `connect`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.check.finding import Finding, Level, failed, failure, passed, warning
from pgbridge.bridge.commands.status import size_text
from pgbridge.bridge.config.daemon_tables import read_secret
from pgbridge.bridge.monitor.server import cannot_listen
from pgbridge.bridge.runtime import errors, http_address, process, remedies
from pgbridge.bridge.spark.launch import names_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pgbridge.bridge.config.daemon_tables import Http
    from pgbridge.bridge.spark.driver import Conf, Driver

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


def check_ports(driver: Driver, conf: Conf, environment: Mapping[str, str]) -> Finding:
    """Look where Spark's driver listens: who reaches its ports, and is not asked for a secret, runs code there."""
    subject, alone = "Spark's ports", driver.executors_here
    addresses = names_address(conf, environment)
    if alone and all(map(http_address.is_loopback, addresses)):
        return passed(subject, "Spark listens on this machine's loopback only")
    where = ", ".join(dict.fromkeys(addresses)) or "this machine's address"
    web = " (its UI never does)" if str(conf.get("spark.ui.enabled", False)).lower() == "true" else ""
    if str(conf.get("spark.authenticate", False)).lower() == "true":
        return passed(subject, f"Spark listens on {where}, and asks for its secret{web}")
    return warning(
        subject,
        f"Spark listens on {where}, and asks for no secret{web}: who reaches its ports can run code as this user",
        remedy="remove spark.driver.host, spark.driver.bindAddress and SPARK_LOCAL_IP: a local master needs none"
        if alone
        else 'set "spark.authenticate" = true in [spark.conf]; a standalone cluster needs the same '
        '"spark.authenticate.secret" on each machine. Or let a firewall admit the cluster alone',
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
            read_secret("http.token_file", http.token_file)
        if not running:
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except errors.ConfigError as error:
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


VERSIONS: Final = (17, 21, 25)
"""The versions that Spark 4.2's documentation names ("Spark runs on Java 17/21/25"). It starts on no older one."""

_SOUND_25: Final = (25, 0, 3)
"""Spark deprecates earlier ones: their G1 collector may corrupt data (SPARK-55852)."""

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?(?:\.(\d+))?')
_TIMEOUT_S = 20.0
_TAIL_BYTES, _TAIL_LINES, _SHOWN_CHARACTERS = 8192, 3, 300
_TELLING = re.compile(r"^(?!\s*at ).*(?:Exception|Error|Invalid|unresolved dependency)")
_DOWNLOAD = re.compile("unresolved dependency|download failed|UnknownHost")
_REMEDY = "install Java 17, 21 or 25, and set JAVA_HOME to its folder if it is not on the PATH"


def check_java(environment: Mapping[str, str]) -> Finding:
    """Look for Java, and ask it for its version.

    Args:
        environment: The process's environment variables.
    """
    home = environment.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    if program is None:
        return failure("Java", "no java on the PATH, and JAVA_HOME is not set", remedy=_REMEDY)
    command = [program, "-version"]
    try:
        said = subprocess.run(  # noqa: S603 - the program that Spark's launcher runs, without a shell
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, env=dict(environment)
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return failure("Java", f"{program} cannot be run: {error}", remedy=_REMEDY)
    match = _VERSION.search(said)
    if match is None:
        return failure("Java", f"{program} does not tell its version", remedy=_REMEDY)
    return _of_version(program, tuple(int(number or 0) for number in match.groups()))


def _of_version(program: str, numbers: tuple[int, ...]) -> Finding:
    version = numbers[1] if numbers[0] == 1 else numbers[0]  # 1.8 is Java 8
    if version < VERSIONS[0]:
        return failure("Java", f"{program} is Java {version}; Spark needs {VERSIONS[0]} or later", remedy=_REMEDY)
    if version not in VERSIONS:
        return warning("Java", f"{program} is Java {version}: Spark is not tested on it, and may fail", remedy=_REMEDY)
    if _SOUND_25[:1] <= numbers < _SOUND_25:
        text = ".".join(map(str, numbers))
        fault = "whose garbage collector G1 may corrupt data"
        return warning("Java", f"{program} is Java {text}, {fault}", remedy="upgrade it to 25.0.3")
    return passed("Java", f"{program} is Java {version}")


def not_started(error: Exception, environment: Mapping[str, str], log: Path) -> errors.SparkLost:
    """The error that Spark cannot be started; it says so if Java is the reason.

    Args:
        error: What the start raised.
        environment: The process's environment variables.
        log: What Spark's processes have printed.
    """
    java = check_java(environment)
    if java.level is Level.FAILURE:
        return errors.SparkLost(f"Spark cannot be started: {java.message}", hint=java.remedy)
    said = _last_words(log)
    if not said or any(map(_DOWNLOAD.search, said)):
        hint = f"at its first start it needs Maven Central, for Delta's jars; see {log}"
    elif java.level is Level.WARNING:
        hint = f"{java.message}: {java.remedy}; see {log}"
    else:
        hint = f"correct [spark] in the configuration; see {log}"
    return errors.SparkLost("\n".join([f"Spark cannot be started: {error}", *said]), hint=hint)


def _last_words(log: Path) -> list[str]:
    """Return the last few lines of Spark's log that tell of an error."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip()[:_SHOWN_CHARACTERS] for line in lines if _TELLING.search(line)][-_TAIL_LINES:]


_PACKAGES: Final = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "zstandard": "zstandard",
}


def check_connect(find: Callable[[str], object | None]) -> Finding:
    """Look for the packages; whether the server answers is told by Spark's start.

    Args:
        find: Finds a module by its name, as `importlib.util.find_spec`.
    """
    missing = [package for module, package in _PACKAGES.items() if not _is_found(find, module)]
    if missing:
        return failure(
            "Spark Connect",
            f"packages are not installed: {', '.join(missing)}",
            remedy="install them beside pgbridge",
            statement=remedies.install("connect"),
        )
    return passed("Spark Connect", "its packages are installed; the server tells at the start whether it can be used")


def _is_found(find: Callable[[str], object | None], module: str) -> bool:
    try:
        return find(module) is not None
    except ModuleNotFoundError:  # the package above it
        return False
