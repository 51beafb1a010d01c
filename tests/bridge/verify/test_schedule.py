"""When tables are due, and what is kept of a verification, whole or in parts."""

from __future__ import annotations

import io
from contextlib import closing
from dataclasses import replace

import pytest
from rich.console import Console

from pgbridge.bridge.catalog.catalog import Catalog
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.catalog.verified import VerifiedRow, put
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.verify.comparison import Difference, Verdict
from pgbridge.bridge.verify.part import Part
from pgbridge.bridge.verify.schedule import Compared, collect, due_s, noted, render
from pgbridge.protocol.lsn import Lsn
from tests.bridge.configurations import placed

REL = RelRow("public", "t", "r", Lsn(10), "/t")
HOUR_S = 3600.0
EQUAL = Verdict("public.t", "/t", version=3)
DIFFERS = Verdict("public.t", "/t", version=3, differences=[Difference("missing", "k"), Difference("changed", "l")])
FIRST, SECOND, LAST = (
    Part("id", lower, upper, texts=False) for lower, upper in ((None, "100"), ("100", "200"), ("200", None))
)
LOCKED = Verdict("public.t", "/t", why="another session has locked it")
VARIANT = replace(EQUAL, left_out_columns=("doc",))


def compared(lsn, part=None):
    return Compared(Lsn(lsn), lsn * 10.0, lsn * 10.0 + 5, part)


def after(*steps, row=None):
    for verdict, lsn, *part in steps:
        row = noted(row, REL, verdict, compared(lsn, *part))
    return row


def test_one_that_is_equal():
    row = after((EQUAL, 20))
    assert row == VerifiedRow("public", "t", "/t", Lsn(10), 205.0, Lsn(20), 200.0, 3)


def test_one_that_differs_was_equal_before():
    row = after((EQUAL, 20), (DIFFERS, 30))
    assert (row.lsn, row.at_s, row.version) == (20, 200.0, None)
    assert (row.differs, row.differs_lsn) == ("1 changed, 1 missing", 30)
    assert after((EQUAL, 40), row=row) == after((EQUAL, 40))


def test_one_that_could_not_be_verified_is_as_it_was():
    row = after((EQUAL, 20), (LOCKED, 30))
    assert (row.lsn, row.version, row.could_not, row.tried_s) == (20, 3, "another session has locked it", 305.0)
    assert after((DIFFERS, 20), (LOCKED, 30)).differs == "1 changed, 1 missing"


CAVEAT = "a publication leaves out kinds of changes"


@pytest.mark.parametrize(
    ("verdict", "caveat"),
    [
        (VARIANT, "columns are not compared: doc"),
        (replace(EQUAL, caveat=CAVEAT), CAVEAT),
        (replace(DIFFERS, caveat='origin = "none"'), 'origin = "none"'),
    ],
)
def test_one_that_is_equal_but_for(verdict, caveat):
    """Differences that the configuration may want are no problem; what is equal so far is not told as equal."""
    row = after((verdict, 20))
    assert (row.lsn, row.differs, row.could_not, row.caveat) == (None, None, None, caveat)
    assert due_s(row, 24 * HOUR_S, changed=True) == 205 + 24 * HOUR_S
    row = after((DIFFERS, 10), (verdict, 20))
    assert (row.differs, row.caveat) == (None, caveat)


def test_keys_that_are_left_out_may_be_those_that_differ():
    row = after((DIFFERS, 10), (replace(EQUAL, left_out=3), 20))
    assert (row.differs, row.lsn) == ("1 changed, 1 missing", None)
    assert row.could_not == "the last changes of some keys were not applied yet"


def test_repaired():
    row = after((replace(DIFFERS, repaired=True), 20))
    assert (row.lsn, row.differs, row.version) == (20, None, None)
    assert after((replace(DIFFERS, repaired=True, partly=True), 20)).differs == "at least some rows"


def test_in_parts_the_first_part_says_until_when_all_is_equal():
    row = after((EQUAL, 20, FIRST), (replace(EQUAL, version=4), 30, SECOND))
    assert (row.lsn, row.begun.lower) == (None, "200")
    row = after((replace(EQUAL, version=5), 40, LAST), row=row)
    assert (row.lsn, row.at_s, row.version, row.begun) == (20, 200.0, 3, None)


@pytest.mark.parametrize("verdict", [VARIANT, replace(EQUAL, caveat="c")])
def test_with_a_caveat_all_parts_are_compared(verdict):
    row = after((verdict, 20, FIRST), (verdict, 30, SECOND))
    assert row.begun.lower == "200"
    row = after((verdict, 40, LAST), row=row)
    assert (row.lsn, row.begun, row.caveat is None) == (None, None, False)


def test_a_part_that_differs_counts_to_the_end():
    row = after((EQUAL, 20, FIRST), (DIFFERS, 30, SECOND))
    assert row.differs == "1 changed, 1 missing"
    row = after((DIFFERS, 40, LAST), row=row)
    assert (row.lsn, row.differs, row.begun) == (None, "2 changed, 2 missing", None)
    assert after((EQUAL, 50, FIRST), (EQUAL, 60, LAST), row=row).differs == "2 changed, 2 missing", "one is left out"
    assert after((EQUAL, 50, FIRST), (EQUAL, 60, SECOND), (EQUAL, 70, LAST), row=row).differs is None


def test_a_part_that_could_not_be_verified_is_tried_again():
    row = after((EQUAL, 20, FIRST), (LOCKED, 30, SECOND))
    assert (row.begun.lower, row.could_not) == ("100", "another session has locked it")
    row = after((EQUAL, 40, SECOND), (EQUAL, 50, LAST), row=row)
    assert (row.lsn, row.could_not) == (20, None)


def test_two_verifications_at_the_same_time():
    """A part is none of a round that has ended meanwhile; what is found as of an earlier LSN changes nothing."""
    row = after((EQUAL, 20, FIRST), (EQUAL, 30, SECOND), (DIFFERS, 40))
    assert after((EQUAL, 35, LAST), row=row) == row
    assert after((EQUAL, 50, LAST), row=row) == row
    assert after((EQUAL, 39), row=row) == row
    assert after((DIFFERS, 19), row=after((EQUAL, 20))) == after((EQUAL, 20))
    assert after((EQUAL, 50, SECOND), row=None) == VerifiedRow("public", "t", "/t", Lsn(10), 0.0)


def test_due():
    equal = after((EQUAL, 20))
    assert due_s(None, 24 * HOUR_S, changed=True) == 0
    assert due_s(equal, 24 * HOUR_S, changed=True) == 205 + 24 * HOUR_S
    assert due_s(equal, 24 * HOUR_S, changed=False) == 205 + 7 * 24 * HOUR_S
    assert due_s(after((DIFFERS, 20)), 24 * HOUR_S, changed=False) == 205 + 24 * HOUR_S
    assert due_s(after((EQUAL, 20, FIRST)), 24 * HOUR_S, changed=True) == 205
    failed = after((EQUAL, 20, FIRST), (LOCKED, 30, SECOND))
    assert due_s(failed, 24 * HOUR_S, changed=True) == 305 + HOUR_S
    assert due_s(failed, 0.5 * HOUR_S, changed=True) == 305 + 0.5 * HOUR_S


@pytest.mark.parametrize("every_h", [0, 24])
def test_the_schedule_as_it_is_shown(tmp_path, every_h):
    options = placed({"workers__verify_every_h": every_h, "tables": {"public.log": {"mode": "changelog"}}})
    options |= {"publications": ["pub"], "warehouse": "/lake", "connection": "host=h"}
    subscription = Subscription(name="shop", **options)
    rows = {
        "differs": after((DIFFERS, 20)),
        "equal": after((EQUAL, 20)),
        "locked": after((LOCKED, 20)),
        "parts": after((EQUAL, 20, FIRST)),
        "resynced": replace(after((DIFFERS, 20)), copied_lsn=Lsn(9)),
        "variant": after((VARIANT, 20)),
    }
    with closing(Catalog(tmp_path / "catalog.sqlite")) as catalog:
        catalog.register("shop", enabled=True)
        for name in [*rows, "log", "new"]:
            catalog.put_rel("shop", replace(REL, name=name))
        catalog.put_rel("shop", replace(REL, name="waits", waits="for its resync"))
        for name, row in rows.items():
            put(catalog, "shop", replace(row, name=name))
        document = collect(catalog, [subscription])
    output = io.StringIO()
    Console(file=output, width=160).print(render(document))
    lines = [" ".join(line.split()) for line in output.getvalue().splitlines()]
    now, hour, day, if_not, soon = ("",) * 5
    if every_h:
        now, hour, day = "now", "1970-01-01T01:03:25+00:00", "1970-01-02T00:03:25+00:00"
        if_not, soon = ", if unchanged 1970-01-08T00:03:25+00:00", "1970-01-01T00:03:25+00:00"
    assert lines == [
        "shop: every 24 hours" if every_h else "shop: by hand only: workers.verify_every_h = 0",
        "table equal until last found next",
        f"public.differs 1 changed, 1 missing {day}".rstrip(),
        f"public.equal 1970-01-01T00:03:20+00:00 equal {day}{if_not}".rstrip(),
        f"public.locked not verified: another session has locked it {hour}".rstrip(),
        f"public.new {now}".rstrip(),
        f"public.parts under way {soon}".rstrip(),
        f"public.resynced {now}".rstrip(),
        f"public.variant equal, but columns are not compared: doc {day}{if_not}".rstrip(),
    ]
