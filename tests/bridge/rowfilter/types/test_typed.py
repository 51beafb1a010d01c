"""Collations are derived as in parse_collate.c."""

from __future__ import annotations

import pytest

from bridge.rowfilter.types.typed import C_COLLATION, DATABASE_DEFAULT, Collation, Strength, Typed, collation_of
from bridge.sqltext.refusal import Refused

GERMAN = Collation("de-x-icu", bytewise=False)
DEFAULT_IS_C = Collation("default", bytewise=True, default=True)


def text(collation: Collation | None, *, explicit: bool = False) -> Typed:
    strength = Strength(collation, explicit) if collation else None
    return Typed("text", 3, lambda: None, strength=strength)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ((text(C_COLLATION), text(DATABASE_DEFAULT)), C_COLLATION),
        ((text(DATABASE_DEFAULT), text(GERMAN)), GERMAN),
        ((text(DATABASE_DEFAULT), text(DEFAULT_IS_C)), DEFAULT_IS_C),
        ((text(GERMAN), text(C_COLLATION, explicit=True)), C_COLLATION),
        ((text(GERMAN), text(GERMAN)), GERMAN),
        ((text(None), text(C_COLLATION)), C_COLLATION),
        ((text(None),), DATABASE_DEFAULT),
    ],
)
def test_collation(nodes, expected):
    assert collation_of(nodes, 0) == expected


def test_contradictions():
    with pytest.raises(Refused, match="could not determine which collation to use"):
        collation_of((text(GERMAN), text(C_COLLATION)), 0)
    with pytest.raises(Refused, match="collation mismatch"):
        collation_of((text(GERMAN, explicit=True), text(C_COLLATION, explicit=True)), 0)
