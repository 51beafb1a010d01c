"""Functions on text count and cut characters as the server does."""

from __future__ import annotations

import pytest

from tests.bridge.rowfilter.compared import refused

FILTERS = [
    "t || t2 = 'aa'",
    "t || 'x' = 'ax'",
    "c || 'x' = 'ax'",
    "v || v = 'aa'",
    r"x || '\x00' = '\x0000'",
    "length(x) = 1",
    "length(t) = 3",
    "char_length(t) > 2",
    "length(c) = 1",
    "octet_length(t) = 3",
    "octet_length(c) = 5",
    "lower(t) = 'abc'",
    "upper(t) = 'ABC'",
    "substr(t, 2) = 'bc'",
    "substr(t, 0, 2) = 'a'",
    "substring(t from 2 for 1) = 'b'",
    "substring(t from -1 for 3) = 'a'",
    "substring(t, 1, 1) = '日'",
    "substring(t for 1) = 'a'",
    "left(t, 1) = 'a'",
    "left(t, -1) = 'ab'",
    "right(t, 2) = 'bc'",
    "right(t, -1) = 'bc'",
    "right(t, i4) = t",
    "left(t, i4) = t",
    "substr(t, i4) = t",
    "substr(t, j4, 3) <> ''",
    "btrim(t) = 'b'",
    "trim(t) = 'b'",
    "ltrim(t) = 'b'",
    "rtrim(t) = 'b'",
    "trim(both 'xz' from t) = 'yzzy'",
    "trim(leading 'a' from t) = 'bc'",
    "rtrim(t, 'cb') = 'a'",
    "btrim(t, '') = t",
    "position('b' in t) = 2",
    "strpos(t, 'b') > 0",
    "strpos(t, '') = 1",
    "strpos(t, '語') = 3",
    "strpos(t, t2) = 1",
    "starts_with(t, 'a')",
    "t ^@ 'a'",
    "starts_with(t, t2)",
    "replace(t, 'b', 'x') = 'axc'",
    "replace(t, '', 'x') = t",
    "reverse(t) = 'cba'",
    "txt || 'x' = 'ax'",
    "right(t, -2147483648) = t",
    "left(t, -2147483648) = ''",
    "right(t, 2147483647) = t",
    "repeat(t, j4) = 'aa'",
    "repeat(t, -1) = ''",
    "repeat(t, j4) is null",
    "repeat('', 2147483647) = ''",
    "lpad(t, 5, 'xy') = 'xyabc'",
    "lpad(t, 2) = 'ab'",
    "lpad(t, j4, t2) = t",
    "lpad(t, -1, 'x') = ''",
    "rpad(t, 4, '語ä') = 'a語ä語'",
    "rpad(t, 2147483647, '') = t",
    "translate(t, 'abca', 'ÄB') = 'ÄB'",
    "translate(t, '', 'x') = t",
    "translate(t, t2, '') = ''",
    "translate(t, '𝔘ä', 'xy') <> t",
    "split_part(t, 'b', 1) = 'a'",
    "split_part(t, 'b', -1) = 'c'",
    "split_part(t, '', -1) = t",
    "split_part(t, t2, 2) = ''",
    "split_part(t, '.', -2147483648) = ''",
    "split_part('', 'x', j4 + 100) = ''",
    "overlay(t placing '語' from 2) = 'a語c'",
    "overlay(t placing t2 from 2 for 0) = 'aabc'",
    "overlay(t placing 'x' from 3 for -2) = 'abxbc'",
    "overlay(t placing '' from 1 for 9) = ''",
]

REFUSED = [
    (
        "lower(txt) = 'a'",
        'lower depends on collation "default", which only the server knows; lower(… COLLATE "C") is translated',
    ),
    ("substring(t from '[a-z]') = 'a'", "the function substring(text, text) is not translated"),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason
