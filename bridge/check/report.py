"""The whole check: this machine first, then each subscription."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import sql
from bridge.catalog.catalog import Catalog, catalog_path
from bridge.catalog.lock import is_running
from bridge.check.catalogs import check_catalogs
from bridge.check.connect import check_connect
from bridge.check.delta_protocol import check_conf
from bridge.check.finding import Finding, exit_code, failed
from bridge.check.java import check_java
from bridge.check.machine import (
    check_descriptors,
    check_http,
    check_memory,
    check_ports,
    check_secrets,
    check_state_dir,
    check_warehouse,
)
from bridge.check.others import Known, others_need
from bridge.check.role import RoleNames, filled_in
from bridge.check.subscription import check_subscription
from bridge.config.spark_master import CONNECT
from bridge.lake.log.durable import local_folder
from bridge.receive.connection import has_password, login
from bridge.receive.publisher import Publisher
from bridge.runtime.errors import BridgeError, StateError
from bridge.runtime.process import OWN_BYTES, available_bytes
from bridge.spark import session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from bridge.config.config import Config, Subscription


def collect(
    config: Config, subscriptions: Sequence[Subscription], config_file: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the document of `--json`.

    Returns:
        `{"exit_code", "machine": [finding], "subscriptions": [{"name", "findings": [finding]}]}`. A finding has
        `subject`, `level` (pass, warning or failure), `message`, `remedy` and `statement`, the last two empty if there
        is nothing to do. `exit_code` is 0 if all passed, 1 if there are warnings, 2 if something failed.
    """
    machine: list[Finding] = []
    try:
        running = is_running(config.state_dir)
        catalog = _catalog(config.state_dir)
    except StateError as error:
        machine.append(failed("state_dir", error))
        running, catalog = False, None
    machine += _machine(config, environment, running=running)
    findings_of: dict[str, list[Finding]] = {}
    in_catalogs = check_catalogs(
        config.spark, [subscription.warehouse for subscription in subscriptions], running=running
    )
    with closing(catalog) if catalog is not None else nullcontext():
        known = Known(catalog, running)
        for subscription in subscriptions:
            warehouse = subscription.warehouse
            findings_of[subscription.name] = [
                *check_secrets(config_file, subscription.name, _with_password(subscription)),
                in_catalogs.get(warehouse) or check_warehouse(local_folder(warehouse), warehouse),
                *check_subscription(
                    subscription, known, others_need(config.subscription.values(), subscription, known)
                ),
            ]
    return {
        "exit_code": exit_code([*machine, *(finding for findings in findings_of.values() for finding in findings)]),
        "machine": [asdict(finding) for finding in machine],
        "subscriptions": [
            {"name": name, "findings": [asdict(finding) for finding in findings]}
            for name, findings in findings_of.items()
        ],
    }


def _catalog(state_dir: Path) -> Catalog | None:
    path = catalog_path(state_dir)
    try:
        return Catalog(path) if path.exists() else None
    except OSError as error:
        raise StateError(f"state_dir {state_dir} cannot be read: {error}") from error


def _machine(config: Config, environment: Mapping[str, str], *, running: bool) -> Iterator[Finding]:
    if not config.spark.master.startswith(CONNECT):
        yield check_java(environment)
        yield check_ports(config.spark.master, config.spark.conf, environment)
        needed_bytes = session.memory_bytes(config.spark.master, config.spark.conf) + OWN_BYTES
        # a running daemon has its memory already
        if not running:
            row_bytes = session.largest_row_bytes(config.spark.master, config.spark.conf)
            yield check_memory(needed_bytes, available_bytes(), row_bytes)
    else:
        yield check_connect(find_spec)
    yield check_descriptors(sum(subscription.enabled for subscription in config.subscription.values()))
    yield from check_state_dir(config.state_dir)
    if config.http is not None:
        yield check_http(config.http, running=running)
    yield from check_conf(config.spark.conf)


def _with_password(subscription: Subscription) -> list[str]:
    """Return the keys whose connection string has a password."""
    connections = {"connection": subscription.connection, "filter_server": subscription.filter_connection}
    return [key for key, connection in connections.items() if connection is not None and has_password(connection)]


def role_script(subscription: Subscription) -> str:
    """Return the script that makes a subscription's least-privileged role.

    If the server does not answer, because the role does not exist yet for example, the tables' names are missing.

    Raises:
        ConfigError: The connection string cannot be read.
    """
    who = login(subscription.connection)
    names = RoleNames(who.role, who.database, missing_publications=subscription.publications)
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
    except BridgeError:
        pass
    return filled_in(sql.load_script("role"), names)
