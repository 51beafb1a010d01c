"""PostgreSQL's output functions, against the server's own on random values, and on bytes of other forms."""

from __future__ import annotations

import random

import pytest

from pgbridge.protocol.values import output
from pgbridge.protocol.values.types import resolve

INT4, TSTZ = resolve(23, -1), resolve(1184, -1)


def random_days(rng: random.Random) -> str:
    return str(rng.randint(-2_451_545, 2_145_031_948) >> rng.choice([0, 8, 12]))


def random_usecs(rng: random.Random) -> str:
    return str(rng.randint(-211_813_488_000_000_000, 9_223_371_331_199_999_999) >> rng.choice([0, 4, 8, 40]))


def random_interval(rng: random.Random) -> str:
    signs = [rng.choice([-1, 0, 1]) for _ in range(3)]
    months, days, usecs = (
        sign * (rng.getrandbits(bits) >> rng.choice([0, bits - 4]))
        for sign, bits in zip(signs, (31, 31, 63), strict=True)
    )
    return f"{months} mons {days} days {usecs} microseconds"


def random_inet(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return f"{'.'.join(str(rng.choice([0, 1, 255])) for _ in range(4))}/{rng.randint(0, 32)}"
    words = [rng.choice(["0", "0", "0", "1", "ffff", "a0b0"]) for _ in range(8)]
    return f"{':'.join(words)}/{rng.choice([0, 64, 127, 128, 128])}"


def random_timetz(rng: random.Random) -> str:
    zone = rng.choice([0, 1, 60, 3600, 19800, 57599]) * rng.choice([-1, 1])
    sign = "-" if zone < 0 else "+"
    hours, minutes, seconds = abs(zone) // 3600, abs(zone) // 60 % 60, abs(zone) % 60
    return (
        f"{rng.randint(0, 23):02}:00:00.{rng.choice([0, 1, 100, 999999]):06}{sign}{hours:02}:{minutes:02}:{seconds:02}"
    )


def random_numeric(rng: random.Random) -> str:
    digits = "".join(rng.choices("0019", k=rng.randint(1, 30)))
    return f"{rng.choice(['', '-'])}{digits}.{''.join(rng.choices('0019', k=rng.randint(0, 30)))}"


def timetz_text(raw: bytes) -> str:
    return output.clock(int.from_bytes(raw[:8], "big")) + output.zone_text(int.from_bytes(raw[8:], "big", signed=True))


CASES = {
    "date": ("'2000-01-01'::date + %s::int4", "date_send", random_days, output.date_text),
    "timestamp": (
        "'2000-01-01'::timestamp + (%s || ' us')::interval", "timestamp_send", random_usecs, output.timestamp_text,
    ),
    "timestamptz": (
        "'2000-01-01'::timestamptz + (%s || ' us')::interval", "timestamptz_send", random_usecs,
        output.timestamptz_text,
    ),
    "interval": ("%s::interval", "interval_send", random_interval, output.interval_text),
    "inet": ("%s::inet", "inet_send", random_inet, output.inet_text),
    "cidr": ("network(%s::inet)", "cidr_send", random_inet, output.inet_text),
    "timetz": ("%s::timetz", "timetz_send", random_timetz, timetz_text),
    "numeric": ("%s::numeric", "numeric_send", random_numeric, output.numeric_text),
}  # fmt: skip


@pytest.mark.parametrize("type_name", CASES)
def test_random_values_are_written_as_by_the_server(samples, type_name):
    expression, send, literal, function = CASES[type_name]
    rng = random.Random(type_name)
    query = f"SELECT array_out(ARRAY[v])::text, v::text, {send}(v) FROM (SELECT {expression} AS v) AS x"
    with samples.connection.pipeline(), samples.connection.cursor() as cursor:
        cursor.executemany(query, [(literal(rng),) for _ in range(500)], returning=True)
        compared = 0
        for one in cursor.results():
            as_element, text, raw = one.fetchone()
            # inet's cast to text always shows the prefix length; its output function does not
            assert function(raw) == as_element.strip('{}"'), text
            compared += 1
    assert compared == 500


@pytest.mark.parametrize(
    ("function", "raw"),
    [
        (output.date_text, b"\0\0\0"),
        (output.timestamp_text, b""),
        (output.interval_text, bytes(15)),
        (output.interval_text, bytes(17)),
        (output.inet_text, b"\2\x20\0"),
        (output.inet_text, bytes([2, 33, 0, 4, 1, 2, 3, 4])),
        (output.inet_text, bytes([2, 32, 0, 4, 1, 2, 3])),
        (output.inet_text, bytes([2, 32, 0, 16, *range(16)])),
        (output.inet_text, bytes([3, 32, 0, 4, 1, 2, 3, 4])),
        (output.inet_text, bytes([4, 32, 0, 4, 1, 2, 3, 4])),
        (output.inet_text, bytes([2, 32, 2, 4, 1, 2, 3, 4])),
        (output.tid_text, bytes(5)),
        (output.pg_lsn_text, bytes(9)),
        (output.numeric_text, bytes(7)),
        (output.numeric_text, bytes.fromhex("0001 0000 0000 0000")),
        (output.numeric_text, bytes.fromhex("ffff 0000 0000 0000")),
        (output.numeric_text, bytes.fromhex("0000 0000 1000 0000")),
    ],
)
def test_other_forms(function, raw):
    with pytest.raises(ValueError, match=r"."):
        function(raw)


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "40",
        "80",
        "02",
        "02 00000004 00000001",
        "02 00000003 000001 00000004 00000002",
        "02 00000004 00000001 00000005 00000002",
        "02 ffffffff 00000004 00000002",
        "01 00",
        "18 00",
        "18 00000004 00000001",
    ],
)
def test_other_forms_of_ranges(raw):
    """Flags without a meaning, bounds that are missing, too short, too long, and more than there should be."""
    with pytest.raises(ValueError, match=r"."):
        output.range_text(bytes.fromhex(raw), INT4)


@pytest.mark.parametrize(
    "raw", ["", "00", "ffffffff", "00000001", "00000000 00", "00000001 00000002 01", "00000001 00000001 40"]
)
def test_other_forms_of_multiranges(raw):
    with pytest.raises(ValueError, match=r"."):
        output.multirange_text(bytes.fromhex(raw), INT4)


def test_bounds_are_quoted_where_they_have_a_space():
    bound = "00000008" + "00" * 8
    assert output.range_text(bytes.fromhex("12" + bound), TSTZ) == '["2000-01-01 00:00:00+00",)'
    assert output.range_text(bytes.fromhex("18"), TSTZ) == "(,)"
