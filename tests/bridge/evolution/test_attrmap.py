"""Attribute numbers are exact if the catalog is as of the message, and plausible if it is ahead."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from pgbridge.bridge.catalog.catalog_rows import ColumnRow
from pgbridge.bridge.evolution.attrmap import align, of_partition
from pgbridge.bridge.publication.tables import Attribute
from pgbridge.protocol.codec.messages import Column

INT, TEXT = 23, 25


def message(*names: str, type_oid: int = INT) -> list[Column]:
    return [Column(name, type_oid, -1, is_key=False) for name in names]


def known(*names: str, state="live") -> list[ColumnRow]:
    """Columns numbered from 1; one in brackets is gone, one in braces hidden."""
    states = {"[": "gone", "{": "hidden"}
    return [
        ColumnRow(number, name.strip("[]{}"), INT, -1, states.get(name[0], state))
        for number, name in enumerate(names, 1)
    ]


def catalog(*names: str | None) -> list[Attribute]:
    """Catalog columns numbered from 1; None stands for a dropped one."""
    return [Attribute(number, name, INT if name else 0, -1) for number, name in enumerate(names, 1)]


def numbers(was, columns, now) -> list[int]:
    found = align(was, columns, now)
    assert found is not None
    return [match.attnum for match in found.matches]


@pytest.mark.parametrize(
    ("was", "columns", "now", "expected"),
    [
        # the catalog is as of the message
        ("id a", "id a", "id a", [1, 2]),
        ("id a", "id b", "id b", [1, 2]),
        ("id a", "id a b", "id a b", [1, 2, 3]),
        ("id a", "id b", "id - b", [1, 3]),
        ("id a b", "id b a", "id b a", [1, 2, 3]),
        ("id a", "id b a", "id b a", [1, 2, 3]),
        ("id a b", "id a", "id - a", [1, 3]),
        # and ahead of it
        ("id a", "id a", "id b", [1, 2]),
        ("id a", "id b", "id c", [1, 2]),
        ("id", "id b", "id c", [1, 2]),
        ("id a b", "id a b", "id b a", [1, 2, 3]),
        ("id a b", "id x b", "id - b", [1, 2, 3]),
        ("id", "id a b", "id - b", [1, 2, 3]),
        ("id", "id a b", "id a - b", [1, 2, 4]),
        ("id a", "id b", "id -", [1, 2]),
        ("id a", "id b", "id - -", [1, 2]),
        ("id a", "id a b", "id a -", [1, 2, 3]),
        ("id a", "id b", "", [1, 2]),
        # a column that was there and exists is not missing, whoever has the name by now
        ("id a", "id c", "id b c", [1, 2]),
        ("id v", "id v a", "id v c a", [1, 2, 3]),
        ("id b [c] a", "id c", "id - - b", [1, 4]),
        # but for one that a column list leaves out
        ("id a b", "id c", "id a~ b~ c", [1, 4]),
        ("id a b", "id b c", "id a~ b c", [1, 3, 4]),
        ("id a b c", "id c", "id a~ b~ d", [1, 4]),
        # a column that is not published, and comes to be
        ("id {a} b", "id b", "id a b", [1, 3]),
        ("id {a} b", "id a b", "id a b", [1, 2, 3]),
        # one that was away: between others it is the same
        ("id [a] b", "id a b", "id a b", [1, 2, 3]),
    ],
)
def test_numbers(was, columns, now, expected):
    current = [
        replace(attribute, unlisted="~" in name)
        for attribute, name in zip(
            catalog(*(None if name == "-" else name.strip("~") for name in now.split())), now.split(), strict=True
        )
    ]
    assert numbers(known(*was.split()), message(*columns.split()), current) == expected


def test_what_a_column_list_that_is_gone_may_have_left_out_is_doubtful():
    """The catalog tells of no list, and the order of columns of another assignment."""
    same = align(known("id", "a"), message("id", "c"), catalog("id", "b", "c"))
    assert same is not None
    assert [(match.attnum, match.doubtful) for match in same.matches] == [(1, False), (2, True)]


def test_a_column_that_was_dropped_and_added_again_is_another_one_once_the_catalog_says_so():
    now = catalog("id", None, "c")
    same = align(known("id", "c"), message("id", "c"), now)
    assert same is not None
    assert [match.attnum for match in same.matches] == [1, 3]
    assert same.matches[1].doubtful
    assert [row.attnum for row in same.absent] == [2]
    # with another type there is no doubt, neither before nor after
    now[2] = replace(now[2], type_oid=TEXT)
    assert numbers(known("id", "c"), message("id", "c"), now) == [1, 2]
    after = align(known("id", "c"), [*message("id"), *message("c", type_oid=TEXT)], now)
    assert after is not None
    assert [(match.attnum, match.doubtful) for match in after.matches] == [(1, False), (3, False)]


def test_a_column_that_comes_goes_and_comes_again_before_the_catalog_is_read():
    now = catalog("id", None, "c")
    first = align(known("id"), message("id", "c"), now)
    assert first is not None
    assert [match.attnum for match in first.matches] == [1, 3]
    was = [*known("id"), ColumnRow(3, "c", INT, -1)]
    second = align(was, message("id"), now)
    assert second is not None
    assert second.absent == (ColumnRow(2, "c", INT, -1),), "it was the one that is dropped"
    assert numbers([*known("id"), *second.absent], message("id", "c"), now) == [1, 3]


def test_a_number_that_may_be_anothers_is_not_missed_for_certain():
    """The column had the number below it, which is dropped by now: no other column has taken its place."""
    now = catalog("id", None, None, "c", "more")
    was = [*known("id", "old"), ColumnRow(4, "c", INT, -1)]
    assert numbers(was, message("id", "old"), now) == [1, 2]


def test_a_new_column_with_the_name_that_another_leaves_is_beyond_doubt():
    found = align(known("id", "a"), message("id", "b", "a"), catalog("id", "b", "a"))
    assert found is not None
    assert [(match.attnum, match.doubtful) for match in found.matches] == [(1, False), (2, False), (3, False)]


def test_columns_whose_numbers_are_others():
    """They stay known, each under its own number."""
    was = [*known("id", "a", "b"), ColumnRow(-3, "c", INT, -1, "gone")]
    found = align(was, message("id"), catalog("id", "x", "y"))
    assert found is not None
    assert [(row.attnum, row.name) for row in found.absent] == [(-4, "a"), (-5, "b"), (-3, "c")]


def test_another_tables_columns_have_no_numbers():
    assert align([ColumnRow(1, "a", INT, -1), ColumnRow(2, "b", INT, -1)], message("b", "a"), ()) is not None
    assert align((), (), ()) is not None


@dataclass
class Server:
    """A table that is altered at random."""

    rng: random.Random
    columns: list[Attribute] = field(default_factory=lambda: catalog("id"))
    names: int = 0

    def alive(self) -> list[Attribute]:
        return [column for column in self.columns if column.name is not None]

    def alter(self) -> None:
        """One ALTER TABLE."""
        others = self.alive()[1:]
        action = self.rng.choice(["add", "add", "drop", "rename", "type", "again"])
        if action == "add" or not others:
            self.add(self.rng.choice("abcdef"))
            return
        column = self.rng.choice(others)
        place = self.columns.index(column)
        if action == "rename":
            name = self.rng.choice("abcdef")
            if all(other.name != name for other in self.alive()):
                self.columns[place] = replace(column, name=name)
        elif action == "type":
            self.columns[place] = replace(column, type_oid=self.rng.choice([INT, TEXT, 20]))
        else:
            self.columns[place] = replace(column, name=None, type_oid=0)
            if action == "again" and column.name is not None:
                self.add(column.name, column.type_oid)

    def add(self, name: str, type_oid: int = INT) -> None:
        if all(column.name != name for column in self.alive()):
            self.columns.append(Attribute(len(self.columns) + 1, name, type_oid, -1))

    def message(self) -> list[Column]:
        return [Column(str(c.name), c.type_oid, -1, is_key=False) for c in self.alive()]


def test_whatever_is_done_between_two_messages_is_understood():
    """If the catalog is read together with the message, the numbers are the server's."""
    for seed in range(300):
        server = Server(random.Random(seed))
        was = [ColumnRow(c.attnum, str(c.name), c.type_oid, -1) for c in server.alive()]
        for _ in range(8):
            for _ in range(server.rng.randrange(4)):
                server.alter()
            found = align(was, server.message(), server.columns)
            assert found is not None
            assert [match.attnum for match in found.matches] == [column.attnum for column in server.alive()], seed
            gone = [replace(row, state="gone") for row in found.absent]
            live = [ColumnRow(c.attnum, str(c.name), c.type_oid, -1) for c in server.alive()]
            was = sorted([*gone, *live], key=lambda row: row.attnum)
            assert {row.attnum for row in was} <= {column.attnum for column in server.columns}


@pytest.mark.parametrize(
    ("was", "columns", "now", "expected", "doubtful"),
    [
        # a column that is settled was there, and one that was dropped was not
        ("id c", "id c", "id! -! c!", [1, 3], False),
        ("id", "id c", "id! -! c", [1, 3], False),
        ("id [c]", "id c", "id! c!", [1, 2], False),
        ("id [c]", "id c", "id! -! c!", [1, 3], False),
        ("id a", "id b", "id! a! b", [1, 3], False),
        # nothing tells when the other was dropped
        ("id c", "id c", "id! - c", [1, 3], True),
        ("id c", "id c", "id! -! c", [1, 3], False),
        ("id", "id c", "id! - c", [1, 3], True),
        ("id [c]", "id c", "id! c", [1, 2], False),
        ("id c", "id c", "id! -", [1, 2], False),
        # the order of columns does
        ("id d", "id d c", "id! d - c", [1, 2, 4], True),
        ("id c d", "id c d", "id! - d! c", [1, 2, 3], False),
    ],
)
def test_a_settled_column_is_as_it_was(was, columns, now, expected, doubtful):
    """In `now`, settled columns have an exclamation mark."""
    names = [(item.rstrip("!"), item.endswith("!")) for item in now.split()]
    current = [
        Attribute(number, None if name == "-" else name, 0 if name == "-" else INT, -1, settled=settled)
        for number, (name, settled) in enumerate(names, 1)
    ]
    found = align(known(*was.split()), message(*columns.split()), current)
    assert found is not None
    assert [match.attnum for match in found.matches] == expected
    assert any(match.doubtful for match in found.matches) == doubtful


@pytest.mark.parametrize(
    ("now", "doubtful"),
    [
        ([*catalog("id", "c", "new")], True),
        ([*catalog("id", None, "new")], True),
        ([*catalog("id"), Attribute(2, "c", INT, -1, generated="s"), Attribute(3, "new", INT, -1)], False),
    ],
)
def test_a_column_that_appears_under_a_list_may_be_an_old_one(now, doubtful):
    """The list was altered, or it could not appear. Without a list only a generated column is left out."""
    found = align(known("id", "{c}"), message("id", "new"), now)
    assert found is not None
    assert [match.doubtful for match in found.matches] == [False, doubtful]


def test_a_roots_columns_in_a_partition():
    """Under its numbers, by the names of now. What one of both lacks by now says nothing; what was gone still is."""
    known = [ColumnRow(1, "id", 23, -1), ColumnRow(2, "b", 25, -1), ColumnRow(3, "x", 23, -1)]
    known.append(ColumnRow(4, "was", 23, -1, "gone"))
    root = [Attribute(1, "id", 23, -1), Attribute(2, "c", 25, -1), Attribute(3, None, 0, -1), Attribute(4, None, 0, -1)]
    own = [Attribute(1, "c", 25, -1), Attribute(2, "id", 23, -1)]
    assert of_partition(known, root, own) == (
        ColumnRow(2, "id", 23, -1), ColumnRow(1, "b", 25, -1), ColumnRow(-1, "was", 23, -1, "gone")
    )  # fmt: skip
    assert of_partition(known, [], own) == of_partition(known, root, []) == ()
