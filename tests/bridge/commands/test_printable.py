"""No text of a server moves a terminal's cursor, changes its colours or its title, or the order of what is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.commands.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("public.t", "public.t"),
        ("Bücher «été\u00a0» 表", "Bücher «été\u00a0» 表"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\x9b2Jb", r"a\x9b2Jb"),
        ("a\nb\tc\r\x07\x7f", r"a\nb\tc\r\x07\x7f"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2028", r"\u2028"),
        ("\udc80", r"\udc80"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, shown):
    assert printable(text) == shown


def test_some_may_stay():
    assert printable("a\nb\x1b\t", keep="\n\t") == "a\nb\\x1b\t"


@given(st.text())
def test_no_control_character_is_left(text):
    shown = printable(text)
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown)
    shown.encode()
