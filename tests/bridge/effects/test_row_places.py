"""Places of rows follow the commits, in any order of keys, files and lengths of texts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgbridge.bridge.effects.row_places import RowPlaces, as_keys, can_be_key


def keys_of(values) -> Any:
    return as_keys(pa.chunked_array([pa.array(values)]))


def places_of(*parts) -> Any:
    return RowPlaces.of(parts)


def part(file, rows):
    """A file whose rows have these keys, by their index."""
    return file, keys_of(list(rows.values())), np.array(list(rows), np.int64)


@pytest.mark.parametrize("made", [int, lambda number: f"{'é' * (number % 9)}{number}"], ids=["integers", "texts"])
@pytest.mark.parametrize("seed", range(10))
def test_random_commits(seed, made):
    chosen = random.Random(seed)
    files = {f"f{n}": {i: made(100 * n + i) for i in chosen.sample(range(50), 20)} for n in range(3)}
    places = places_of(*(part(file, rows) for file, rows in files.items()))
    for commit in range(20):
        there = {key: (file, index) for file, rows in files.items() for index, key in rows.items()}
        asked = sorted(
            {*chosen.sample(list(there), min(len(there), 7)), *(made(chosen.randrange(900)) for _ in range(5))}
        )
        keys = keys_of(asked)
        assert places.holds(keys).tolist() == [key in there for key in asked]
        gone = [key for key in asked if key in there]
        indexes = places.indexes_of(keys[places.holds(keys)])
        wanted = dict[str, list[int]]()
        for key in gone:
            file, index = there[key]
            wanted.setdefault(file, []).append(index)
            del files[file][index]
        assert {places.files[n]: found.tolist() for n, found in indexes.items()} == {
            f: sorted(w) for f, w in wanted.items()
        }
        became = {n: f"{places.files[n]}+" if files[places.files[n]] else None for n in indexes}
        for n, now in became.items():
            rows = files.pop(places.files[n])
            if now is not None:
                files[now] = rows
        new = dict(enumerate(chosen.sample(asked, 6)))
        new = {index: key for index, key in new.items() if key in gone or key not in there}
        added = [part(f"c{commit}", new)] if new else []
        if new:
            files[f"c{commit}"] = new
        places = places.after(keys_of(gone) if gone else keys[:0], became, added)
        assert sorted(places.files.values()) == sorted(files)


def test_a_table_without_rows_has_no_places():
    places = places_of()
    for keys in (keys_of([1, 2]), keys_of(["a"])):
        assert not places.holds(keys).any()
        assert places.indexes_of(keys[:0]) == {}
        after = places.after(keys[:0], {}, [("f", keys, np.arange(len(keys)))])
        assert after.holds(keys).all()


def test_a_key_that_is_there_twice_has_no_place():
    assert places_of(part("a", {0: 1, 1: 2}), part("b", {5: 2})) is None


def test_what_can_be_a_key():
    assert can_be_key(pa.int16())
    assert not can_be_key(pa.date32())
    assert as_keys(pa.chunked_array([pa.array([1, None])])) is None
    assert as_keys(pa.chunked_array([pa.array(["a" * 65])])) is None
    assert as_keys(pa.chunked_array([pa.array(["a", "b\0"])])) is None
    assert as_keys(pa.chunked_array([pa.array(["é" * 32, ""])])) is not None
    assert keys_of(pa.array([-3], pa.int16())).tolist() == [-3]
    sliced: Any = as_keys(pa.chunked_array([pa.array(["zz", "a", "bcd"]).slice(1), pa.array(["e"])]))
    assert sliced.tolist() == [b"a", b"bcd", b"e"]
