"""Each printed remedy that can be typed is executed by a test, and read by what it is typed into."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
import typer

from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.config.spark_master import check_master
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import ApplyContext
from pgbridge.bridge.service import cli
from pgbridge.protocol.lsn import Lsn
from tests import printed_remedies
from tests.executed_remedies import ELSEWHERE, EXECUTED

if TYPE_CHECKING:
    from tests.printed_remedies import Printed

TESTS: Final = Path(__file__).parent
GROUP: Any = typer.main.get_command(cli.app)
PRINTED: Final = printed_remedies.remedies()

_COMMANDS = "|".join(sorted(GROUP.commands))
_MENTIONED = re.compile(rf"\bpgbridge ({_COMMANDS})\b")
_COMMAND = re.compile(rf"(?:^|: |and )pgbridge ((?:{_COMMANDS})\b[^;,]*)")
_STATEMENT = re.compile(
    r"(?:^|(?:on the \S+|in Spark|there|in the database of the connection|then run): |; (?:or )?|-- or: )"
    r"((?:ALTER|CREATE|GRANT|DROP|SELECT|RESTORE|ROLLBACK|DELETE|DESCRIBE) [^;]*)"
)
_OF_SPARK = re.compile(r"sql_name\(|in Spark: ")
_SETTING = re.compile(r"(?<![\w\"'}.])([a-z_.]+) = (\"[^\"{]*\"|true|false|\d+)")
_OTHER = re.compile(
    r"\b(?:chmod|ulimit|pip|fuser) |remedies\.|_remedies|_resync\}|\{(?:remedy|again|anew|keep)\}|_restore\("
)
_OF_A_PUBLICATION = frozenset({"publish_via_partition_root"})

CALLS: Final = {
    "INIT": remedies.INIT,
    "disable": remedies.disable("shop"),
    "drop_slot": remedies.drop_slot("shop"),
    "enable": remedies.enable("it's"),
    "install": remedies.install("connect"),
    "install_library": remedies.install_library("typer"),
    "of_difference": remedies.of_difference("it's", "public.it's"),
    "of_conflict": remedies.of_conflict("delta.`/l/t`", ["a`b"], ["it's"]),
    "of_prepared_binary": remedies.of_prepared_binary("shop", ApplyContext("o", Lsn(24), 7, "public.t c")),
    "recover": remedies.recover("shop"),
    "refresh": remedies.refresh("shop"),
    "replay": remedies.replay("shop", "0/18"),
    "resync": remedies.resync("shop", "public.t", "s.b c"),
    "row_condition": "",
    "run": remedies.run(),
    "show_skipped": remedies.show_skipped("shop", "0/18"),
    "skip": remedies.skip("shop", Lsn(24)),
    "start_afresh": remedies.start_afresh("shop"),
    "upgraded": remedies.upgraded("shop"),
    "check": remedies.check("--sql"),
    "drop": remedies.drop("shop", "--keep-slot"),
    "imported": "",
    "of_no_table": remedies.of_no_table("shop"),
    "publications": remedies.publications("shop"),
    "reload": remedies.reload(),
    "standby": remedies.standby(),
    "status": remedies.status(),
    "use": "",
    "verify": remedies.verify("shop"),
}
"""What each function of `bridge.runtime.remedies` writes."""


def statements(text: str) -> list[str]:
    """The statements that a remedy has, with a value for what is computed and for each ellipsis."""
    return [filled(found) for found in _STATEMENT.findall(text)]


def filled(text: str) -> str:
    """A text with a value for what is computed."""
    text = re.sub(r"AS OF \{[^{}]*\}", "AS OF 1", text).replace("{added}", "x INT")
    text = re.sub(r"\{literal\([^{}]*\)\}", "'x'", text)
    return re.sub(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|…", "x", text).removesuffix(" -- or: ")


def commands(text: str) -> list[str]:
    """The pgbridge commands that a remedy has, without the program's name."""
    return [filled(found) for found in _COMMAND.findall(text)]


def is_typable(remedy: Printed) -> bool:
    """Whether there is something to type in it."""
    text = remedy.text
    return any(pattern.search(text) for pattern in (_MENTIONED, _STATEMENT, _SETTING, _OTHER))


def entries_of(remedy: Printed) -> list[tuple[str, str]]:
    """Its entries: how it begins, and its test or why there is none. There must be one."""
    return [
        (begin, value)
        for table in (EXECUTED, ELSEWHERE)
        for begin, value in table.get(remedy.module, {}).items()
        if remedy.text.startswith(begin)
    ]


@pytest.mark.parametrize("remedy", [one for one in PRINTED if is_typable(one)], ids=lambda one: one.text[:60])
def test_it_is_executed_or_cannot_be_had_here(remedy):
    """Its one entry names the test that executes it, or says what is not there."""
    ((begin, value),) = entries_of(remedy)
    if begin in ELSEWHERE.get(remedy.module, {}):
        assert "::" not in value
        return
    path, _, name = value.partition("::")
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, value


def test_no_entry_is_of_another_time():
    typable = [one for one in PRINTED if is_typable(one)]
    known = {(one.module, begin) for one in typable for begin, _ in entries_of(one)}
    listed = {(module, begin) for table in (EXECUTED, ELSEWHERE) for module in table for begin in table[module]}
    assert listed == known


@pytest.mark.parametrize("remedy", [one for one in PRINTED if commands(one.text)], ids=lambda one: one.text[:60])
def test_the_command_line_reads_it(remedy):
    for command in commands(remedy.text):
        read(command)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_command_line_reads_what_is_computed(name):
    for command in re.findall(r"pgbridge [^;]*", CALLS[name]):
        read(command.removeprefix("pgbridge "))


def test_all_that_computes_one_is_here():
    functions = {name for name, _ in inspect.getmembers(remedies, inspect.isfunction) if not name.startswith("_")}
    assert functions | {"INIT"} == set(CALLS)


def read(command: str) -> None:
    """Have the real parser read a command; nothing is run."""
    name, *words = shlex.split(command)
    GROUP.commands[name].make_context(name, words)


@pytest.mark.parametrize("remedy", [one for one in PRINTED if _SETTING.search(one.text)], ids=lambda one: one.text[:60])
def test_the_configuration_takes_it(remedy):
    given = {"name": "s", "connection": "host=h", "publications": ("p",), "warehouse": "/lake"}
    for key, text in _SETTING.findall(remedy.text):
        tree = tomllib.loads(f"{key} = {text}")
        if key == "master":
            check_master(tree["master"].replace("N", "2"))
        elif key not in _OF_A_PUBLICATION:
            Subscription(**given, **tree)


def test_the_server_reads_each_statement(postgresql):
    """PL/pgSQL reads a statement of any kind without executing it."""
    wrong = []
    for remedy in PRINTED:
        if _OF_SPARK.search(remedy.text):
            continue
        for statement in statements(remedy.text):
            if statement.startswith("ROLLBACK"):  # PL/pgSQL's own
                continue
            block = f"DO $do$ BEGIN RETURN; {statement}; END $do$"
            try:
                postgresql.execute(block.encode())
            except psycopg.Error as error:
                wrong.append((remedy.module, statement, str(error)))
            postgresql.rollback()
    assert wrong == []


def test_spark_reads_each_statement(spark):
    parser = spark._jsparkSession.sessionState().sqlParser()
    for remedy in PRINTED:
        if _OF_SPARK.search(remedy.text):
            for statement in statements(remedy.text):
                parser.parsePlan(statement)
    deleting = re.findall(r"DELETE FROM [^;]*", CALLS["of_conflict"])
    assert [parser.parsePlan(statement) is not None for statement in deleting] == [True]


@pytest.mark.parametrize("remedy", [one for one in PRINTED if re.search(r"\b(chmod|ulimit|fuser) ", one.text)])
def test_the_shell_reads_it(remedy):
    command = re.search(r"(?:chmod|ulimit|fuser) .*", remedy.text)
    assert command is not None
    assert "{" not in command[0] or "shlex.quote(" in command[0] or "{needed}" in command[0], "a path may have a blank"
    subprocess.run(["sh", "-n", "-c", filled(command[0])], check=True)
