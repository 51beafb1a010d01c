"""Members, keys and containment of jsonb are the server's, however values are written."""

from __future__ import annotations

import pytest

from tests.bridge.rowfilter.compared import refused

FILTERS = [
    "j ->> 'a' = '1'",
    "j ->> 'a' = 'x'",
    "j ->> 'a' is null",
    r"""j ->> 'a' = E'A\n"\\'""",
    "j ->> 'ä' = 'ö'",
    "j ->> 'a' = '1.0'",
    "j ->> 'a' = '{\"b\": \"1\"}'",
    "j ->> 'a' = '[1, 2]'",
    "j ->> 'a' = 'true'",
    "j ->> 'a' = '12345678901234567890123456789012345678901234567890.5'",
    "j ->> '' = 'e'",
    "j ->> 'A b.c' = 'k'",
    "j ->> 'a''b' = 'q'",
    "j ->> 'a' = '100'",
    "j ->> 'a' in ('x', '1')",
    "j -> 'b' ->> 'c' = 'y'",
    "j -> 'a' ->> 'b' = '1'",
    "j -> 'a' is null",
    "j -> 'a' is not null",
    "j ? 'a'",
    "j ? '1'",
    "j ? 'b'",
    "j ?| array['b', 'ä']",
    "j ?| '{b,A b.c}'",
    "j ?& array['a','b']",
    "j @> '{\"a\": 1}'",
    "j @> '{\"a\": -0}'",
    "j @> '{\"a\": -0.0}'",
    'j @> \'{"a": "1"}\'',
    "j @> '{\"a\": null}'",
    "j @> '{\"a\": true}'",
    "j @> '{}'",
    'j @> \'{"b": {"c": "y"}}\'',
    'j @> \'{"a": {"b": "1"}}\'',
    "j @> '{\"a\": 1.00}'",
    "j is null",
    "j ->> 'a' = E'{\"b\": \"1\"}'",
    "length(j ->> 'a') > 3",
    "j -> 'a' ->> 'b' is not null",
    "j -> 'b' ? 'c'",
    "j -> 'b' @> '{\"c\": \"y\"}'",
]

REFUSED = [
    ("j = '{}'", "comparing values of type jsonb is not translated"),
    ("j @> '[1]'", "jsonb containment is translated only for objects"),
    ("j -> 0 = '1'", "subscripts of jsonb arrays are not translated"),
    ("j ->> i4 = 'a'", "the operator ->> is translated only with a literal as its right operand"),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason
