"""Changes rows of a table with deletion vectors by their places, which are kept from commit to commit.

A MERGE looks for the rows that it changes, and so reads the keys of each file that may have them. Whoever knows where
each row is marks them as deleted, appends what they became, and reads nothing. What is known is that of the version
which the commit replaces: after a commit of another writer the keys are read again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from pgbridge.bridge.effects.events import BEGINS
from pgbridge.bridge.effects.row_places import RowPlaces, as_keys, can_be_key
from pgbridge.bridge.lake.commit.plan import Outcome
from pgbridge.bridge.lake.log.local_files import columns_of
from pgbridge.bridge.lake.schema import stored_column
from pgbridge.bridge.lake.source import arrow_source
from pgbridge.bridge.lake.transaction import MergeCounts, Transaction, transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgbridge.bridge.effects.kept import Kept
    from pgbridge.bridge.effects.net_effect import NetEffect
    from pgbridge.bridge.effects.row_places import Ints, Keys
    from pgbridge.bridge.lake.commit.conflicts import KeyedTarget

MOST_BYTES: Final = 32 << 20
"""Of one table's places: two million rows with a bigint key, or 700 000 with a UUID."""

_MOST_FILES: Final = 1_000
"""Of a table whose keys are read: to open a file takes a millisecond, and OPTIMIZE leaves fewer."""


def replace_at(session: SparkSession, effect: NetEffect, keyed: KeyedTarget, kept: Kept[RowPlaces]) -> Outcome:
    """Change the rows that effects are on, unless a row is in the way of one that begins."""
    (key,) = keyed.key
    keys = as_keys(effect.table[f"match_{key}"])
    with transaction(session, keyed.path) as begun:
        if keys is None or begun.read_version < 0 or not begun.facts.vectors:
            return Outcome("refused")
        before, places = begun.read, _known(begun, keyed.key_names[0], kept)
        if places is None or not places.are_of(keys):
            return Outcome("refused")
        there, ended = places.holds(keys), effect.table["ended"].to_numpy()
        begins = np.isin(effect.table["first"].to_numpy(), BEGINS)
        if (there & begins).any():
            return Outcome("refused")
        put = ~ended & (there | begins)  # a row that is missing is only counted
        touched = places.indexes_of(keys[there])
        values = effect.table.filter(pa.array(put)).select(keyed.columns_of(effect))
        with arrow_source(session, values) as source:
            rows = source.select(*map(stored_column, keyed.values_of(effect), keyed.columns)).coalesce(1)
            if not begun.takes(rows):
                return Outcome("refused")  # a MERGE keeps the values of other columns
            counts = MergeCounts(
                *(int(np.count_nonzero(those)) for those in (there & put, there & ended, put & begins))
            )
            made = begun.replace_at({places.files[n]: indexes for n, indexes in touched.items()}, rows, counts)
        if made is None:
            return Outcome("left out")
        if made.version.follows(before):
            parts = [_read(begun, file, keyed.key_names[0]) for file in made.added]
            if None not in parts:
                files = {n: made.files[places.files[n]] for n in touched}
                after = places.after(keys[there], files, [part for part in parts if part is not None])
                kept.put(made.version.by(keyed.key_names[0]), after, after.nbytes)
    return Outcome("made", None if (there | begins).all() else before.version)


def _known(begun: Transaction, column: str, kept: Kept[RowPlaces]) -> RowPlaces | None:
    """The places of the version's rows by a column, kept or read now; None if they are not to be had."""
    version = begun.read.by(column)
    if version.entry is None or version.table_id in kept.too_many:
        return None
    places = kept.get(version)
    if places is None and begun.facts.files > _MOST_FILES:
        return None
    places = places or _places(begun, column)
    if places is None or places.nbytes > MOST_BYTES:
        kept.too_many.add(version.table_id)
        return None
    kept.put(version, places, places.nbytes)
    return places


def _places(begun: Transaction, column: str) -> RowPlaces | None:
    """Read where the table's rows are; None if that is not known, or is too much to be kept."""
    files, rows = begun.files, 0
    for file in files:
        stats = json.loads(json.loads(file)["add"].get("stats") or "{}")
        rows += stats.get("numRecords", MOST_BYTES)
    if rows * RowPlaces.LEAST_ROW_BYTES > MOST_BYTES:
        return None
    parts = [_read(begun, file, column) for file in files]
    return None if None in parts else RowPlaces.of([part for part in parts if part is not None])


def _read(begun: Transaction, file: str, column: str) -> tuple[str, Keys, Ints] | None:
    """A data file, the keys of its rows, and their indexes; None if the keys cannot be read here."""
    action = json.loads(file)["add"]
    stats, name = json.loads(action.get("stats") or "{}"), begun.name_in_files(column)
    vector = action.get("deletionVector")
    if vector is not None and stats.get("tightBounds", True):
        return None  # of the rows that are left: whoever deletes more has to compute some anew
    values = columns_of(begun.folder, action, [name])
    if values is None or not can_be_key(values[name].type):
        return None
    keys, indexes = as_keys(values[name]), np.arange(len(values))
    if keys is not None and vector is not None:
        deleted = begun.deletion_vectors.deleted(file)
        keys, indexes = np.delete(keys, deleted), np.delete(indexes, deleted)
    return None if keys is None else (file, keys, indexes)
