"""What a mask makes of a value, which PostgreSQL makes of it, too, by the mask's expression."""

from __future__ import annotations

import pytest

from pgbridge.bridge.publication.masks import SALT_SETTING, Mask, described, differ, effective
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
    text = described(masks)
    assert '"d": "null"' in text
    assert SALT.decode() not in text
    assert SALT.hex() not in text
    assert '"c"' not in text
    assert repr(SALT) not in repr(masks)
    assert not differ(text, masks, "abcd")
    assert not differ(described({}), {"new": Mask("null")}, ["old"]), "a column that the Delta table does not have"
    for name, other in {
        "b": Mask("sha256", salt=b"another"),
        "a": Mask("first", characters=4),
        "c": Mask("null"),
        "d": Mask("none"),
    }.items():
        assert differ(text, {**masks, name: other}, "abcd"), name


def test_a_column_that_is_looked_at_and_not_masked():
    masks = {"a": Mask("none"), "b": Mask("null")}
    assert [effective(masks, name) for name in "abc"] == [None, Mask("null"), None]


def test_bytes_that_are_no_text_stay_as_they_are():
    """Whoever reads the text says what is wrong with it."""
    assert Mask("first", characters=2).of(b"\xffa\xfe") == b"\xffa"
