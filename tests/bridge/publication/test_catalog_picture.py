"""Pictures of tables, from a made answer of the server; `tests/bridge/sync/test_catalog_look.py` has a server's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pgbridge.bridge.publication.catalog_picture import TypeInUse, from_json, parse, to_json

LEAF = {"identity": "d", "nullable": [], "types": [], "partitions": [], "ancestors": [1]}
DOCUMENT = {
    "publications": {"p": [90, "iu", False], "q": [91, "d", False]},
    "published": [[2, "p", None, None, "filter"], [2, "q", ["97", "96/7"], "list", None], [4, "p", ["98"], None, None]],
    "tables": {
        "1": {
            **LEAF,
            "name": ["public", "root"],
            "ancestors": [],
            "nullable": ["id"],
            "types": [20000],
            "partitions": [
                [2, "public.two", 1, True, False, False],
                [3, "public.three", 1, False, True, True],
                [5, "public.five", 3, True, False, False],
            ],
        },
        "2": {**LEAF, "name": ["public", "two"]},
        "4": {**LEAF, "name": ["public", "four"], "ancestors": []},
    },
    "types": {
        "20000": ["public.pairs", "d", None, [20001]],
        "20001": ["public.pair", "c", [[1, "a"], [2, "again"]], [20002]],
        "20002": ["public.mood", "e", [[7, "ok"]], None],
        "20003": ["public.unused", "e", [[8, "no"]], None],
    },
}


@pytest.fixture
def picture():
    return parse(json.dumps(DOCUMENT))


def test_a_root_that_comes_as_its_partitions(picture):
    root = picture.table(1)
    assert root.unsent == ("public.five",)
    assert root.members == {2: frozenset({"90", "97", "96/7"})}
    assert root.rules == {("p", 2, "", "filter"), ("q", 2, "list", "")}
    assert root.actions == "iud"
    assert root.types == {
        20001: TypeInUse("public.pair", "c", {1: "a", 2: "again"}),
        20002: TypeInUse("public.mood", "e", {7: "ok"}),
    }
    assert picture.published_below(root)
    assert not picture.published_above(2)
    assert picture.table(6) is None


def test_a_published_root_stands_for_its_partitions():
    document = {**DOCUMENT, "published": [*DOCUMENT["published"], [1, "p", None, None, None]]}
    picture = parse(json.dumps(document))
    assert picture.targets == {("public", "root"): 1, ("public", "four"): 4}
    pictures = [picture.table(relid) for relid in (1, 2)]
    assert [one and one.unsent for one in pictures] == [(), ()]
    assert picture.published_above(2)


def test_it_is_kept_as_text(picture):
    root = picture.table(1)
    assert from_json(to_json(root)) == replace(root, unsent=())


def test_members_that_were_kept_as_numbers(picture):
    kept = json.loads(to_json(picture.table(4)))
    assert from_json(json.dumps({**kept, "members": {"4": [98]}})) == picture.table(4)


def test_nothing_is_published():
    empty = parse('{"publications": null, "published": null, "tables": null, "types": null}')
    assert (empty.targets, empty.publications) == ({}, {})
