"""The commands, called as from a shell: what they print, where, with which exit code, and what is then the case."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import typer

from bridge import __version__, cli, config
from bridge.signals import StopSignals
from bridge.track import refresh
from bridge.track.catalog import Catalog, catalog_path
from bridge.track.lock import locked
from bridge.track.rows import RelRow
from bridge.track.schema import SCHEMA_VERSION
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.track.refresh import RefreshRow

GROUP: Any = typer.main.get_command(cli.app)
COMMANDS: dict[str, Any] = GROUP.commands

TWO = """
[subscription.shop]
connection = "host=/nonexistent"
publications = ["shop_pub"]
warehouse = "./lake"
[subscription.hr]
connection = "host=/nonexistent"
publications = ["hr_pub"]
warehouse = "./hr"
"""


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def pgbridge(monkeypatch, capsys, tmp_path) -> Callable[..., Outcome]:
    """Runs a command in the test's folder, through the console script's function."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["pgbridge", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def two(pgbridge, tmp_path):
    """The same with a configuration of two subscriptions."""
    (tmp_path / "pgbridge.toml").write_text(TWO)
    return pgbridge


def catalog_of(folder: Path) -> closing[Catalog]:
    return closing(Catalog(catalog_path(folder / "state")))


# --- help and version -------------------------------------------------------------------------------------------------


def test_version(pgbridge):
    assert pgbridge("--version") == (0, f"pgbridge {__version__}\n", "")


def test_commands_of_the_contract():
    """Those that this version has; a new one is added to this list with its tests."""
    assert set(COMMANDS) == {
        "init",
        "run",
        "status",
        "publications",
        "enable",
        "disable",
        "skip",
        "refresh",
        "origin",
        "demo",
    }


def test_help_names_every_command(pgbridge):
    code, out, _ = pgbridge("--help")
    assert code == 0
    assert all(f" {name} " in out for name in COMMANDS)


def test_no_command_is_a_question_for_help(pgbridge):
    code, out, err = pgbridge()
    assert code == 2
    assert "Usage:" in out + err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_every_command(pgbridge, name):
    """With a sentence for the command and for each of its options."""
    code, out, _ = pgbridge(name, "--help")
    assert code == 0
    assert " ".join(str(COMMANDS[name].help).split()) in " ".join(out.split())
    for parameter in COMMANDS[name].params:
        assert getattr(parameter, "help", None), f"{parameter.name} has no help"
        if parameter.param_type_name == "option":
            assert parameter.opts[0] in out


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"demo"}))
def test_every_command_takes_config(name):
    (option,) = [parameter for parameter in COMMANDS[name].params if "--config" in parameter.opts]
    assert option.default == Path("pgbridge.toml")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["status", "--jsno"], "No such option: --jsno"),
        (["enable"], "Missing argument 'SUB'"),
        (["init", "--connection", "x"], "Missing option '--publication'"),
    ],
)
def test_usage_errors(pgbridge, arguments, text):
    """On standard error, with what was wrong and where help is."""
    code, out, err = pgbridge(*arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert "--help" in err


# --- init -------------------------------------------------------------------------------------------------------------


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
    assert out == "wrote pgbridge.toml; start with: pgbridge run --config pgbridge.toml\n"
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
    assert len(lines) < 25


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
    ("arguments", "text"),
    [
        (init("p", name="a b"), "subscription.a b: a subscription's name has letters, digits and _"),
        (init("p", "p"), 'publication "p" is named more than once'),
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
    assert err == "pgbridge: mine.toml is there already\nHINT:  remove it, or name another file with --config\n"
    assert (tmp_path / "mine.toml").read_text() == "precious"


def test_init_in_a_folder_that_is_not_there(pgbridge):
    code, _, err = pgbridge(*init("p", config="no/where.toml"))
    assert code == 2
    assert err.startswith("pgbridge: configuration file no/where.toml cannot be written: ")


# --- configuration and state errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["enable", "shop"], ["disable", "shop"]])
def test_missing_configuration(pgbridge, tmp_path, arguments):
    """Exit code 2, one message on standard error, no stack trace, and nothing is made."""
    code, out, err = pgbridge(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(
        "pgbridge: configuration file pgbridge.toml does not exist\nHINT:  write one with: pgbridge init"
    )
    assert list(tmp_path.iterdir()) == []


def test_configuration_errors_name_the_key(two, tmp_path):
    (tmp_path / "pgbridge.toml").write_text(TWO + 'binray = true\norigin = "local"\n')
    code, out, err = two("status")
    assert (code, out) == (2, "")
    assert err.count("pgbridge.toml: subscription.hr.") == 2
    assert 'did you mean "binary"?' in err
    assert 'allowed values: "any" or "none"' in err


def test_state_that_cannot_be_used(two, tmp_path):
    """Exit code 1: the file is right, the machine is not."""
    (tmp_path / "state").write_text("no folder")
    code, out, err = two("status")
    assert (code, out) == (1, "")
    assert err.startswith("pgbridge: state catalog ")
    assert "HINT:  state_dir must be a folder" in err


def test_state_of_a_later_version(two, tmp_path):
    with catalog_of(tmp_path) as catalog:
        catalog._database.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    code, _, err = two("disable", "shop")
    assert code == 1
    assert "written by a later version of pgbridge" in err


# --- enable and disable -----------------------------------------------------------------------------------------------


def enabled(folder: Path, name: str) -> bool:
    with catalog_of(folder) as catalog:
        row = catalog.subscription(name)
        assert row is not None
        return row.enabled


def test_disable_and_enable(two, tmp_path):
    """Of one subscription, also before the daemon ever ran; twice is once."""
    for _ in range(2):
        done = 'subscription "shop" disabled (at the daemon\'s next start)\n'
        assert two("disable", "shop") == (0, done, "")
        assert (enabled(tmp_path, "shop"), enabled(tmp_path, "hr")) == (False, True)
    done = 'subscription "shop" enabled (at the daemon\'s next start)\n'
    assert two("enable", "shop") == (0, done, "")
    assert enabled(tmp_path, "shop")


def test_while_the_daemon_runs(two, tmp_path):
    """It works on the same catalog, and the daemon looks there."""
    with locked(tmp_path / "state"):
        assert two("disable", "hr") == (0, 'subscription "hr" disabled (now)\n', "")
    assert not enabled(tmp_path, "hr")


@pytest.mark.parametrize(
    "command", [["enable"], ["disable"], ["skip", "--lsn", "0/1"], ["refresh"], ["origin"], ["publications"]]
)
def test_unknown_subscription(two, command):
    code, out, err = two(*command, "shopp")
    assert (code, out) == (2, "")
    assert err == 'pgbridge: subscription "shopp" does not exist (known: "shop", "hr")\n'


def test_another_configuration_file(two, tmp_path):
    """The state is beside the file, not where the command is started."""
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "other.toml").write_text(TWO)
    assert two("disable", "shop", "--config", "else/other.toml").code == 0
    assert not enabled(tmp_path / "else", "shop")
    assert not (tmp_path / "state").exists()


# --- refresh ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(pgbridge, tmp_path, publisher):
    """The same with a server that publishes t1 and t2; the subscription `shop` has t1 and gone."""
    publisher.execute("CREATE TABLE t1 (a int PRIMARY KEY); CREATE TABLE t2 (a int PRIMARY KEY)")
    publisher.execute("CREATE PUBLICATION shop_pub FOR TABLE t1, t2")
    (tmp_path / "pgbridge.toml").write_text(TWO.replace("host=/nonexistent", publisher.conninfo, 1))
    with catalog_of(tmp_path) as catalog:
        catalog.register("shop", enabled=True)
        rels = [RelRow("public", name, "r", Lsn(0x100), f"/lake/public/{name}") for name in ("t1", "gone")]
        catalog.create_origin("shop", Lsn(0x100), "abc", rels)
    return pgbridge


def asked(folder: Path) -> list[RefreshRow]:
    with catalog_of(folder) as catalog:
        return refresh.asked(catalog, "shop")


def test_refresh(shop, tmp_path):
    """It says what will be done, and leaves it to the worker."""
    done = (
        'subscription "shop" is refreshed (at the daemon\'s next start)\n'
        "  public.t2: added: it is copied, then follows the stream\n"
        "  public.gone: removed: it stops; its Delta table stays\n"
    )
    assert shop("refresh", "shop") == (0, done, "")
    assert [(row.table, row.copy_data) for row in asked(tmp_path)] == [(None, True)]
    with locked(tmp_path / "state"):
        code, out, _ = shop("refresh", "shop", "--no-copy-data")
    assert (code, out.splitlines()[:2]) == (
        0,
        [
            'subscription "shop" is refreshed (now)',
            "  public.t2: added: it follows the stream at once, with what its Delta table holds",
        ],
    )
    assert [(row.table, row.copy_data) for row in asked(tmp_path)] == [(None, True), (None, False)]


def test_refresh_with_copy_data_off_in_the_configuration(shop, tmp_path):
    file = tmp_path / "pgbridge.toml"
    file.write_text(file.read_text().replace("[subscription.hr]", "copy_data = false\n[subscription.hr]"))
    assert "it follows the stream at once" in shop("refresh", "shop").out
    assert "it is copied" in shop("refresh", "shop", "--copy-data").out
    assert [row.copy_data for row in asked(tmp_path)] == [False, True]


def test_resync(shop, tmp_path):
    text = "  public.t1: copied afresh: its rows are replaced by one commit, then it follows the stream\n"
    for name in ("t1", "public.t1"):
        code, out, _ = shop("refresh", "shop", "--resync", name)
        assert code == 0
        assert out.endswith(text)
    assert [row.table for row in asked(tmp_path)] == [("public", "t1")] * 2


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("t2", 'table "t2" is not one of subscription "shop"'),
        ("other.t1", 'table "other.t1" is not one of subscription "shop"'),
        ("gone", 'table "public.gone" is not published any more'),
    ],
)
def test_resync_of_what_cannot_be(shop, tmp_path, table, message):
    code, out, err = shop("refresh", "shop", "--resync", "t1", "--resync", table)
    assert (code, out) == (2, "")
    assert err.startswith(f"pgbridge: {message}\nHINT:  ")
    assert asked(tmp_path) == []


def test_refresh_with_nothing_to_do(shop, tmp_path, publisher):
    publisher.execute(
        "ALTER PUBLICATION shop_pub DROP TABLE t2; CREATE TABLE gone (); ALTER PUBLICATION shop_pub ADD TABLE gone"
    )
    assert shop("refresh", "shop") == (0, 'subscription "shop": its tables are those that are published\n', "")
    assert asked(tmp_path) == []


def test_refresh_before_the_first_start(two, tmp_path):
    code, out, err = two("refresh", "shop")
    assert (code, err) == (0, "")
    assert out == 'subscription "shop" has not begun yet: its first start takes up all that is published then\n'
    assert asked(tmp_path) == []


def test_refresh_without_the_server(shop, tmp_path):
    """As ALTER SUBSCRIPTION … REFRESH PUBLICATION, which asks the publisher, too."""
    (tmp_path / "pgbridge.toml").write_text(TWO)
    code, out, err = shop("refresh", "shop")
    assert (code, out) == (1, "")
    assert err.startswith("pgbridge: ")
    assert asked(tmp_path) == []


# --- skip and origin --------------------------------------------------------------------------------------------------


def skip_lsn(folder: Path) -> str | None:
    with catalog_of(folder) as catalog:
        return str(catalog.skip_lsn("shop")) if catalog.skip_lsn("shop") else None


def test_skip(two, tmp_path):
    """Set, replaced, taken back; with and without the daemon."""
    done = 'subscription "shop": the transaction that finished at 0/14C0378 is skipped (at the daemon\'s next start)\n'
    assert two("skip", "shop", "--lsn", "0/14C0378") == (0, done, "")
    assert skip_lsn(tmp_path) == "0/14C0378"
    with locked(tmp_path / "state"):
        assert two("skip", "shop", "--lsn", "0/14C0400").out.endswith("at 0/14C0400 is skipped (now)\n")
    assert two("skip", "shop", "--lsn", "none") == (0, 'subscription "shop": nothing is skipped\n', "")
    assert skip_lsn(tmp_path) is None


@pytest.mark.parametrize(
    ("lsn", "text"),
    [
        ("0/90", "skip WAL location (LSN 0/90) must be greater than origin LSN 0/100"),
        ("x", "invalid WAL location (LSN): x"),
    ],
)
def test_skip_refuses_what_cannot_be(two, tmp_path, lsn, text):
    two("status")
    with catalog_of(tmp_path) as catalog:
        catalog.create_origin("shop", Lsn(0x100), "abc", [])
    assert two("skip", "shop", "--lsn", lsn) == (1, "", f"pgbridge: {text}\n")
    assert skip_lsn(tmp_path) is None


def test_origin(two, tmp_path):
    two("status")
    with catalog_of(tmp_path) as catalog:
        catalog.create_origin("shop", Lsn(0x100), "abc", [])
    code, out, err = two("origin", "shop", "--json")
    assert (code, err) == (0, "")
    only = {"subscription": "shop", "external_id": "pgbridge_shop", "remote_lsn": "0/100", "batch": None}
    assert json.loads(out) == {"origins": [only]}
    assert [line.split() for line in two("origin").out.splitlines()[1:]] == [
        ["shop", "pgbridge_shop", "0/100", "-"],
        ["hr", "pgbridge_hr", "-", "-"],
    ]
    assert two("origin", "shop", "--advance", "0/200").out.startswith('origin "pgbridge_shop": 0/100 -> 0/200; ')
    assert two("origin", "--advance", "0/200").err == "pgbridge: --advance needs the subscription's name\n"


# --- status -----------------------------------------------------------------------------------------------------------


def test_status_json(two, tmp_path):
    """One document on standard output, whole and alone."""
    two("disable", "hr")
    code, out, err = two("status", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert list(document) == ["subscriptions"]
    assert [(item["name"], item["state"]) for item in document["subscriptions"]] == [
        ("shop", "stopped"),
        ("hr", "disabled"),
    ]


def test_status_for_people(two):
    code, out, err = two("status")
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[2:4]] == [["shop", "stopped"], ["hr", "stopped"]]


def test_status_knows_whether_the_daemon_runs(two, tmp_path):
    with catalog_of(tmp_path) as catalog:
        catalog.register("shop", enabled=True)
        catalog.set_state("shop", "streaming")

    def state() -> str:
        (shop, _) = json.loads(two("status", "--json").out)["subscriptions"]
        return str(shop["state"])

    assert state() == "stopped"
    with locked(tmp_path / "state"):
        assert state() == "streaming"
    assert state() == "stopped"


def test_status_of_a_server(two, publisher, tmp_path):
    """With its view of the slot."""
    (tmp_path / "pgbridge.toml").write_text(
        f'[subscription.shop]\nconnection = {json.dumps(publisher.conninfo)}\nslot_name = "{publisher.name}"\n'
        'publications = ["p"]\nwarehouse = "lake"\n'
    )
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (publisher.name,))
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    (shop,) = json.loads(two("status", "--json").out)["subscriptions"]
    assert [(shop["confirmed_flush_lsn"],)] == publisher.query(query, (publisher.name,))


# --- publications -----------------------------------------------------------------------------------------------------


def test_publications(two, publisher, tmp_path):
    """As tables, as a document, and written down as definitions that are then re-applied."""
    publisher.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t WHERE (a > 5)")
    text = (
        f'[subscription.shop]\nconnection = {json.dumps(publisher.conninfo)}\npublications = ["p"]\nwarehouse = "l"\n'
    )
    (tmp_path / "pgbridge.toml").write_text(text)
    code, out, err = two("publications")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split()[:4] == ["shop:", "public.t", "p", "all"]
    statement = "CREATE PUBLICATION p FOR\n    TABLE ONLY public.t WHERE ((a > 5));\n"
    assert two("publications", "shop", "--dump") == (0, statement, "")
    (tmp_path / "f.sql").write_text(statement)
    (tmp_path / "pgbridge.toml").write_text(text + 'publication_definitions = "f.sql"\n')
    (shop,) = json.loads(two("publications", "shop", "--json").out)["subscriptions"]
    assert shop["definitions"] == str(tmp_path / "f.sql")
    assert shop["targets"][0]["copy_filter"] == "(a > 5)"
    (tmp_path / "f.sql").write_text("CREATE PUBLICATION p FOR TABLE t (a, a)")
    code, out, err = two("publications")
    assert (code, out) == (2, "")
    assert f'{tmp_path / "f.sql"}:1:38: duplicate column "a" in publication column list' in err


def test_publications_that_cannot_be_reapplied(two, publisher, tmp_path):
    """Shown with the reason, and an exit code that a script sees."""
    publisher.execute("CREATE TABLE t (a int PRIMARY KEY, b int); CREATE PUBLICATION p FOR TABLE t (a)")
    (tmp_path / "f.sql").write_text("CREATE PUBLICATION q FOR TABLE t WHERE (b > 5)")
    (tmp_path / "pgbridge.toml").write_text(
        f'[subscription.shop]\nconnection = {json.dumps(publisher.conninfo)}\npublications = ["p"]\n'
        'warehouse = "l"\npublication_definitions = "f.sql"\n'
    )
    code, out, _ = two("publications")
    assert code == 1
    assert 'do not publish column "b" of table "public.t"' in " ".join(out.split())


def test_publications_of_an_unknown_subscription(two):
    assert two("publications", "shopp").code == 2
    code, _, err = two("publications", "shop")
    assert code == 1
    assert "pgbridge: " in err


# --- run, demo --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("until_caught_up", [False, True])
def test_run(two, monkeypatch, tmp_path, code, until_caught_up):
    """The daemon gets the configuration and the wish; its exit code is the command's."""
    started: list[tuple[Path, bool]] = []

    class Daemon:
        def __init__(
            self, settings: config.Config, _signals: StopSignals, *, until_caught_up: bool, bars: None
        ) -> None:
            assert bars is None  # standard error is no terminal
            started.append((settings.state_dir, until_caught_up))

        def run(self) -> Any:
            return code

    monkeypatch.setitem(sys.modules, "bridge.daemon", SimpleNamespace(Daemon=Daemon))
    monkeypatch.setattr("bridge.log.configure", lambda: None)
    monkeypatch.setattr(StopSignals, "install", lambda self: self)
    assert two("run", *(["--until-caught-up"] if until_caught_up else [])).code == code
    assert started == [(tmp_path / "state", until_caught_up)]


def test_demo(pgbridge, monkeypatch):
    started: list[tuple[Path, float]] = []

    def run_demo(directory: Path, seconds: float) -> int:
        started.append((directory, seconds))
        return 3

    monkeypatch.setitem(sys.modules, "bridge.demo.show", SimpleNamespace(run_demo=run_demo))
    assert pgbridge("demo", "--directory", "x", "--seconds", "5").code == 3
    assert started == [(Path("x"), 5.0)]


def test_light_commands_start_without_spark(tmp_path):
    """Nor do they load it: seconds, for a look at the status. And `python -m bridge` is the same command."""
    (tmp_path / "pgbridge.toml").write_text(TWO)
    program = (
        "import runpy, sys\n"
        "sys.argv = ['pgbridge', 'status', '--json']\n"
        "try:\n    runpy.run_module('bridge', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'pyspark', 'delta', 'pandas', 'py4j'}), file=sys.stderr)\n"
    )
    environment = {"PYTHONPATH": str(Path(cli.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert tomllib.loads(TWO)["subscription"].keys() == {
        item["name"] for item in json.loads(done.stdout)["subscriptions"]
    }
    assert done.stderr == "[]\n"
