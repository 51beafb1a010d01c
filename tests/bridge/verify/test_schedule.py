"""When tables are due, and what is kept of a verification, whole or in parts."""

from __future__ import annotations

import io
from contextlib import closing
from dataclasses import replace

import pytest
from rich.console import Console

from bridge.catalog.catalog import Catalog
from bridge.catalog.catalog_rows import RelRow
from bridge.catalog.verified import VerifiedRow, put, rows
from bridge.config.config import Subscription
from bridge.verify.comparison import Difference, Verdict
from bridge.verify.part import Part
from bridge.verify.schedule import Compared, collect, due_s, noted, render
from protocol.lsn import Lsn
from tests.bridge.configurations import placed

REL = RelRow("public", "t", "r", Lsn(10), "/t")
HOUR_S = 3600.0
EQUAL = Verdict("public.t", "/t", version=3)
DIFFERS = Verdict("public.t", "/t", version=3, differences=[Difference("missing", "k"), Difference("changed", "l")])
FIRST, SECOND, LAST = Part("id", None, "100"), Part("id", "100", "200"), Part("id", "200", None)


def compared(lsn, part=None):
    return Compared(Lsn(lsn), lsn * 10.0, lsn * 10.0 + 5, part)


def after(*steps, row=None):
    for verdict, lsn, *part in steps:
        row = noted(row, REL, verdict, compared(lsn, *part))
    return row


def test_one_that_is_equal():
    row = after((EQUAL, 20))
    assert row == VerifiedRow("public", "t", "/t", 205.0, Lsn(20), 200.0, 3)


def test_one_that_differs_was_equal_before():
    row = after((EQUAL, 20), (DIFFERS, 30))
    assert (row.lsn, row.at_s, row.version) == (20, 200.0, None)
    assert row.differing(REL) == "1 changed, 1 missing"
    assert row.differs_lsn == 30
    assert row.differing(replace(REL, lsn=Lsn(31))) is None, "it was copied since"
    assert row.differing(replace(REL, state="f")) is None, "it is being copied"
    assert after((EQUAL, 40), row=row).differing(REL) is None


def test_one_that_could_not_be_verified_is_as_it_was():
    failed = Verdict("public.t", "/t", why="another session has locked it")
    row = after((EQUAL, 20), (failed, 30))
    assert (row.lsn, row.version, row.could_not, row.tried_s) == (20, 3, "another session has locked it", 305.0)
    assert after((DIFFERS, 20), (failed, 30)).differing(REL) == "1 changed, 1 missing"


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (replace(EQUAL, left_out=3), "the last changes of some keys were not applied yet"),
        (replace(EQUAL, left_out_columns=("doc",)), "columns are not compared: doc"),
        (
            replace(EQUAL, caveat="a publication leaves out kinds of changes"),
            "a publication leaves out kinds of changes",
        ),
        (replace(DIFFERS, caveat='origin = "none"'), 'origin = "none"'),
    ],
)
def test_one_that_is_neither(verdict, why):
    """Differences that the configuration may want are no problem."""
    row = after((verdict, 20))
    assert (row.lsn, row.differs, row.could_not) == (None, None, why)


def test_repaired():
    row = after((replace(DIFFERS, repaired=True), 20))
    assert (row.lsn, row.differs, row.version) == (20, None, None)


def test_in_parts_the_first_part_says_until_when_all_is_equal():
    row = after((EQUAL, 20, FIRST), (replace(EQUAL, version=4), 30, SECOND))
    assert (row.lsn, row.begun.lower) == (None, "200")
    row = after((replace(EQUAL, version=5), 40, LAST), row=row)
    assert (row.lsn, row.at_s, row.version, row.begun) == (20, 200.0, 3, None)


def test_a_part_that_differs_counts_to_the_end():
    row = after((EQUAL, 20, FIRST), (DIFFERS, 30, SECOND))
    assert row.differing(REL) == "1 changed, 1 missing"
    row = after((DIFFERS, 40, LAST), row=row)
    assert (row.lsn, row.differs, row.begun) == (None, "2 changed, 2 missing", None)
    assert after((EQUAL, 50, FIRST), (EQUAL, 60, LAST), row=row).differing(REL) is None


def test_a_part_that_could_not_be_verified_is_tried_again():
    row = after((EQUAL, 20, FIRST), (Verdict("public.t", "/t", why="locked"), 30, SECOND))
    assert (row.begun.lower, row.could_not) == ("100", "locked")
    row = after((EQUAL, 40, SECOND), (EQUAL, 50, LAST), row=row)
    assert (row.lsn, row.could_not) == (20, None)


def test_due():
    equal = after((EQUAL, 20))
    assert due_s(None, 24 * HOUR_S, changed=True) == 0
    assert due_s(equal, 24 * HOUR_S, changed=True) == 205 + 24 * HOUR_S
    assert due_s(equal, 24 * HOUR_S, changed=False) == 205 + 7 * 24 * HOUR_S
    assert due_s(after((DIFFERS, 20)), 24 * HOUR_S, changed=False) == 205 + 24 * HOUR_S
    assert due_s(after((EQUAL, 20, FIRST)), 24 * HOUR_S, changed=True) == 0
    failed = after((EQUAL, 20, FIRST), (Verdict("public.t", "/t", why="locked"), 30, SECOND))
    assert due_s(failed, 24 * HOUR_S, changed=True) == 305 + HOUR_S
    assert due_s(failed, 0.5 * HOUR_S, changed=True) == 305 + 0.5 * HOUR_S


@pytest.mark.parametrize("every_h", [0, 24])
def test_the_schedule_as_it_is_shown(tmp_path, every_h):
    options = placed({"workers__verify_every_h": every_h, "tables": {"public.log": {"mode": "changelog"}}})
    options |= {"publications": ["pub"], "warehouse": "/lake", "connection": "host=h"}
    subscription = Subscription(name="shop", **options)
    with closing(Catalog(tmp_path / "catalog.sqlite")) as catalog:
        catalog.register("shop", enabled=True)
        names = ("differs", "equal", "locked", "log", "new", "parts")
        for name in names:
            catalog.put_rel("shop", replace(REL, name=name))
        put(catalog, "shop", replace(after((DIFFERS, 20)), name="differs"))
        put(catalog, "shop", replace(after((EQUAL, 20)), name="equal"))
        put(catalog, "shop", replace(after((Verdict("", "", why="locked"), 20)), name="locked"))
        put(catalog, "shop", replace(after((EQUAL, 20, FIRST)), name="parts"))
        assert rows(catalog, "shop").keys() == {("public", name) for name in ("differs", "equal", "locked", "parts")}
        document = collect(catalog, [subscription])
    output = io.StringIO()
    Console(file=output, width=120).print(render(document))
    lines = [" ".join(line.split()) for line in output.getvalue().splitlines()]
    hour, day = ("1970-01-01T01:03:25+00:00", "1970-01-02T00:03:25+00:00") if every_h else ("", "")
    assert lines == [
        "shop: every 24 hours" if every_h else "shop: by hand only: workers.verify_every_h = 0",
        "table equal until last found next",
        f"public.differs 1 changed, 1 missing {day}".rstrip(),
        f"public.equal 1970-01-01T00:03:20+00:00 equal {day}".rstrip(),
        f"public.locked not verified: locked {hour}".rstrip(),
        "public.new now" if every_h else "public.new",
        "public.parts under way now" if every_h else "public.parts under way",
    ]
