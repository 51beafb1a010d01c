"""Hatchling's hook for the wheel: `bridge`, `protocol` and `sql` come into it as parts of one package, `pgbridge`.

Why one package: packages called `protocol` and `sql` at the top of site-packages would meet those of other
distributions, and the files of one would overwrite those of the other. Why not folders of that name in the repository:
the three layers are what a reader should see first, and `from protocol.lsn import Lsn` says which layer is used.

So the sources stay as they are, and an editable install uses them as they are. `pyproject.toml` maps the folders to
their place in a wheel. This hook replaces each of their modules there by one with the same lines, in which the import
statements have the names of the wheel. Nothing else is changed: a module that names another one in a text, or imports
it by a call, fails the build. Such code can use what is the same in both places: the package `pgbridge` (as in
`python -m pgbridge`), `__package__`, or a path beside `__file__`.
"""

from __future__ import annotations

import ast
import re
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = "pgbridge"
FOLDERS: Final = ("bridge", "protocol", "sql")

_TOP = "|".join(FOLDERS)
_FROM = re.compile(rf"(?P<begin>\s*from )(?P<name>(?:{_TOP})[.\w]*)(?P<end> import\b.*)", re.DOTALL)
_IMPORT = re.compile(rf"(?P<begin>\s*)import (?P<name>{_TOP})(?P<end>(?: as \w+)?\s*(?:#.*)?)", re.DOTALL)
_IN_TEXT = re.compile(
    rf"(?:{_TOP})(?:\.[a-z_]\w*)+(?::\w+)?"  # the whole text is a module's name, or an entry point
    rf"|.*(?:\bfrom +(?:{_TOP})[.\w]* +import\b|\bimport +(?:{_TOP})\b|-m +(?:{_TOP})\b).*",
    re.DOTALL,
)
_IMPORTING_CALLS = frozenset({"__import__", "import_module"})


class NotUnderstoodError(Exception):
    """A module uses the name of another one in a way that this hook does not change."""


class OnePackage(BuildHookInterface[Any]):
    """Replaces the modules of a wheel by renamed ones."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the renamed modules, and have them included in the place of the others."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="pgbridge-wheel-")
        for file in self.build_config.builder.recurse_selected_project_files():
            if not file.path.endswith(".py"):
                continue
            target = Path(self._folder.name, file.distribution_path)
            target.parent.mkdir(parents=True, exist_ok=True)
            source = Path(file.path).read_bytes().decode()
            target.write_bytes(renamed(source, file.relative_path).encode())
            shutil.copymode(file.path, target)
            build_data["force_include"][str(target)] = file.distribution_path

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the renamed modules."""
        del build_data, artifact_path
        if version != "editable":
            self._folder.cleanup()


def renamed(source: str, path: str) -> str:
    """A module's source with the names that its imports have in a wheel; every other byte stays.

    Args:
        source: A module of this repository.
        path: Its name in errors.

    Raises:
        NotUnderstoodError: An import, a call or a text names a module in a way that stays unchanged.
    """
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom) and _imports_folder(node):
            lines[node.lineno - 1] = _renamed_line(lines[node.lineno - 1], f"{path}:{node.lineno}")
    text = "\n".join(lines)
    if found := list(_left(ast.parse(text))):
        raise NotUnderstoodError("\n".join(f"{path}:{line}: cannot be renamed: {what}" for line, what in found))
    return text


def _imports_folder(node: ast.Import | ast.ImportFrom) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    relative = isinstance(node, ast.ImportFrom) and node.level > 0
    return not relative and any(name.partition(".")[0] in FOLDERS for name in names)


def _renamed_line(line: str, place: str) -> str:
    if found := _FROM.fullmatch(line):
        return f"{found['begin']}{PACKAGE}.{found['name']}{found['end']}"
    if found := _IMPORT.fullmatch(line):  # the name that it binds stays the same
        return f"{found['begin']}from {PACKAGE} import {found['name']}{found['end']}"
    raise NotUnderstoodError(f"{place}: cannot be renamed: {line.strip()}")


def _left(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The lines that still name a module as it is called in the repository."""
    remarks = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom() if _imports_folder(node):
                yield node.lineno, ast.unparse(node)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _IMPORTING_CALLS:
                yield node.lineno, ast.unparse(node)
            case ast.Constant(value=str(text)) if id(node) not in remarks and _IN_TEXT.fullmatch(text):
                yield node.lineno, ast.unparse(node)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                words = [item.value if isinstance(item, ast.Constant) else None for item in items]
                if any(("-m", folder) in pairwise(words) for folder in FOLDERS):
                    yield node.lineno, ast.unparse(node)
