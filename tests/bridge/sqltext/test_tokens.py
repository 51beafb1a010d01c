"""The tokens are scan.l's; a name is written back so that the server reads the same one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql as psql

from bridge.sqltext.tokens import COLUMN_NAMES, RESERVED, Kind, LexicalError, quote_identifier, tokenize


def values(text: str) -> list[tuple[Kind, str]]:
    return [(token.kind, token.value) for token in tokenize(text)][:-1]


def symbols(text: str) -> list[str]:
    return [token.value for token in tokenize(text) if token.kind is Kind.SYMBOL]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("ABC_1$", Kind.WORD, "abc_1$"),
        ("ÄöX", Kind.WORD, "Äöx"),  # only ASCII is folded
        ('"A ""b"" c"', Kind.QUOTED, 'A "b" c'),
        (r'U&"d\0061t\+000061"', Kind.QUOTED, "data"),
        (r'u&"d!0061!!" UESCAPE ' + "'!'", Kind.QUOTED, "da!"),
        (r'U&"\D83D\DE00"', Kind.QUOTED, "😀"),
        ("'it''s'", Kind.STRING, "it's"),
        (r"'a\'", Kind.STRING, "a\\"),
        (r"E'a\'b\n\x41\101\u00e9'", Kind.STRING, "a'b\nAAé"),
        ("e'a''b'", Kind.STRING, "a'b"),
        (r"U&'\0061'", Kind.STRING, "a"),
        ("'a'  -- c\n 'b'", Kind.STRING, "ab"),
        ("B'01'", Kind.STRING, "01"),
        ("$$a'b$$", Kind.STRING, "a'b"),
        ("$x$a$$b$y$$x$", Kind.STRING, "a$$b$y$"),
        ("1.5e-3", Kind.NUMBER, "1.5e-3"),
        ("0x1F", Kind.NUMBER, "0x1F"),
        ("<=", Kind.SYMBOL, "<="),
        ("::", Kind.SYMBOL, "::"),
    ],
)
def test_token(text, kind, value):
    assert values(text) == [(kind, value)]
    token = next(tokenize(text))
    assert (token.source, token.start, token.end) == (text, 0, len(text))


def test_comments_are_between_tokens():
    assert values("a -- (\n/* ( /* ) */ ' */ b") == [(Kind.WORD, "a"), (Kind.WORD, "b")]
    assert symbols("a+--(\nb*/*(*/c") == ["+", "*"]


def test_strings_hide_what_is_in_them():
    assert symbols("(E'\\')' || $a$)$a$ || ')' || \")\")") == ["(", "||", "||", "||", ")"]


def test_strings_side_by_side_are_two():
    assert len(values("'a' 'b'")) == 2


@pytest.mark.parametrize(
    ("text", "message", "at"),
    [
        ("a 'b", "unterminated quoted string", 2),
        ('a "b', "unterminated quoted identifier", 2),
        ("a $x$ b", "unterminated dollar-quoted string", 2),
        ("a /* /* */", "unterminated /* comment", 2),
        ('""', "zero-length delimited identifier", 0),
        (r'U&"\00"', "invalid Unicode escape", 0),
        (r'U&"\D83D"', "invalid Unicode surrogate pair", 0),
        ("a \\restrict x", 'syntax error at or near "\\"', 2),
        ("x" * 64, f'identifier "{"x" * 64}" will be truncated to "{"x" * 63}"', 0),
        ('"' + "ä" * 32 + '"', f'identifier "{"ä" * 32}" will be truncated to "{"ä" * 31}"', 0),
    ],
)
def test_refused(text, message, at):
    with pytest.raises(LexicalError) as error:
        list(tokenize(text))
    assert str(error.value).startswith(message)
    assert error.value.at == at


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=15))
def test_quoted_names_come_back(name):
    (token,) = list(tokenize(quote_identifier(name)))[:-1]
    assert token.value == name


@given(st.text())
def test_any_text_is_tokens_or_refused(text):
    try:
        tokens = list(tokenize(text))
    except LexicalError as error:
        at = error.at
    else:
        at = 0
        assert all(text[token.start : token.end] == token.source for token in tokens)
    assert 0 <= at <= len(text)


def test_keywords_are_the_servers(postgresql):
    """Those of this version may be fewer than PostgreSQL 18's."""
    rows = postgresql.execute("SELECT word, catcode FROM pg_get_keywords()").fetchall()
    assert {word for word, code in rows if code in "RT"} <= RESERVED
    assert {word for word, code in rows if code == "C"} <= COLUMN_NAMES | RESERVED


def test_names_are_quoted_as_the_server_does(postgresql):
    for name in ("a", "A", "a b", "user", "between", "name", "9a", "ä", "a$", 'a"b', "value", "table"):
        (quoted,) = postgresql.execute(psql.SQL("SELECT quote_ident({})").format(name)).fetchone()
        assert quote_identifier(name) == quoted
