"""README.md and docs/ name what there is: commands, options, keys with their defaults, links, files, make targets."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.main import get_command

from pgbridge.bridge.config.config import Config, Subscription, known_keys
from pgbridge.bridge.config.daemon_tables import Http, Spark
from pgbridge.bridge.config.explain import MOVED
from pgbridge.bridge.config.tables import Alerts, Batch, Table, TargetTables, Workers
from pgbridge.bridge.lake import ddl
from pgbridge.bridge.runtime.errors import BridgeError
from pgbridge.bridge.service.cli import app
from pgbridge.bridge.spark import settings
from tests import generated_commands

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests" / "README.md")
}
README = PAGES["README.md"]
DOCS = {name: text for name, text in PAGES.items() if name == "README.md" or name.startswith("docs/")}
COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]  # a group
_TABLES = (Config, Spark, Http, Table, Subscription, Batch, TargetTables, Workers, Alerts)
KEYS = {key: field for table in _TABLES for key, field in table.model_fields.items()}
_WITHIN = ("alerts", "batch", "target", "workers")
NO_KEYS = {"name", "subscription", "spark", "http", "conf", "tables", *_WITHIN}  # tables of the file

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[str]:
    """The lines of all code blocks."""
    return [line for block in _FENCE.findall(text) for line in block.splitlines()[1:-1]]


def spans(text: str) -> list[str]:
    """Inline code."""
    return re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))


def cells(page: str) -> dict[str, list[str]]:
    """The other cells of each row of a page's tables, by each name in the row's first cell."""
    rows = [line.strip("|").split("|") for line in PAGES[page].splitlines() if line.startswith("| `")]
    return {name: [cell.strip() for cell in row[1:]] for row in rows for name in re.findall(r"`([^`]+)`", row[0])}


# --- the pages ------------------------------------------------------------------------------------------------------


def test_readme_is_short():
    assert len(README.splitlines()) <= 130


@pytest.mark.parametrize("page", [name for name in DOCS if name != "README.md"])
def test_page_is_short_begins_with_its_purpose_and_its_folder_links_to_it(page):
    """What links to it is the README.md of its folder, or of the folder above."""
    title, _, purpose = DOCS[page].partition("\n\n")
    sentence = purpose.partition("\n\n")[0]
    folder, _, file = page.rpartition("/")
    assert len(DOCS[page].splitlines()) <= 250
    assert re.fullmatch(r"# ([A-Z]|pgbridge ).*", title)
    assert re.fullmatch(r"[A-Z][^.]*(\.toml[^.]*)?\.", sentence)
    if file == "README.md":
        above, _, name = folder.rpartition("/")
        index, target = f"{above}/README.md".lstrip("/"), f"{name}/README.md"
    else:
        index, target = f"{folder}/README.md", file
    assert f"]({target})" in DOCS[index]


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_and_anchors_resolve(page):
    broken = []
    for target in re.findall(r"\]\(([^)]+)\)", _FENCE.sub("", PAGES[page])):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = ((ROOT / page).parent / file).resolve() if file else ROOT / page
        headings = (
            re.findall(r"^#+ (.*)$", _FENCE.sub("", path.read_text()), re.MULTILINE) if path.suffix == ".md" else []
        )
        if not path.exists() or (anchor and anchor not in map(slug, headings)):
            broken.append(target)
    assert broken == []


def test_the_list_for_language_models_leads_to_pages():
    listed = re.findall(r"^- \[.+\]\((.+)\): ", (ROOT / "docs/llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(listed) == len(set(listed)) > 10
    assert {f"docs/{page}" for page in listed} <= DOCS.keys()


@pytest.mark.parametrize("page", sorted(DOCS))
def test_paths_exist(page):
    named = re.findall(r"(?<![\w/.<>-])((?:benchmarks|bridge|fuzz|protocol|sql|tests)/[\w./-]*)", DOCS[page])
    assert [path for path in named if not (ROOT / path.rstrip(".")).exists()] == []


def test_modules_that_sources_name_exist():
    """In backticks: a folder, a module, or something that a module has."""
    folders = ("bridge", "protocol", "sql", "src", "tests")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in sources}
    dotted = {
        (path.relative_to(ROOT), name)
        for path, text in texts.items()
        for name in re.findall(r"`((?:bridge|protocol|tests)(?:\.\w+)+)(?:\(\))?`", text)
    }

    def exists(name: str) -> bool:
        place = ROOT
        for part in name.split("."):
            if (place / f"{part}.py").exists():
                place = place / f"{part}.py"
            elif (place / part).is_dir():
                place = place / part
            else:
                text = texts[place if place.suffix else place / "__init__.py"]
                return re.search(rf"^\s*(?:def|class) {part}\b|^\s*{part}\b.* = ", text, re.MULTILINE) is not None
        return True

    assert len(dotted) > 30
    assert sorted((str(path), name) for path, name in dotted if not exists(name)) == []


def test_architecture_names_every_folder():
    folders = {f"{path.parent.relative_to(ROOT)}/" for path in (ROOT / "bridge").glob("*/__init__.py")}
    assert {
        folder
        for folder in folders | {"benchmarks/", "fuzz/", "protocol/", "sql/", "tests/"}
        if f"`{folder}`" not in DOCS["docs/architecture.md"]
    } == set()


def test_one_update_goes_through_at_most_twenty_files():
    """The walk names each file once, in order; other tests hold that the files are there."""
    text = PAGES["docs/architecture.md"].split("## The way of one UPDATE")[1].split("\n## ")[0]
    steps = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \|", text, re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert len({file for _, file in steps}) == len(steps)
    assert 10 < len(steps) <= 20


def test_make_targets_exist_and_are_named():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    helped = set(re.findall(r"^#   make ([a-z-]+)", makefile, re.MULTILINE))
    code = [line for text in PAGES.values() for line in (*blocks(text), *spans(text))]
    named = {match[1] for line in code if (match := re.match(r"(?:\$ )?make ([a-z-]+)", line))}
    assert named - targets == set()
    assert helped - named == set()


# --- commands -------------------------------------------------------------------------------------------------------


def test_the_commands_pages_are_those_of_their_help():
    """`python -m tests.generated_commands` writes them anew."""
    written = {path.name: path.read_text(encoding="utf-8") for path in generated_commands.FOLDER.iterdir()}
    assert written == generated_commands.pages()


def complaint(line: str, *, whole: bool) -> str:
    """What the command line says of a line that begins with `pgbridge`; where it is not whole, arguments may lack."""
    _, *words = shlex.split(line, comments=True)
    if not words or words[0] in {"--help", "--version"}:
        return ""
    name, *arguments = words
    if name not in COMMANDS:
        return f"no command {name}"
    try:
        COMMANDS[name].make_context(name, [word for word in arguments if word != "--help"])
    except Exception as error:  # noqa: BLE001 - typer has click's exceptions under several names
        return "" if type(error).__name__ == "MissingParameter" and not whole else str(error)
    return ""


@pytest.mark.parametrize("page", sorted(DOCS))
def test_command_lines_parse(page):
    lines = {line.removeprefix("$ ") for line in blocks(DOCS[page])}
    whole = {line for line in lines if line.startswith("pgbridge ")}
    mentioned = {span for span in spans(DOCS[page]) if span.startswith("pgbridge ")}
    said = {line: complaint(line, whole=line in whole) for line in whole | mentioned}
    assert {line: text for line, text in said.items() if text} == {}


@pytest.mark.parametrize("page", sorted(DOCS))
def test_options_exist(page):
    known = {
        option
        for command in COMMANDS.values()
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    named = {span.split()[0] for span in spans(DOCS[page]) if span.startswith("--")}
    assert named - known == set()


# --- configuration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", sorted(KEYS.keys() - NO_KEYS))
def test_configuration_has_every_key_with_its_default(key):
    default, meaning = cells("docs/configuration.md")[key]
    field = KEYS[key]
    if default == "required":
        assert field.is_required()
    elif default:
        value = tomllib.loads(f"default = {default.strip('`')}")["default"]
        assert value == (str(field.default) if isinstance(field.default, Path) else field.default)
    else:
        assert not field.is_required()
        assert field.get_default(call_default_factory=True) in (None, "", (), {}), "a default is not shown"
    allowed = [f'"{value}"' for value in get_args(field.annotation) if isinstance(value, str)]
    assert [value for value in allowed if f"`{value}`" not in default + meaning] == []


def test_configuration_has_no_other_key():
    tables = re.findall(r"^\| key \| default \|.*\n\|---.*\n((?:\|.*\n)+)", DOCS["docs/configuration.md"], re.MULTILINE)
    named = re.findall(r"^\| `(\w+)` \|", "".join(tables), re.MULTILINE)
    assert sorted(set(named)) == sorted(KEYS.keys() - NO_KEYS)


@pytest.mark.parametrize(("setting", "value"), [*settings.DEFAULTS.items(), *settings.REQUIRED.items()])
def test_configuration_has_every_setting_of_spark(setting, value):
    assert cells("docs/configuration.md")[setting] == [f"`{value}`"]


def test_configuration_has_the_checkpoint_intervals():
    cell = cells("docs/configuration.md")[settings.CHECKPOINT_INTERVAL]
    on_disk, on_stores = (
        {ddl.checkpoint_interval(f"{warehouse}/{number}") for number in range(500)}
        for warehouse in ("/lake", "s3a://lake")
    )
    assert cell[0].startswith(
        f"`{min(on_disk)}` to `{max(on_disk)}`, on object stores `{min(on_stores)}` to `{max(on_stores)}`"
    )


@pytest.mark.parametrize("page", sorted(DOCS))
def test_settings_in_text_are_allowed(page):
    """`key = "value"` in inline code and in TOML."""
    wrong = []
    for line in (*spans(DOCS[page]), *blocks(DOCS[page])):
        match = re.match(r'(?:# )?(?:[a-z]+\.)?([a-z_]+) = ("[^"]*"|[\w.]+)', line)
        if match and (field := KEYS.get(match[1])) is not None:
            allowed = [value for value in get_args(field.annotation) if isinstance(value, str)]
            if allowed and match[2].strip('"') not in allowed:
                wrong.append(line)
        nested = re.match(rf"({'|'.join(_WITHIN)})\.([a-z_]+)", line)
        if nested and nested[2] not in known_keys(Subscription, nested.groups()):
            wrong.append(line)
        if line in MOVED.keys() - KEYS.keys():
            wrong.append(line)
    assert wrong == []


# --- errors ---------------------------------------------------------------------------------------------------------


def test_errors_have_one_root():
    from pgbridge.bridge.runtime import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(issubclass(kind, BridgeError) for kind in kinds)


def test_each_row_of_the_runbook_has_a_test_of_the_same_name():
    lines = PAGES["docs/runbook.md"].splitlines()
    rows = {line.split("|")[1].strip() for line in lines if line.startswith("| ")} - {"what has happened"}
    wanted = {f"test_{re.sub(r'[^a-z]+', '_', row.lower())}" for row in rows}
    files = (ROOT / "tests").rglob("test_*.py")
    present = {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}
    assert len(wanted) > 30
    assert wanted - present == set()
