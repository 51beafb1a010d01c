"""What fills a column that is not written, read from Delta's own description of a table's columns."""

from __future__ import annotations

import json

import pytest

from bridge.apply.target.filled import check_filled, filled_columns
from bridge.errors import OwnColumnError

_METADATA = {
    "plain": {},
    "default": {"CURRENT_DEFAULT": "7"},
    "generated": {"delta.generationExpression": "v * 10"},
    "counted": {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": True},
    "always": {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": False},
}


def schema(*, nullable: bool) -> str:
    fields = [{"name": name, "nullable": nullable, "metadata": metadata} for name, metadata in _METADATA.items()]
    return json.dumps({"fields": fields})


def test_what_fills_a_column():
    expected = {
        "plain": "null",
        "default": "default",
        "generated": "generated",
        "counted": "identity",
        "always": "identity always",
    }
    assert filled_columns(schema(nullable=True)) == expected
    assert filled_columns(schema(nullable=False)) == expected | {"plain": "refused"}


@pytest.mark.parametrize(
    ("published", "keyed", "message"),
    [
        ({"plain"}, True, ""),
        ({"plain"}, False, '"always".*no key'),
        ({"plain", "always"}, False, '"always".* is GENERATED ALWAYS AS IDENTITY, and is published'),
        ({"plain", "counted"}, True, '"counted".*BY DEFAULT AS IDENTITY, and is published'),
        ({"plain", "generated"}, True, r'"generated".*GENERATED ALWAYS AS \(…\), and is published'),
        ({"plain", "default"}, True, ""),
        (set(), True, '"plain" of the Delta table at /l/t is NOT NULL without a DEFAULT'),
    ],
)
def test_what_delta_does_not_write_is_refused(published, keyed, message):
    filled = filled_columns(schema(nullable=False))
    if not message:
        check_filled("/l/t", filled, published, keyed=keyed)
        return
    with pytest.raises(OwnColumnError, match=message) as caught:
        check_filled("/l/t", filled, published, keyed=keyed)
    assert caught.value.hint
    if "NOT NULL" in message:
        assert "ALTER TABLE delta.`/l/t` ALTER COLUMN `plain` DROP NOT NULL" in caught.value.hint
