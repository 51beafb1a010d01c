"""The file is read again when that is asked for, once for each time; an error changes nothing."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.notes import Outcome, ask, take_answer
from pgbridge.bridge.config.config import load
from pgbridge.bridge.runtime.errors import ConfigError, StateError
from pgbridge.bridge.service.reload import Reload
from pgbridge.protocol.lsn import Lsn
from tests.fix_cli import TWO

if TYPE_CHECKING:
    from pathlib import Path

FILTER = "CREATE PUBLICATION shop_pub FOR TABLE t WHERE (id > {});"


class Reloaded:
    """A configuration file, its catalog, and what reads it again."""

    def __init__(self, folder: Path, catalog: Catalog) -> None:
        self.file = folder / "pgbridge.toml"
        self.file.write_text(TWO)
        self.catalog = catalog
        self.hangups = self.reads = 0
        self.config = load(self.file)
        for name in self.config.subscription:
            catalog.register(name, enabled=True)
        self.reload = Reload(self.read, lambda: self.hangups, self.config)

    def read(self):
        self.reads += 1
        return load(self.file)

    def take_up(self):
        if not self.reload.asked(self.catalog):
            return None
        planned = self.reload.take_up(self.config, self.catalog)
        if planned is not None:
            self.config = planned.config
        return planned

    def answer(self, number: int) -> Outcome:
        outcome = take_answer(self.catalog, number)
        assert outcome is not None
        return outcome


@pytest.fixture
def reloaded(tmp_path):
    with closing(Catalog(catalog_path(tmp_path / "state"))) as catalog:
        yield Reloaded(tmp_path, catalog)


def test_once_for_each_request(reloaded):
    assert reloaded.take_up() is None
    reloaded.file.write_text(TWO.replace('warehouse = "./hr"', 'warehouse = "./hr"\nenabled = false'))
    assert reloaded.take_up() is None, "nobody has asked"
    assert reloaded.reads == 0
    reloaded.hangups += 2
    assert reloaded.take_up().applied == ('subscription "hr" changed: enabled',)
    assert not reloaded.catalog.subscription("hr").enabled
    assert reloaded.take_up() is None
    number = ask(reloaded.catalog)
    assert reloaded.take_up().applied == ()
    assert reloaded.answer(number) == Outcome(0, ("nothing has changed",))
    assert reloaded.reads == 2


def test_enabled_of_the_command_line_stays(reloaded):
    """As at a start: only a change of the file's value counts."""
    reloaded.catalog.set_enabled("shop", enabled=False)
    reloaded.hangups += 1
    reloaded.file.write_text(TWO + "batch.max_rows = 5\n")
    assert reloaded.take_up().applied == ('subscription "hr" changed: batch.max_rows',)
    assert not reloaded.catalog.subscription("shop").enabled


def test_an_invalid_file_changes_nothing(reloaded, capsys):
    reloaded.file.write_text(TWO.replace("publications", "publication").replace("./hr", ""))
    number = ask(reloaded.catalog)
    assert reloaded.take_up() is None
    outcome = reloaded.answer(number)
    assert outcome.code == 2
    assert len(outcome.lines) == 5
    assert f"{reloaded.file}: subscription.hr.warehouse: must be a folder or a URI, not empty" in outcome.lines
    reloaded.hangups += 1
    assert reloaded.take_up() is None
    assert capsys.readouterr().out.count("the configuration file cannot be used") == 2
    assert reloaded.take_up() is None
    assert reloaded.reads == 2
    assert reloaded.config.subscription.keys() == {"shop", "hr"}


def test_what_has_begun_keeps_its_tables(reloaded):
    """`begun` is what the catalog says; another subscription may move."""
    reloaded.catalog.create_origin("shop", Lsn(0x100), "abc", [])
    reloaded.file.write_text(TWO.replace("./lake", "./elsewhere").replace("./hr", "./elsewhere"))
    number = ask(reloaded.catalog)
    planned = reloaded.take_up()
    assert planned.applied == ('subscription "hr" changed: warehouse',)
    assert planned.refused.keys() == {"subscription.shop.warehouse"}
    assert reloaded.answer(number).code == 1


def test_definitions_that_are_rewritten(tmp_path, reloaded):
    """Once for each content: the file's name in the configuration stays the same."""
    sql = tmp_path / "shop.sql"
    sql.write_text(FILTER.format(1))
    reloaded.file.write_text(TWO.replace('"./lake"', '"./lake"\npublication_definitions = "shop.sql"'))
    reloaded.hangups += 1
    assert reloaded.take_up().applied == ('subscription "shop" changed: publication_definitions',)
    sql.write_text(FILTER.format(2))
    reloaded.hangups += 1
    assert reloaded.take_up().applied == ('subscription "shop" changed: publication_definitions',)
    reloaded.hangups += 1
    assert reloaded.take_up().applied == ()


def test_a_catalog_that_cannot_be_written_keeps_the_request(reloaded, monkeypatch):
    reloaded.hangups += 1
    reloaded.file.write_text(TWO + "batch.max_rows = 5\n")
    with monkeypatch.context() as full:
        full.setattr(reloaded.catalog, "register", lambda *_, **__: (_ for _ in ()).throw(StateError("disk full")))
        with pytest.raises(StateError):
            reloaded.take_up()
    assert reloaded.take_up().applied == ('subscription "hr" changed: batch.max_rows',)


def test_a_run_that_ends_by_itself_does_not_read_again(reloaded, capsys):
    once = Reload(None, lambda: 1, reloaded.config)
    number = ask(reloaded.catalog)
    assert once.take_up(reloaded.config, reloaded.catalog) is None
    outcome = reloaded.answer(number)
    assert outcome.code == 1
    assert "--until-caught-up" in outcome.lines[0]
    assert not once.asked(reloaded.catalog)
    assert capsys.readouterr().out.count("--until-caught-up") == 1


def test_a_file_that_has_vanished(reloaded):
    reloaded.file.unlink()
    with pytest.raises(ConfigError):
        reloaded.read()
    reloaded.hangups += 1
    assert reloaded.take_up() is None
