"""The whole check, and how it is shown; the part that runs beside Spark's start; and the script of a role.

Beside Spark's start only the critical part is checked: a wrong host is told at once, not after it. The script makes the
least-privileged role: `sql/role.psql`, filled in for a subscription.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from pgbridge import sql
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.lock import is_running
from pgbridge.bridge.check import lake, machine
from pgbridge.bridge.check.finding import Finding, Level, exit_code, failed
from pgbridge.bridge.check.known import Known, is_enabled, others_need
from pgbridge.bridge.check.subscription import check_subscription
from pgbridge.bridge.lake.log.local_log import local_folder
from pgbridge.bridge.receive.connection import has_password, login
from pgbridge.bridge.receive.publisher import Publisher, quoted_name, quoted_table
from pgbridge.bridge.runtime import errors, process
from pgbridge.bridge.runtime.warehouse import CatalogWarehouse
from pgbridge.bridge.spark.session import driver_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import RenderableType
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.config.config import Config, Subscription


def collect(
    config: Config, subscriptions: Sequence[Subscription], config_file: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the document of `--json`.

    Returns:
        `{"exit_code", "machine": [finding], "subscriptions": [{"name", "findings": [finding]}]}`. A finding has
        `subject`, `level` (pass, warning or failure), `message`, `remedy` and `statement`, the last two empty if there
        is nothing to do. `exit_code` is 0 if all passed, 1 if there are warnings, 2 if something failed.
    """
    on_machine: list[Finding] = []
    try:
        running = is_running(config.state_dir)
        catalog = _catalog(config.state_dir)
    except errors.StateError as error:
        on_machine.append(failed("state_dir", error))
        running, catalog = False, None
    on_machine += _machine(config, environment, running=running)
    findings_of: dict[str, list[Finding]] = {}
    by_spark = lake.check_by_spark(config.spark, subscriptions, running=running)
    with closing(catalog) if catalog is not None else nullcontext():
        known = Known(catalog, running)
        for subscription in subscriptions:
            warehouse = subscription.warehouse
            findings_of[subscription.name] = [
                *machine.check_secrets(config_file, subscription.name, _with_password(subscription)),
                *_warehouse(warehouse),
                *by_spark[subscription.name],
                *check_subscription(
                    subscription, known, others_need(config.subscription.values(), subscription, known)
                ),
            ]
    return {
        "exit_code": exit_code([*on_machine, *(finding for findings in findings_of.values() for finding in findings)]),
        "machine": [asdict(finding) for finding in on_machine],
        "subscriptions": [
            {"name": name, "findings": [asdict(finding) for finding in findings]}
            for name, findings in findings_of.items()
        ],
    }


def _warehouse(warehouse: str) -> Iterator[Finding]:
    """A finding of a warehouse that is not in a catalog."""
    if CatalogWarehouse.of(warehouse) is None:
        yield machine.check_warehouse(local_folder(warehouse), warehouse)


def _catalog(state_dir: Path) -> Catalog | None:
    path = catalog_path(state_dir)
    try:
        return Catalog(path) if path.exists() else None
    except OSError as error:
        raise errors.StateError(f"state_dir {state_dir} cannot be read: {error}") from error


def _machine(config: Config, environment: Mapping[str, str], *, running: bool) -> Iterator[Finding]:
    driver = driver_for(config.spark.master)
    if driver.is_ours:
        yield machine.check_java(environment)
        yield machine.check_ports(driver, config.spark.conf, environment)
        needed_bytes = driver.memory_bytes(config.spark.conf) + process.OWN_BYTES
        # a running daemon has its memory already
        if not running:
            row_bytes = driver.largest_row_bytes(config.spark.conf)
            yield machine.check_memory(needed_bytes, process.available_bytes(), row_bytes)
    else:
        yield machine.check_connect(find_spec)
    yield machine.check_descriptors(sum(subscription.enabled for subscription in config.subscription.values()))
    yield from machine.check_state_dir(config.state_dir)
    if config.http is not None:
        yield machine.check_http(config.http, running=running)
    yield from lake.check_conf(config.spark.conf)


def _with_password(subscription: Subscription) -> list[str]:
    """Return the keys whose connection string has a password."""
    connections = {"connection": subscription.connection, "filter_server": subscription.filter_connection}
    return [key for key, connection in connections.items() if connection is not None and has_password(connection)]


_MARKS: Final = {"pass": ("ok", "green"), "warning": ("warning", "yellow"), "failure": ("FAILED", "bold red")}
_INDENT: Final = " " * 9


def render(document: dict[str, Any]) -> RenderableType:
    """Render the document: a line for each finding, its remedy and its statement below, and a summary.

    Print it with `soft_wrap`, as `cli_shared.print_document` does: a statement is to be copied as it stands.
    """
    text = Text()
    counts = dict.fromkeys(_MARKS, 0)
    groups = [("this machine", document["machine"])]
    groups += [(f"subscription {entry['name']}", entry["findings"]) for entry in document["subscriptions"]]
    for title, findings in groups:
        text.append(f"{title}\n", style="bold")
        for finding in findings:
            counts[finding["level"]] += 1
            mark, style = _MARKS[finding["level"]]
            text.append(f"{mark:<8}", style=style)
            text.append(f" {finding['subject']}: {finding['message']}\n")
            if finding["remedy"]:
                text.append(f"{_INDENT}{finding['remedy']}\n")
            if finding["statement"]:
                text.append(f"{_INDENT}{finding['statement']}\n", style="cyan")
        text.append("\n")
    text.append(f"{counts['pass']} passed, {counts['warning']} warnings, {counts['failure']} failed")
    return text


def role_script(subscription: Subscription) -> str:
    """Return the script that makes a subscription's least-privileged role.

    If the server does not answer, because the role does not exist yet for example, the tables' names are missing.

    Raises:
        ConfigError: The connection string cannot be read.
    """
    who = login(subscription.connection)
    names = RoleNames(who.role, who.database, missing_publications=subscription.publications)
    heading = ""
    try:
        with (
            Publisher(subscription.connection, application_name=f"{subscription.name}_check") as publisher,
            publisher.snapshot(),
        ):
            missing = [
                row["name"]
                for row in publisher.rows("missing_publications", {"publications": [*subscription.publications]})
            ]
            present = [name for name in subscription.publications if name not in missing]
            tables = [(table.namespace, table.name) for table in publisher.tables(present)]
            names = RoleNames(who.role, who.database, True, missing, tables)
    except errors.BridgeError as error:
        reason = error.message.partition("\n")[0]
        heading = f"-- The server cannot be asked what is published, so complete the names below: {reason}\n"
    return heading + filled_in(sql.load_script("role"), names)


@dataclass(frozen=True, slots=True)
class RoleNames:
    """The names that the script has.

    Attributes:
        role_exists: Whether the server knows the role: then it is altered, not created.
        missing_publications: Publications that the database does not have.
        tables: (schema, name) of each published table; none if they are not known.
    """

    role: str
    database: str
    role_exists: bool = False
    missing_publications: Sequence[str] = ()
    tables: Sequence[tuple[str, str]] = ()


def filled_in(script: str, names: RoleNames) -> str:
    """Return the script with names in the places of psql's variables, and without the header's usage by hand.

    Unknown tables are written as `public.…`, for an operator to fill in.
    """
    tables = [quoted_table(*table) for table in names.tables] or ["public.…"]
    schemas = list(dict.fromkeys(quoted_name(schema) for schema, _ in names.tables)) or ["public"]
    values = {':"role"': quoted_name(names.role), ':"database"': quoted_name(names.database)}
    lines: list[str] = []
    for line in script.splitlines():
        if line.startswith("--") and ("psql -v" in line or "pgbridge check --sql" in line):
            continue
        text = line
        if names.role_exists:
            text = text.replace("CREATE ROLE", "ALTER ROLE")
        for variable, value in values.items():
            text = text.replace(variable, value)
        if line.startswith("--"):
            lines.append(text)
        elif ':"publication"' in text:
            lines += [
                text.replace(':"publication"', quoted_name(name)).replace(':"schema".:"table"', ", ".join(tables))
                for name in names.missing_publications
            ]
        elif ':"table"' in text:
            lines += [text.replace(':"schema".:"table"', table) for table in tables]
        elif ':"schema"' in text:
            lines += [text.replace(':"schema"', schema) for schema in schemas]
        else:
            lines.append(text)
    while lines[-1].startswith("--"):  # what it would be about is there already
        lines.pop()
    return "\n".join(lines) + "\n"


_AT_ONCE = 8


def preflight(config: Config, catalog: Catalog, log: FilteringBoundLogger) -> threading.Thread:
    """Check all enabled subscriptions in a thread, and log what failed.

    Nothing waits for it: a worker that fails says why, again and again, and the server may be mended meanwhile.
    """
    enabled = [subscription for subscription in config.subscription.values() if is_enabled(subscription, catalog)]
    known = Known(catalog, running=True)

    def check(subscription: Subscription) -> None:
        try:
            for finding in check_subscription(subscription, known):
                if finding.level is Level.FAILURE:
                    log.error(
                        "check failed",
                        subscription=subscription.name,
                        check=finding.subject,
                        error=finding.message,
                        hint=": ".join(filter(None, (finding.remedy, finding.statement))),
                    )
        except Exception as error:  # noqa: BLE001 - the server went away in between, or the daemon ends
            log.debug("the check was cut short", subscription=subscription.name, error=str(error))

    def run() -> None:
        with ThreadPoolExecutor(_AT_ONCE, "check") as pool:
            list(pool.map(check, enabled))

    thread = threading.Thread(target=run, name="check", daemon=True)
    thread.start()
    return thread
