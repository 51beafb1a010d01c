"""The tokens are those of scan.l: the server reads the same names and the same strings.

The keywords are the server's, and a quoted name is read back as the same name.
"""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import given, strategies as st
from psycopg import sql as psql

from pgbridge.bridge.sqltext.lexer import COL_NAMES, RESERVED, TYPE_FUNC_NAMES, Kind, quote_identifier, tokens
from pgbridge.bridge.sqltext.refusal import Refused


def values(text: str) -> list[tuple[Kind, str]]:
    return [(token.kind, token.value) for token in tokens(text)][:-1]


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
        (r"E'a\'b\n\x41\101\u00e9\q'", Kind.STRING, "a'b\nAAéq"),
        (r"E'\ud83d\ude00'", Kind.STRING, "😀"),
        ("e'a''b'", Kind.STRING, "a'b"),
        (r"E'\xc3\244'", Kind.BYTES, "Ã¤"),
        (r"U&'\0061'", Kind.STRING, "a"),
        ("U&'!0061''' /* u */ -- e\n uescape E'!'", Kind.STRING, "a'"),
        ("'a'  -- c\n -- 'x'\n 'b'", Kind.STRING, "ab"),
        ("B'01'", Kind.BITS, "01"),
        ("x'1'\n'f'", Kind.BITS, "1f"),
        ("N'a'", Kind.NATIONAL, "a"),
        ("$$a'b$$", Kind.STRING, "a'b"),
        ("$x$a$$b$y$$x$", Kind.STRING, "a$$b$y$"),
        ("007", Kind.INTEGER, "007"),
        ("1_000", Kind.INTEGER, "1000"),
        ("0x1F", Kind.INTEGER, "31"),
        ("0o_17", Kind.INTEGER, "15"),
        ("0B101", Kind.INTEGER, "5"),
        ("1.5e-3", Kind.DECIMAL, "1.5e-3"),
        ("1_0.5_0e1_0", Kind.DECIMAL, "10.50e10"),
        ("1.", Kind.DECIMAL, "1."),
        (".5", Kind.DECIMAL, ".5"),
        ("$1", Kind.PARAMETER, "$1"),
        ("<=", Kind.OPERATOR, "<="),
        ("!=", Kind.OPERATOR, "<>"),
        ("@-", Kind.OPERATOR, "@-"),
        ("=>", Kind.MARK, "=>"),
        ("::", Kind.MARK, "::"),
        (":=", Kind.MARK, ":="),
    ],
)
def test_token(text, kind, value):
    assert values(text) == [(kind, value)]
    token = tokens(text)[0]
    assert (token.source, token.start, token.end) == (text, 0, len(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a -- (\n/* ( /* ) */ ' */ b", ["a", "b"]),
        ("a+--(\nb*/*(*/c", ["a", "+", "b", "*", "c"]),
        ("a/* /* */ */b--c\nd", ["a", "b", "d"]),
        ("(E'\\')' || $a$)$a$ || ')' || \")\")", ["(", "')", "||", ")", "||", ")", "||", ")", ")"]),
        ("'a' 'b'", ["a", "b"]),
        ("'a'\n--x'b'", ["a"]),
        ("a-1=-1 <>-2 @-3 !=b", ["a", "-", "1", "=", "-", "1", "<>", "-", "2", "@-", "3", "<>", "b"]),
        ("a::int[1..2:3].b", ["a", "::", "int", "[", "1", "..", "2", ":", "3", "]", ".", "b"]),
        ("u & 'a' uescape", ["u", "&", "a", "uescape"]),
        ("e 'a' b$$ 1.5.5 U&'x'uescapes", ["e", "a", "b$$", "1.5", ".5", "x", "uescapes"]),
        ("=>-1", ["=>", "-", "1"]),
    ],
)
def test_tokens(text, expected):
    assert [value for _, value in values(text)] == expected


@pytest.mark.parametrize(
    ("text", "message", "at"),
    [
        ("a 'b", "unterminated quoted string", 2),
        ("a E'b\\'", "unterminated quoted string", 2),
        ("a 'b''", "unterminated quoted string", 2),
        ('a "b', "unterminated quoted identifier", 2),
        ("a $x$ b", "unterminated dollar-quoted string", 2),
        ("a /* /* */", "unterminated /* comment", 2),
        ('""', "zero-length delimited identifier", 0),
        ('U&""', "zero-length delimited identifier", 0),
        (r'U&"\00"', "invalid Unicode escape", 0),
        (r"E'\u00'", "invalid Unicode escape", 0),
        (r"E'\U00110000'", "invalid Unicode escape value", 0),
        (r"U&'\0000'", "invalid Unicode escape value", 0),
        (r'U&"\D83D"', "invalid Unicode surrogate pair", 0),
        (r"E'\ud83d'", "invalid Unicode surrogate pair", 0),
        ("U&'a' UESCAPE x", "UESCAPE must be followed by a simple string literal", 14),
        ("U&'a' UESCAPE 'a'", "invalid Unicode escape character", 14),
        ("U&'a' UESCAPE '!!'", "invalid Unicode escape character", 14),
        ("a = 1a", "trailing junk after numeric literal", 4),
        ("a = 1_", "trailing junk after numeric literal", 4),
        ("a = 1e+", "trailing junk after numeric literal", 4),
        ("a = 0x", "trailing junk after numeric literal", 4),
        ("$1a", "trailing junk after parameter", 0),
        ("$", 'syntax error at or near "$"', 0),
        ("E'\\000'", "a string or a name with the character U+0000", 0),
        ("a \\restrict x", 'syntax error at or near "\\"', 2),
        ("x" * 64, f'identifier "{"x" * 64}" will be truncated to "{"x" * 63}"', 0),
        ('"' + "ä" * 32 + '"', f'identifier "{"ä" * 32}" will be truncated to "{"ä" * 31}"', 0),
    ],
)
def test_refused(text, message, at):
    with pytest.raises(Refused) as error:
        tokens(text)
    assert error.value.reason.startswith(message)
    assert error.value.at == at


@given(st.text())
def test_any_text_is_tokens_or_refused(text):
    try:
        found = tokens(text)
    except Refused as error:
        at = error.at
    else:
        at = 0
        assert all(text[token.start : token.end] == token.source for token in found)
    assert at is not None
    assert 0 <= at <= len(text)


PIECES = st.sampled_from(
    [
        "'", "''", '"', "\\", "\\\\", "a", "Z", "ä", "😀", "0061", "\\0061", "\\+01F600", "\\D83D", "\\DE00",
        "\\u0061", "\\U0001F600", "\\ud83d", "\\ude00", "\\101", "\\x41", "\\xe", "\\n", "\\q", " ", "\n", "!", "!0061",
        "--", "/*", "*/", "'\n'", "'-- c\n '", "'\n-- c'", "' /* c */ '", "'\n--\n'", "$$", "$a$", "$A$", "U&'",
        "E'", "_", "1",
    ]
)  # fmt: skip


@pytest.fixture(scope="module")
def connection(postgresql_server):
    with postgresql_server.connect() as made:
        yield made


def read_by_server(connection, text):
    """The value and the name of the column that SELECT has with this text; None if the server refuses it."""
    try:
        cursor = connection.execute(f"SELECT {text}".encode())
    except psycopg.Error:
        return None
    return str(cursor.fetchone()[0]), cursor.description[0].name


@given(
    opening=st.sampled_from(["'", "E'", "e'", "U&'", "u&'", "$$", "$a$", '1 AS "', '1 AS U&"']),
    pieces=st.lists(PIECES, max_size=6),
    ending=st.sampled_from(["", "", " uescape '!'", "\nUESCAPE E'!'", " uescape/**/$$!$$", "UESCAPE 'a'"]),
)
def test_strings_and_names_are_the_servers(connection, opening, pieces, ending):
    """The server refuses what is refused here, and reads the same where a text is a literal and perhaps a name."""
    text = opening + "".join(pieces) + (opening if "$" in opening else opening[-1]) + ending
    there = read_by_server(connection, text)
    try:
        found = [token for token in tokens(text)[:-1] if not token.is_word("as")]
    except Refused:
        assert there is None
        return
    kinds = [token.kind for token in found]
    if kinds in ([Kind.STRING], [Kind.STRING, Kind.QUOTED], [Kind.INTEGER, Kind.QUOTED]):
        assert there == (found[0].value, found[1].value if found[1:] else "?column?")


@pytest.mark.parametrize(
    "text", ["007", "1_000", "0x_1F", "0o17", "0B1_01", "9_999_999_999", "1.", ".5", "1_0.5_0", "1.5e-3", "1e1_0"]
)
def test_numbers_are_the_servers(connection, text):
    if connection.info.server_version < 160000 and text[-1] != "." and not text.replace(".", "").isdigit():
        pytest.skip("PostgreSQL reads underscores and other bases since version 16")
    value, _ = read_by_server(connection, text)
    assert read_by_server(connection, tokens(text)[0].value) == (value, "?column?")


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=15))
def test_quoted_names_come_back(name):
    assert tokens(quote_identifier(name))[0].value == name


def test_keywords_are_the_servers(postgresql):
    rows = postgresql.execute("SELECT word, catcode FROM pg_get_keywords() WHERE catcode <> 'U'").fetchall()
    for category, ours in (("R", RESERVED), ("T", TYPE_FUNC_NAMES), ("C", COL_NAMES)):
        theirs = {word for word, one in rows if one == category}
        if postgresql.info.server_version >= 180000:
            assert theirs == ours
        else:  # keywords of later versions are missing
            assert theirs <= RESERVED | TYPE_FUNC_NAMES | COL_NAMES


@pytest.mark.parametrize("name", ["a", "A", "a b", "user", "between", "name", "9a", "ä", "a$", 'a"b', "value", "left"])
def test_names_are_quoted_as_the_server_does(postgresql, name):
    (quoted,) = postgresql.execute(psql.SQL("SELECT quote_ident({})").format(name)).fetchone()
    assert quote_identifier(name) == quoted
