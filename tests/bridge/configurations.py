"""The smallest configuration file, what it leaves to defaults, and options of subscriptions in tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pgbridge.bridge.config.config import Subscription

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOP = """
[subscription.shop]
connection = "host=db dbname=shop"
publications = ["shop_pub"]
warehouse = "./lake"
"""

DEFAULTS = {
    "slot_name": "shop",
    "create_slot": True,
    "enabled": True,
    "copy_data": True,
    "binary": True,
    "streaming": "off",
    "two_phase": False,
    "failover": False,
    "origin": "any",
    "messages": "log",
    "disable_on_error": False,
    "publication_definitions": None,
    "conflict": "error",
    "schema_evolution": "evolve",
    "unrepresentable": "error",
    "filter_server": None,
    "mode": "mirror",
    "tables": {},
    "batch": {
        "max_rows": 2_000_000,
        "max_bytes": 256 * 1024 * 1024,
        "max_age_s": 0.1,
        "commit_interval_s": 1.0,
    },
    "target": {
        "jsonb": "string",
        "vector": "string",
        "geometry": "string",
        "adopt": False,
        "maintenance": "created",
        "vacuum_retention_h": 168,
        "properties": {},
        "schemas": {},
        "conflict_log_destination": "log",
        "mask_salt_file": None,
        "sequences_every_s": 0.0,
    },
    "workers": {
        "max_sync_workers": 2,
        "wal_receiver_timeout_s": 60,
        "retry_max_s": 60,
        "catalog_check_s": 60,
        "refresh": "manual",
        "max_copy_rate_bytes_s": 0,
        "verify_every_h": 0,
        "max_verify_rate_bytes_s": 8 << 20,
    },
    "alerts": {"retained_bytes": 10 << 30, "slot_left_s": 3600},
}
"""The keys that `SHOP` does not have."""


def with_key(line: str) -> str:
    """`SHOP` with one more key."""
    return f"{SHOP}{line}\n"


def placed(options: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Options over those given; one with `__` stands in a table: `batch__max_rows` is `max_rows` in `batch`."""
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in (given or {}).items()}
    for name, value in options.items():
        table, _, key = name.rpartition("__")
        (tree.setdefault(table, {}) if table else tree)[key] = value
    return tree


def altered(subscription: Subscription, **options: Any) -> Subscription:
    """A subscription with other options, as `placed` reads them."""
    return Subscription(**placed(options, subscription.model_dump(exclude_unset=True)))


def as_toml(tree: dict[str, Any], path: str = "") -> str:
    """A tree of tables, strings, numbers, booleans and lists as TOML, which for these writes values as JSON does."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    tables = [
        f"[{path}{key}]\n{as_toml(value, f'{path}{key}.')}" for key, value in tree.items() if isinstance(value, dict)
    ]
    return "\n".join([*plain, *tables]) + "\n"
