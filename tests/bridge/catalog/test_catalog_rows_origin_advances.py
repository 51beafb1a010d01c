"""Many origins move in few transactions; an error is one caller's only."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from bridge.catalog import catalog_rows
from bridge.catalog.catalog import Catalog
from bridge.catalog.catalog_rows import OriginAdvances
from bridge.runtime.errors import StateError
from protocol.lsn import Lsn

NAMES = [f"s{number}" for number in range(40)]


@pytest.fixture
def catalog(tmp_path):
    with closing(Catalog(tmp_path / "catalog.sqlite")) as opened:
        for name in NAMES:
            opened.register(name, enabled=True)
            opened.create_origin(name, Lsn(0x100), "an incarnation", [])
        yield opened


class Gate:
    """The catalog's transactions, which are counted; the first waits until all others have come, and may fail."""

    def __init__(self, catalog: Catalog, *, first_fails: bool = False) -> None:
        self._catalog, self._first_fails = catalog, first_fails
        self.open = threading.Event()
        self.begun = threading.Event()
        self.transactions = 0

    @contextmanager
    def transaction(self):
        """One of them."""
        self.transactions += 1
        if self.transactions == 1:
            self.begun.set()
            assert self.open.wait(30)
            if self._first_fails:
                raise StateError("database or disk is full", retry=True)
        with self._catalog.transaction() as db:
            yield db


def advance_all(gate: Gate, advances: OriginAdvances, pool: ThreadPoolExecutor):
    """Have the first subscription write, and the others wait for it; return what became of each."""
    futures = [pool.submit(advances.advance, NAMES[0], Lsn(0x200))]
    assert gate.begun.wait(30)
    futures += [pool.submit(advances.advance, name, Lsn(0x200)) for name in NAMES[1:]]
    while len(advances._waiting) < len(NAMES) - 1:
        assert not futures[0].done()
    gate.open.set()
    return futures


def test_those_that_wait_share_a_transaction(catalog):
    gate = Gate(catalog)
    advances = OriginAdvances(gate.transaction, lambda *_: None)
    with ThreadPoolExecutor(len(NAMES)) as pool:
        assert all(one.result(30) for one in advance_all(gate, advances, pool))
    assert gate.transactions == 2
    assert {catalog.remote_lsn(name) for name in NAMES} == {0x200}


def test_an_error_is_raised_once_and_the_others_are_written(catalog):
    gate = Gate(catalog, first_fails=True)
    advances = OriginAdvances(gate.transaction, lambda *_: None)
    with ThreadPoolExecutor(len(NAMES)) as pool:
        first, *others = advance_all(gate, advances, pool)
        with pytest.raises(StateError, match="disk is full"):
            first.result(30)
        assert all(one.result(30) for one in others)
    assert catalog.remote_lsn(NAMES[0]) == 0x100
    assert {catalog.remote_lsn(name) for name in NAMES[1:]} == {0x200}


def test_a_group_that_fails_fails_for_its_writer_alone(catalog, monkeypatch):
    """The others of the group are in the next one."""
    gate = Gate(catalog)
    failures = 0

    def ready_rels(db, name):
        nonlocal failures
        if gate.transactions == 2 and name == NAMES[-1]:
            failures += 1
            raise StateError("database or disk is full", retry=True)

    monkeypatch.setattr(catalog_rows, "COMMIT_DELAY_S", 0.0)
    advances = OriginAdvances(gate.transaction, ready_rels)
    with ThreadPoolExecutor(len(NAMES)) as pool:
        futures = advance_all(gate, advances, pool)
        errors = [one.exception(30) for one in futures]
    failed = [name for name, error in zip(NAMES, errors, strict=True) if error is not None]
    assert (failures, len(failed)) == (1, 1)
    assert {catalog.remote_lsn(name) for name in NAMES if name not in failed} == {0x200}
    assert catalog.remote_lsn(failed[0]) == 0x100


def test_each_is_told_of_its_own_origin(catalog):
    assert catalog.advance_origin("s1", Lsn(0x200))
    assert not catalog.advance_origin("s1", Lsn(0x180))
    assert not catalog.advance_origin("unknown", Lsn(0x200))


def test_one_alone_does_not_wait_for_others(catalog, monkeypatch):
    monkeypatch.setattr(catalog_rows, "COMMIT_DELAY_S", 60.0)
    for lsn in (0x200, 0x300):
        assert catalog.advance_origin("s1", Lsn(lsn))
