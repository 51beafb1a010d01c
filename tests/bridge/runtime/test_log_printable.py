"""What a terminal would obey is shown, as psql shows it; what it shows stays as it is."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from pgbridge.bridge.runtime.log import one_line, printable, printable_document


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1B[31mred\x1B[0m"),
        ("\x1b]0;title\x07", r"\x1B]0;title\x07"),
        ("\x9b2J", r"\x9B2J"),
        ("a\rb\x08\x7f", r"a\x0Db\x08\x7F"),
        ("user\u202etxt.exe", r"user\u202Etxt.exe"),
        ("line\u2028line", r"line\u2028line"),
        ("\udc80", r"\uDC80"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("ключ 漢 🐘 é ⚠ a'; drop table x; --", "ключ 漢 🐘 é ⚠ a'; drop table x; --"),
    ],
)  # fmt: skip
def test_printable(text, shown):
    assert printable(text) == shown


def test_every_control_character_is_shown():
    controls = {chr(code) for code in range(sys.maxunicode) if unicodedata.category(chr(code)) == "Cc"}
    assert {one for one in controls if printable(one) == one} == {"\n", "\t"}
    assert {one for one in controls if one_line(one) == one} == set()


def test_every_turn_of_direction_is_shown():
    turns = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    codes = [chr(code) for code in range(sys.maxunicode) if unicodedata.bidirectional(chr(code)) in turns]
    assert len(codes) == 9
    assert [one for one in codes if printable(one) == one] == []


def test_a_document_keeps_its_shape():
    document = {
        "subscriptions": [{"name": "a\nb", "lag_bytes": 7, "last_error": {"message": "x\ny\x1b", "relation": "a\tb"}}],
        "leaves": ["a\nb", None],
        "ok": True,
    }
    assert printable_document(document) == {
        "subscriptions": [
            {"name": r"a\nb", "lag_bytes": 7, "last_error": {"message": "x\ny\\x1B", "relation": r"a\tb"}}
        ],
        "leaves": [r"a\nb", None],
        "ok": True,
    }
