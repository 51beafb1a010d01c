"""Values of many types to be read back from a server: extremes, empty, odd and ordinary ones.

A type's declaration leads to the literals. NULL is added by whoever uses them.
"""

from __future__ import annotations

import random
from typing import Final

_random = random.Random(20001)

SETTINGS: Final = (
    "SET DateStyle = 'ISO, YMD'",
    "SET IntervalStyle = 'postgres'",
    "SET extra_float_digits = 1",
    "SET bytea_output = 'hex'",
    "SET TimeZone = 'UTC'",
    "SET client_encoding = 'UTF8'",
)
"""What pgbridge sets in its sessions."""

OWN_TYPES: Final = (
    "CREATE SCHEMA pgbridge_samples",
    "SET LOCAL search_path = pgbridge_samples, public",
    """CREATE TYPE mood AS ENUM ('sad', 'ok', 'NULL', 'it''s "fine"', 'a,b', 'ünï', '')""",
    "CREATE DOMAIN price AS numeric(10,2)",
    "CREATE DOMAIN dear_price AS price CHECK (VALUE > 100)",
    "CREATE DOMAIN positive AS int4 CHECK (VALUE > 0)",
    "CREATE DOMAIN tags AS text[]",
    "CREATE DOMAIN prices AS numeric(10,2)[]",
    "CREATE DOMAIN places AS point[]",
    "CREATE TYPE pair AS (a int4, b text)",
    "CREATE TYPE nest AS (p pair, moods mood[], at timestamptz, d price)",
    "CREATE DOMAIN whole_pair AS pair CHECK ((VALUE).a IS DISTINCT FROM 0)",
    "CREATE DOMAIN moods AS mood[]",
    "CREATE DOMAIN span AS tstzrange",
    # casts that are no output functions: what is sent must not be what they say
    "CREATE TYPE odd AS (a int4)",
    "CREATE FUNCTION says(odd) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'another text'$$",
    "CREATE CAST (odd AS text) WITH FUNCTION says(odd) AS IMPLICIT",
    "CREATE TYPE float_range AS RANGE (subtype = float8)",
    "CREATE TYPE price_range AS RANGE (subtype = price)",
)
"""Types that a server does not come with; to be made in a transaction that is rolled back."""


def _numbers(bits: int) -> list[str]:
    edge = 1 << (bits - 1)
    some = [_random.randrange(-edge, edge) >> _random.randrange(bits) for _ in range(40)]
    return [str(n) for n in (0, 1, -1, 9, 10, -10, edge - 1, -edge, *some)]


_FLOATS = [
    "0", "-0", "1", "-1", "0.1", "1e10", "1e15", "1e16", "123456.789", "1e-5", "1e-4", "NaN", "Infinity", "-Infinity",
]  # fmt: skip


def _numerics(before: int, after: int, count: int = 60) -> list[str]:
    """Random numerics of up to so many digits on both sides of the point, biased to zeros and nines."""
    found = []
    for _ in range(count):
        alphabet = _random.choice(["0123456789", "09", "0001", "9", "0"])
        whole = "".join(_random.choices(alphabet, k=_random.randint(0, before)))
        fraction = "".join(_random.choices(alphabet, k=_random.randint(0, after)))
        found.append(f"{_random.choice(['', '-'])}{whole or '0'}" + (f".{fraction}" if fraction else ""))
    return found


_DATES = [
    "2000-01-01", "1999-12-31", "1970-01-01", "2024-02-29", "1900-02-28", "0001-01-01", "9999-12-31", "1582-10-15",
    "1752-09-14", "10000-01-01", "5874897-12-31", "infinity", "-infinity", "0001-12-31 BC", "0044-03-15 BC",
    "4714-11-24 BC",
]  # fmt: skip
_STAMPS = [
    "2000-01-01 00:00:00",
    "1999-12-31 23:59:59.999999",
    "1970-01-01 00:00:00.000001",
    "2024-02-29 12:34:56.7",
    "2024-02-29 12:34:56.000100",
    "0001-01-01 00:00:00",
    "9999-12-31 23:59:59.999999",
    "10000-01-01 00:00:00",
    "294276-12-31 23:59:59.999999",
    "0001-12-31 23:59:59 BC",
    "4714-11-24 00:00:00 BC",
    "infinity",
    "-infinity",
]
_TEXTS = [
    "", " ", "a", "NULL", "null", "ünï→😀", "a,b", "{a}", '"', "\\", '\\"', "line\nbreak", "tab\t", "'", "x" * 3000,
    "{", "}", "a b", "\\x00", "(1,2)", "[1:2]={3}",
]  # fmt: skip
_CLOCKS = ["00:00", "24:00", "12:34:56", "23:59:59.999999", "01:02:03.100000", "10:00:00.000001"]


def array_of(values: list[str | None]) -> str:
    """The literal of a one-dimensional array."""
    quoted = ["NULL" if v is None else '"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"' for v in values]
    return "{" + ",".join(quoted) + "}"


def _arrays(values: list[str]) -> list[str]:
    """Empty, short, long, with and without NULLs."""
    chosen: list[list[str | None]] = [[], [None], [None, None], list(values), [*values, None], [None, *values]]
    chosen += [[_random.choice([*values, None]) for _ in range(_random.choice([1, 2, 3, 30]))] for _ in range(30)]
    return [array_of(v) for v in chosen]


SAMPLES: Final[dict[str, list[str]]] = {
    "boolean": ["t", "f"],
    "smallint": _numbers(16),
    "integer": _numbers(32),
    "bigint": _numbers(64),
    "oid": ["0", "1", "2147483648", "4294967295"],
    "real": [*_FLOATS, "3.4028235e38", "1.17549435e-38", "1e-45", "16777217", "0.3"],
    "double precision": [*_FLOATS, "1.7976931348623157e308", "2.2250738585072014e-308", "5e-324", "0.3"],
    "numeric": [
        *_numerics(30, 30), *_numerics(5, 5), *_numerics(0, 40), "1e20", "1e-20", "1e131071", "-1e-16383",
        "0.00000", "10000", "99999999", "NaN", "Infinity", "-Infinity", "0.0001", "1234567890.0000000000", "-0",
        "-0.00", "9" * 131072, "-" + "12345" * 26214 + "." + "6789" * 4095,
    ],
    "numeric(12,2)": [*_numerics(10, 2), "9999999999.99", "-9999999999.99", "0", "0.01", "NaN"],
    "numeric(5,5)": [*_numerics(0, 5), "0.99999", "-0.00001"],
    "numeric(4,0)": [*_numerics(4, 0), "9999", "-9999"],
    "numeric(1,0)": ["0", "9", "-9"],
    "numeric(1,1)": ["0", "0.9", "-0.1", "NaN"],
    "numeric(18,0)": [*_numerics(18, 0), "9" * 18, "-" + "9" * 18, "1" + "0" * 17],
    "numeric(18,1)": [*_numerics(17, 1), "9" * 17 + ".9"],
    "numeric(18,3)": [*_numerics(15, 3), "9" * 15 + ".999"],
    "numeric(18,9)": [*_numerics(9, 9), "9" * 9 + "." + "9" * 9],
    "numeric(18,18)": [*_numerics(0, 18), "0." + "9" * 18, "0." + "0" * 17 + "1"],
    "numeric(19,0)": [*_numerics(19, 0), "9" * 19],
    "numeric(38,0)": [*_numerics(38, 0), "9" * 38, "NaN"],
    "numeric(38,10)": [*_numerics(28, 10), "-" + "9" * 28 + "." + "9" * 10],
    "numeric(38,38)": [*_numerics(0, 38), "0." + "9" * 38],
    "numeric(39,2)": [*_numerics(37, 2), "NaN"],
    "numeric(3,5)": ["0.00999", "-0.00001", "0"],
    "numeric(2,5)": ["0.00099", "-0.00001", "0", "NaN"],
    "numeric(3,-2)": ["99900", "-100", "0", "12345", "49", "-50", "NaN"],
    "numeric(1000,500)": ["9" * 500 + "." + "9" * 500, "-0." + "0" * 499 + "1", "NaN"],
    "bytea": [r"\x", r"\x00", r"\xdeadbeef", "\\x" + "5c00ff" * 700, "abc"],
    "date": _DATES,
    "timestamp": _STAMPS,
    "timestamp(0)": _STAMPS,
    "timestamptz": [*_STAMPS, "2024-01-01 00:00:00+05:30", "9999-12-31 23:59:59-01", "0001-01-01 00:00:00+01"],
    "text": _TEXTS,
    "varchar(5000)": _TEXTS,
    "char(7)": ["", "abc", "ünï", "a b c d"],
    "name": ["", "x" * 63, "ünï"],
    '"char"': ["", "a", "\\", r"\001", r"\177", r"\200", r"\377"],
    "char": ["", "a", "é"],
    "json": ['{"a": [1, 2.50, "x"]}', "null", '"ü"', " [1 , 2] "],
    "jsonb": ['{"a": [1, 2.50, "x"], "b": null}', "null", '"ü"', "[]"],
    "jsonpath": ["$.a[*] ? (@ > 1)", "strict $"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
             "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "inet": [
        "0.0.0.0", "255.255.255.255", "10.1.2.3/8", "192.168.0.1/32", "0.0.0.0/0", "::", "::1", "::5", "::1:0",
        "::/0", "fe80::1/64", "2001:db8::", "2001:db8:0:0:1:0:0:1", "1:0:0:2:0:0:0:3", "::ffff:1.2.3.4", "::1.2.3.4",
        "::ffff:0:1.2.3.4", "1:2:3:4:5:6:7:8", "0:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:0", "1:2:0:0:0:0:7:8", "0:0:1::",
        "::2:0:0:0", "::ffff:0:0", "::fffe:1:2", "::1.2.3.4/96",
    ],
    "cidr": ["10.0.0.0/8", "192.168.1.1/32", "0.0.0.0/0", "::/0", "fe80::/10", "::1/128", "::ffff:1.2.3.0/120"],
    "macaddr": ["00:00:00:00:00:00", "08:00:2b:01:02:ff"],
    "macaddr8": ["00:00:00:00:00:00:00:00", "08:00:2b:01:02:03:04:ff"],
    "interval": [
        "0", "1 year", "-1 year", "1 mon", "13 mons", "-13 mons", "1 day", "2 days", "-1 day", "1 second",
        "-1 second", "0.000001 s", "-0.000001 s", "1 year -1 day", "-1 year 1 day", "-1 mon 2 days 03:04:05",
        "1 mon -2 days 03:04:05.6", "1 mon 2 days -03:04:05.6", "-1 day 03:00", "1 day -03:00", "100 hours",
        "-178000000 years", "178000000 years", "infinity", "-infinity", "2562047788:00:54.775807",
        "11 mons", "-11 mons 1 day -00:00:00.1", "1 year 1 mon 1 day 01:01:01.010101", "-1 year -1 mon +1 day",
    ],
    "interval hour to minute": ["1 day 02:03:04", "-5:00"],
    "time": _CLOCKS,
    "time(3)": _CLOCKS,
    "timetz": [c + z for c in _CLOCKS for z in ("+00", "+05:30", "-08", "+01:02:03", "-15:59:59", "+15:59")],
    "bit(1)": ["0", "1"],
    "bit(9)": ["000000000", "111111111", "100000001"],
    "bit varying": ["", "1", "10101010", "101010101", "0" * 77 + "1"],
    "pg_lsn": ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF", "1/0"],
    "xid": ["0", "3", "4294967295"],
    "cid": ["0", "4294967295"],
    "xid8": ["0", "18446744073709551615", "4294967296"],
    "tid": ["(0,0)", "(4294967295,65535)", "(1,2)"],
    "refcursor": ["c", ""],
    "int4range": ["empty", "[1,10)", "(,)", "[5,)", "(,5]", "[-2147483648,2147483647)"],
    "int8range": ["empty", "[1,10]", "(,)", "[-9223372036854775808,0)"],
    "numrange": ["empty", "(1.50,2.500]", "[-Infinity,NaN]", "(,0.00]", "[1e30,1e40)", "[0.0001,)"],
    "daterange": ["empty", "[2024-01-01,2024-02-01)", "[0044-03-15 BC,infinity)", "(,10000-01-01)", "(,)"],
    "tsrange": [
        "empty", '["2024-01-01 00:00:00","2024-01-01 12:00:00.5")', "[-infinity,infinity]",
        '("0044-03-15 00:00:00 BC",]',
    ],
    "tstzrange": ["empty", '["2024-01-01 00:00:00+02","2024-01-01 12:00:00.5-08"]', "[,infinity)"],
    "int4multirange": ["{}", "{[1,3),[5,7)}", "{(,)}", "{(,1),[5,)}"],
    "nummultirange": ["{}", "{[1.0,3.00],(5,7)}"],
    "int8multirange": ["{}", "{[-9223372036854775808,0),[1,2)}"],
    "tsmultirange": ["{}", '{["2024-01-01 00:00:00","2024-01-01 12:00:00.5"),[infinity,]}'],
    "datemultirange": ["{}", "{[2024-01-01,2024-02-01),[2025-01-01,infinity)}"],
    "tstzmultirange": ["{}", '{["2024-01-01 00:00:00+02","2024-01-01 12:00:00.5-08"]}'],
    "money": ["12.34", "-1000000.00"],
    "point": ["(0,0)", "(1e300,-2.5)", "(NaN,-Infinity)"],
    "line": ["{1,-1,0}", "{0.1,2,3}"],
    "lseg": ["[(0,0),(1,1)]"],
    "path": ["[(0,0),(1,1)]", "((0,0),(1,1),(2,0))"],
    "box": ["(1,2),(3,4)"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "circle": ["<(0,0),3>"],
    "tsvector": ["a fat cat", "'x':1A,2B"],
    "tsquery": ["fat & (rat | !cat)"],
    "regclass": ["pg_class", "0"],
    "int2vector": ["1 2 3", ""],
    "oidvector": ["1 2 3"],
    "txid_snapshot": ["10:20:10,14,15"],
    "pg_snapshot": ["10:20:10,14,15"],
    "mood": ["sad", "ok", 'it\'s "fine"', "NULL", "ünï", ""],
    "price": ["0", "12345678.90", "-0.01", "NaN"],
    "dear_price": ["100.01", "99999999.99"],
    "positive": ["1", "2147483647"],
    "tags": _arrays(_TEXTS),
    "prices": _arrays(["1.50", "-0.01", "99999999.99"]),
    "places": _arrays(["(0,0)", "(1.5,-2)"]),
    "pair": ["(1,a)", '(,"x y")', "(,)", '(3,"""q"" \\\\ ,")'],
    "nest": ['("(1,""x y"")","{sad,NULL,""a,b""}","2024-01-01 00:00:00+02",1.5)', "(,,,)", '("(,)",{},infinity,NaN)'],
    "whole_pair": ["(1,a)", '(2,"x y")', "(3,)"],
    "moods": ["{}", '{sad,NULL,"NULL","a,b",""}', "[2:2]={ok}"],
    "span": ["empty", '["2024-01-01 00:00:00+02",infinity)', "(,)"],
    "odd": ["(1)", "()"],
    "float_range": ["[0.1,1e300)", "empty", "(,)"],
    "price_range": ["[1.5,2.5)", "empty"],
    "boolean[]": _arrays(["t", "f"]),
    "smallint[]": _arrays(_numbers(16)),
    "integer[]": [*_arrays(_numbers(32)), "[0:2]={7,8,9}", "[-5:-5]={1}", "{{1,2},{3,4}}", "{{{1}}}",
                  "[2:2][3:3]={{1}}"],
    "bigint[]": _arrays(_numbers(64)),
    "real[]": _arrays(_FLOATS),
    "double precision[]": _arrays(_FLOATS),
    "numeric[]": _arrays([*_numerics(9, 9), "NaN", "1e100"]),
    "oid[]": _arrays(["0", "4294967295"]),
    "name[]": _arrays(["", "NULL", "ünï"]),
    '"char"[]': _arrays(["", "a", "\\", r"\200"]),
    "char(3)[]": _arrays(["", "a", "ü,ü"]),
    "json[]": _arrays(['{"a": [1, "x,y"]}', "null", '""']),
    "cidr[]": _arrays(["10.0.0.0/8", "::/0"]),
    "macaddr[]": _arrays(["08:00:2b:01:02:ff"]),
    "time[]": _arrays(_CLOCKS),
    "bit(3)[]": _arrays(["000", "101"]),
    "pg_lsn[]": _arrays(["0/0", "16/B374D848"]),
    "xid[]": _arrays(["0", "4294967295"]),
    "xid8[]": _arrays(["0", "18446744073709551615"]),
    "tid[]": _arrays(["(0,0)", "(4294967295,65535)"]),
    "int4range[]": _arrays(["empty", "[1,10)", "(,)"]),
    "int4multirange[]": _arrays(["{}", "{[1,3),[5,7)}"]),
    "numeric(3,-2)[]": _arrays(["99900", "-100", "NaN"]),
    "numeric(12,2)[]": _arrays([*_numerics(10, 2), "NaN"]),
    "numeric(30,5)[]": _arrays(_numerics(25, 5)),
    "text[]": [*_arrays(_TEXTS), '[3:4]={a,"b c"}', '{{a,b},{c,"d e"}}', '[0:0][1:2]={{"x","y"}}'],
    "varchar(9)[]": _arrays(["", "NULL", "ü,ü", '"']),
    "bytea[]": _arrays([r"\x", r"\x00", r"\x5c22"]),
    "date[]": _arrays(_DATES),
    "timestamp[]": _arrays(_STAMPS),
    "timestamptz[]": _arrays(_STAMPS),
    "uuid[]": _arrays(["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    "jsonb[]": _arrays(['{"a": [1, "x,y"]}', "null", "[]"]),
    "inet[]": _arrays(["10.0.0.1", "::1/64"]),
    "interval[]": _arrays(["1 day 02:03:04", "-1 mon"]),
    "timetz[]": _arrays(["12:34:56+02", "00:00:00-08"]),
    "bit varying[]": _arrays(["", "101"]),
    "tstzrange[]": _arrays(["empty", '["2024-01-01 00:00:00","2024-01-02 00:00:00")']),
    "mood[]": _arrays(["sad", "ok", "NULL", "a,b", ""]),
    "price[]": _arrays(["0", "12345678.90"]),
    "moods[]": _arrays(["{}", '{sad,NULL,"a,b"}']),
    "whole_pair[]": _arrays(["(1,a)", '(2,"x \\" y")']),
    "nest[]": _arrays(['("(1,""x y"")","{sad,NULL,""a,b""}","2024-01-01 00:00:00+02",1.5)', "(,,,)"]),
    "odd[]": _arrays(["(1)", "()"]),
    "tsvector[]": _arrays(["'x':1A,2B", "'a b' 'it''s'"]),
    "tags[]": _arrays([array_of(["a", None, ""]), "{}", array_of([' "\\'])]),
    "point[]": _arrays(["(0,0)", "(1.5,-2)"]),
    "box[]": ["{}", "{(1,2),(3,4);(5,6),(7,8)}", "{NULL;(1,1),(0,0)}"],
    "money[]": _arrays(["12.34", "-1000000.00"]),
    "pair[]": _arrays(["(1,a)", '(,"x y")', "(,)"]),
    "places[]": _arrays(["{}", array_of(["(0,0)", None])]),
    "regclass[]": _arrays(["pg_class", "pg_type"]),
}  # fmt: skip

TEXT_ONLY: Final = {
    "money", "point", "box", "polygon", "circle", "tsvector", "tsquery", "regclass", "int2vector", "oidvector",
    "txid_snapshot", "pg_snapshot", "line", "lseg", "path", "pair", "nest", "whole_pair", "odd", "float_range",
    "places", "point[]", "box[]", "money[]", "pair[]", "nest[]", "whole_pair[]", "odd[]", "places[]", "regclass[]",
    "tsvector[]",
}  # fmt: skip
"""Declarations whose values are not read in binary form, so that text is asked for."""

EXTENSION_SAMPLES: Final[dict[str, tuple[str, list[str]]]] = {
    "citext": ("citext", _TEXTS),
    "citext[]": ("citext", _arrays(_TEXTS)),
    "hstore": ("hstore", ['"a"=>"1", "b"=>NULL', ""]),
    "hstore[]": ("hstore", _arrays(['"a"=>"1"', ""])),
    "ltree": ("ltree", ["a.b.c", ""]),
}
"""Types of extensions, which the server may lack: the extension's name, and the literals."""
