"""The parts of a table: each row is in one of them, on both sides and in the stream."""

from __future__ import annotations

import pytest

from pgbridge.bridge.sync.key_order import KeyParts
from pgbridge.bridge.verify.part import Part, part_from
from pgbridge.bridge.verify.window import TableWindow

NUMBERS = KeyParts("id", ("-5", "40", "100"), texts=False)
UUIDS = KeyParts("id", ("40000000-0000-0000-0000-000000000000", "c0000000-0000-0000-0000-000000000000"), texts=True)


def parts_of(parts):
    made = [part_from(parts, None)]
    while made[-1].upper is not None:
        made.append(part_from(parts, made[-1].upper))
    return made


@pytest.mark.parametrize(
    ("parts", "values"),
    [
        (NUMBERS, [None, "-100", "-6", "-5", "-4", "9", "39", "40", "41", "99", "100", "1000"]),
        (UUIDS, [f"{first:02x}000000-0000-0000-0000-000000000000" for first in (0, 0x3F, 0x40, 0xBF, 0xC0, 0xFF)]),
    ],
)
def test_each_key_is_in_one_part(parts, values):
    window = TableWindow(("note", "id"), {("x", value): None for value in values})
    of_parts = [list(part.of(window, ("note", "id")).rows) for part in parts_of(parts)]
    assert all(of_parts)
    assert [key for keys in of_parts for key in keys] == [("x", value) for value in values]


def test_conditions():
    assert [" ".join(part.source_condition.split()) for part in parts_of(NUMBERS)] == [
        "(\"id\" < '-5' OR id IS NULL)",
        "\"id\" >= '-5' AND \"id\" < '40'",
        "\"id\" >= '40' AND \"id\" < '100'",
        "\"id\" >= '100'",
    ]
    assert [part.target_condition for part in parts_of(NUMBERS)] == [
        "(`id` < -5L OR `id` IS NULL)",
        "`id` >= -5L AND `id` < 40L",
        "`id` >= 40L AND `id` < 100L",
        "`id` >= 100L",
    ]
    assert parts_of(UUIDS)[1].target_condition == (
        "`id` >= '40000000-0000-0000-0000-000000000000' AND `id` < 'c0000000-0000-0000-0000-000000000000'"
    )


def test_statistics_that_have_moved():
    """A part begins where the last one has ended, whatever ANALYZE has found since."""
    assert part_from(NUMBERS, "41") == Part("id", "41", "100", texts=False)
    assert part_from(NUMBERS, "2000") == Part("id", "2000", None, texts=False)
