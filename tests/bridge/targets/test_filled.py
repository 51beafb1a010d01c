"""What fills a column that is not written, read from Delta's own description of a table's columns."""

from __future__ import annotations

import json

import pytest

from pgbridge.bridge.runtime.errors import OwnColumnError
from pgbridge.bridge.targets.filled import check_filled, filled_columns, is_unmet

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

    def filled(*, nullable: bool) -> dict[str, str]:
        found = filled_columns(schema(nullable=nullable), {"delta.constraints.some": "id > 0", "delta.appendOnly": "x"})
        assert {filling.check for filling in found.values()} == {""}
        return {name: filling.how for name, filling in found.items()}

    assert filled(nullable=True) == expected
    assert filled(nullable=False) == expected | {"plain": "refused"}


@pytest.mark.parametrize(
    ("condition", "column"),
    [
        ("own > 0", "own"),
        ("OWN > 0 AND id > 1", "own"),
        ("(own > 0) and (id > 1)", "Own"),
        ("own BETWEEN 1 AND 9", "own"),
        ("own IN ('a', \"b\", 'it\\'s (own)')", "own"),
        ("own != -1.5", "own"),
        ("`o``w n` LIKE 'is not null or %'", "o`w n"),
        ("own", "own"),
    ],
)
def test_a_condition_that_null_does_not_meet(condition, column):
    """Delta refuses the row, unlike PostgreSQL; the column and what lets it in are named."""
    properties = {"delta.constraints.positive": condition}
    fields = json.dumps({"fields": [{"name": name, "nullable": True, "metadata": {}} for name in ("id", column)]})
    filled = filled_columns(fields, properties)
    check_filled("/l/t", filled, {"id", column}, keyed=True)
    with pytest.raises(OwnColumnError, match=f'"{column}" .* CHECK constraint "positive"') as caught:
        check_filled("/l/t", filled, {"id"}, keyed=True)
    assert "ALTER TABLE delta.`/l/t` DROP CONSTRAINT `positive`" in caught.value.hint


@pytest.mark.parametrize(
    "condition",
    [
        "own IS NULL OR own > 0",
        "coalesce(own, 1) > 0",
        "own <=> NULL",
        "id IN (own, 1)",
        "NOT own > 0",
        "(own > 0 AND id > 0) = false",
        "CASE WHEN own > 0 THEN true ELSE id > 0 END",
        "a.own > 0",
        "id > 0",
        "id = 'own' AND owner > 0",
    ],
)
def test_a_condition_that_null_may_meet(condition):
    assert not is_unmet(condition, "own")


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
    filled = filled_columns(schema(nullable=False), {})
    if not message:
        check_filled("/l/t", filled, published, keyed=keyed)
        return
    with pytest.raises(OwnColumnError, match=message) as caught:
        check_filled("/l/t", filled, published, keyed=keyed)
    assert caught.value.hint
    if "NOT NULL" in message:
        assert "ALTER TABLE delta.`/l/t` ALTER COLUMN `plain` DROP NOT NULL" in caught.value.hint
