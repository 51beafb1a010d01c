"""The smallest configuration file, and what it leaves to defaults."""

from __future__ import annotations

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
    "jsonb": "string",
    "untranslatable_filters": "refuse",
    "filter_connection": None,
    "mode": "mirror",
    "tables": {},
    "adopt": False,
    "maintenance": "created",
    "vacuum_retention_h": 168,
    "batch_max_rows": 2_000_000,
    "batch_max_bytes": 256 * 1024 * 1024,
    "batch_max_age_s": 0.1,
    "max_sync_workers": 2,
    "wal_receiver_timeout_s": 60,
    "retry_max_s": 60,
    "warn_retained_bytes": 10 << 30,
    "warn_slot_left_s": 3600,
    "catalog_check_s": 60,
}
"""The keys that `SHOP` does not have."""


def with_key(line: str) -> str:
    """`SHOP` with one more key."""
    return f"{SHOP}{line}\n"
