"""What a mask makes of a value, which PostgreSQL makes of it, too; and when a Delta table is of another shape."""

from __future__ import annotations

import pytest

from pgbridge.bridge.publication.shape import SALT_SETTING, Mask, Shape
from pgbridge.bridge.sqltext.lexer import quote_identifier

COLUMN = 'a "column'
SALT = b"salt \\ '"
VALUES = {
    "text": ["", "a", "é€😀 and more", "it's \\ E'x'", "%s %"],
    "date": ["2026-11-30", "infinity", "0044-03-15 BC"],
    "numeric": ["1.50", "NaN", "12345678901234567890123456789012345678901"],
    "boolean": ["t", "f"],
    "character(3)": ["a  "],
    "inet": ["10.0.0.1", "10.0.0.0/8"],
    "text[]": ["{}", '{a,NULL,"b c"}'],
    "point": ["(1,2)"],
}
MASKS = [
    Mask("sha256", salt=SALT),
    Mask("null"),
    Mask("text", text="it's \\ hidden %"),
    Mask("first", characters=2),
    Mask("none"),
]


@pytest.mark.parametrize("mask", MASKS, ids=[mask.method for mask in MASKS])
def test_the_server_computes_the_same(publisher, mask):
    publisher.query(f"SELECT set_config('{SALT_SETTING}', %s, false)", (SALT.hex(),))
    for type_, texts in VALUES.items():
        publisher.execute(f"CREATE TEMPORARY TABLE masked ({quote_identifier(COLUMN)} {type_})")
        for text in texts:
            publisher.execute(f"INSERT INTO masked VALUES (%s::{type_})", (text,))
        publisher.execute("INSERT INTO masked VALUES (NULL)")
        computed = [value for (value,) in publisher.query(f"SELECT {mask.sql(COLUMN)} FROM masked")]
        publisher.execute("DROP TABLE masked")
        expected = [None if (masked := mask.of(text.encode())) is None else masked.decode() for text in texts]
        assert computed == [*expected, None], type_


def test_a_description_has_no_salt_and_no_column_that_is_not_masked():
    masks = {"b": Mask("sha256", salt=SALT), "a": Mask("first", characters=3), "c": Mask("none"), "d": Mask("null")}
    shape = Shape(masks)
    text = shape.description
    assert '"d": "null"' in text
    assert SALT.decode() not in text
    assert SALT.hex() not in text
    assert '"c"' not in text
    assert repr(SALT) not in repr(masks)
    assert not shape.differs(text, "abcd")
    for name, other in {
        "b": Mask("sha256", salt=b"another"),
        "a": Mask("first", characters=4),
        "c": Mask("null"),
        "d": Mask("none"),
    }.items():
        assert Shape({**masks, name: other}).differs(text, "abcd"), name


@pytest.mark.parametrize(
    ("before", "after", "columns", "differs"),
    [
        (Shape(), Shape({"new": Mask("null")}, {"more": "m"}), ["old"], False),  # of columns that are not there yet
        (Shape(), Shape(names={"a": "b"}), ["a"], True),
        (Shape(names={"a": "b"}), Shape(), ["b"], True),
        (Shape(names={"a": "b"}), Shape(names={"a": "c"}), ["b"], True),
        (Shape(names={"a": "b"}), Shape({"a": Mask("null")}, {"a": "b"}), ["b"], True),
        (Shape(names={"a": "b"}), Shape(names={"a": "b", "c": "d"}), ["b"], False),
        (Shape({"gone": Mask("null")}, {"gone": "g"}), Shape(), ["a"], False),
    ],
)
def test_a_delta_table_of_another_shape(before, after, columns, differs):
    assert after.differs(before.description, columns) == differs


def test_a_column_that_is_looked_at_and_not_masked():
    shape = Shape({"a": Mask("none"), "b": Mask("null")}, {"b": "c"})
    assert [shape.mask(name) for name in "abc"] == [None, Mask("null"), None]
    assert [shape.name(name) for name in "abc"] == ["a", "c", "c"]


def test_bytes_that_are_no_text_stay_as_they_are():
    """Whoever reads the text says what is wrong with it."""
    assert Mask("first", characters=2).of(b"\xffa\xfe") == b"\xffa"
