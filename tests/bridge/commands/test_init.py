"""The configuration file that `pgbridge init` writes works, whatever its values; a file is never overwritten."""

from __future__ import annotations

import os

import pytest

from pgbridge.bridge.config import config


def init(
    *publications: str, connection: str = "host=db dbname=shop", warehouse: str = "./lake", **more: str
) -> list[str]:
    """The command's arguments."""
    named = [part for name in publications for part in ("--publication", name)]
    options = [part for key, value in more.items() for part in (f"--{key}", value)]
    return ["init", "--connection", connection, *named, "--warehouse", warehouse, *options]


def test_init_writes_a_configuration_that_works(pgbridge, tmp_path):
    code, out, err = pgbridge(*init("shop_pub"))
    assert (code, err) == (0, "")
    assert out == "wrote pgbridge.toml; start with: pgbridge run\n"
    settings = config.load(tmp_path / "pgbridge.toml")
    (shop,) = settings.subscription.values()
    assert settings.state_dir == tmp_path / "state"
    assert (shop.name, shop.slot_name) == ("shop_pub", "shop_pub")
    assert (shop.connection, shop.publications) == ("host=db dbname=shop", ("shop_pub",))
    assert shop.warehouse == str(tmp_path / "lake")


def test_init_comments_are_true(pgbridge, tmp_path):
    """What stands behind `#` as a default is the default: with all of it uncommented, nothing changes."""
    pgbridge(*init("Shop-Pub", name="Shop-1"))
    path = tmp_path / "pgbridge.toml"
    lines = path.read_text().splitlines()
    uncommented = [line.removeprefix("# ") if " = " in line else line for line in lines]
    assert sum(line.startswith("# ") and " = " in line for line in lines) >= 4
    (tmp_path / "all.toml").write_text("\n".join(uncommented))
    assert config.load(tmp_path / "all.toml") == config.load(path)
    assert len(lines) < 27


@pytest.mark.parametrize("name", ["orders", 'Büro "x", y', "back\\slash", "it's", "a.b", "ключ", "tab\there", "[x]"])
def test_init_with_any_publication_name(pgbridge, tmp_path, name):
    """It arrives as it is; the subscription gets a name that is allowed."""
    code, _, err = pgbridge(*init(name, "second"))
    assert (code, err) == (0, "")
    (made,) = config.load(tmp_path / "pgbridge.toml").subscription.values()
    assert made.publications == (name, "second")
    assert made.name == config.default_slot_name(name)


@pytest.mark.parametrize("name", ["shop", "Shop-1", "shop.eu", "9"])
def test_init_with_a_name(pgbridge, tmp_path, name):
    """A dot stands in quotes: without them TOML would make two tables of it."""
    assert pgbridge(*init("p", name=name)).code == 0
    assert list(config.load(tmp_path / "pgbridge.toml").subscription) == [name]


def test_init_with_a_connection_that_needs_quoting(pgbridge, tmp_path):
    connection = r"""host=db password='it\'s "\\ x' options='-c a=b'"""
    assert pgbridge(*init("p", connection=connection)).code == 0
    (made,) = config.load(tmp_path / "pgbridge.toml").subscription.values()
    assert made.connection == connection


@pytest.mark.parametrize(
    ("connection", "mode"),
    [("host=db user=me", 0o644), ("host=db password=x", 0o600), ("postgresql://me:x@db/d", 0o600)],
)
def test_init_with_a_password_writes_a_private_file(pgbridge, tmp_path, connection, mode):
    umask = os.umask(0o022)
    try:
        assert pgbridge(*init("p", connection=connection)).code == 0
    finally:
        os.umask(umask)
    assert (tmp_path / "pgbridge.toml").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (init("p", name="a b"), "subscription.a b: a subscription's name has letters, digits and _"),
        (init("p", "p"), 'publication name "p" used more than once'),
        (init("p", warehouse=""), "subscription.p.warehouse: must be a folder or a URI"),
        (init("x" * 64), f"subscription.{'x' * 64}.slot_name: "),
    ],
)
def test_init_leaves_no_file_that_does_not_work(pgbridge, tmp_path, arguments, text):
    code, out, err = pgbridge(*arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert list(tmp_path.iterdir()) == []


def test_init_overwrites_nothing(pgbridge, tmp_path):
    (tmp_path / "mine.toml").write_text("precious")
    code, _, err = pgbridge(*init("p", config="mine.toml"))
    assert code == 2
    assert err == "pgbridge: mine.toml already exists\nHINT:  remove it, or choose another file with --config\n"
    assert (tmp_path / "mine.toml").read_text() == "precious"


def test_init_in_a_folder_that_is_not_there(pgbridge):
    code, _, err = pgbridge(*init("p", config="no/where.toml"))
    assert code == 2
    assert err.startswith("pgbridge: configuration file no/where.toml cannot be written: ")
