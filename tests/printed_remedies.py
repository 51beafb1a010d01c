"""Every remedy that bridge/ may print, as its source has it: what is computed stands in braces.

A remedy is what is given as `hint`, `remedy` or `statement`, what a function of that name returns, and what stands in a
table of such texts.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BRIDGE = Path(__file__).parents[1] / "bridge"
_GIVEN = frozenset({"hint", "remedy", "statement"})
_POSITIONS = {"Concern": 3, "Difference": 4}
"""Classes whose hint is given by its position."""
_TABLES = re.compile(r"_BY_SQLSTATE|_OF_A_NAME|_REFUSED_HERE|_(STORE|EXECUTOR)_HINTS")


class Printed(NamedTuple):
    """A text, and the module that has it, as `check/server.py`."""

    module: str
    text: str


def remedies() -> list[Printed]:
    """All remedies, each once for each module."""
    found: dict[Printed, None] = {}
    for path in sorted(BRIDGE.rglob("*.py")):
        module = path.relative_to(BRIDGE).as_posix()
        found |= dict.fromkeys(Printed(module, text) for text in _remedies_of(ast.parse(path.read_text("utf-8"))))
    return list(found)


def _remedies_of(tree: ast.Module) -> Iterator[str]:
    constants = _constants(tree)
    for node in ast.walk(tree):
        for value in _given(node):
            for text in _templates(value, constants):
                if re.search(r"\w{3}", re.sub(r"\{[^{}]*\}", "", text)) or "remedies." in text:
                    yield text.strip()


def _given(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that give a remedy here."""
    if isinstance(node, ast.Call):
        yield from (keyword.value for keyword in node.keywords if keyword.arg in _GIVEN)
        position = _POSITIONS.get(getattr(node.func, "id", ""))
        if position is not None and len(node.args) > position:
            yield node.args[position]
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            name = getattr(target, "attr", getattr(target, "id", ""))
            if name in {"hint", "remedy"}:
                yield node.value
            elif _TABLES.fullmatch(name):
                yield from _sentences(node.value)
    elif isinstance(node, ast.FunctionDef) and (node.name == "hint" or node.name.endswith("_hint")):
        yield from (part.value for part in ast.walk(node) if isinstance(part, ast.Return) and part.value is not None)


def _sentences(table: ast.expr) -> Iterator[ast.expr]:
    """A table's remedies: the last text of each row; before it stand patterns, behind it whether to try again."""
    for node in ast.walk(table):
        if isinstance(node, ast.Tuple) and not any(isinstance(item, ast.Tuple) for item in node.elts):
            texts = [item for item in node.elts if isinstance(item, ast.Name | ast.JoinedStr | ast.Constant)]
            yield from [item for item in texts if getattr(item, "value", "") not in {True, False}][-1:]


def _constants(tree: ast.Module) -> Mapping[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant | ast.JoinedStr | ast.BinOp):
                found[target.id] = node.value
    return found


def _templates(node: ast.expr, constants: Mapping[str, ast.expr]) -> list[str]:  # noqa: PLR0911 - a case for each kind
    """The texts that an expression may have."""
    match node:
        case ast.Constant(value=value):
            return [value] if isinstance(value, str) else []
        case ast.JoinedStr(values=parts):
            made = [""]
            for part in parts:
                made = [begun + text for begun in made for text in _templates(part, constants)]
            return made
        case ast.FormattedValue(value=inner):
            return _templates(inner, constants)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [a + b for a in _templates(left, constants) for b in _templates(right, constants)]
        case ast.IfExp(body=body, orelse=orelse):
            return _templates(body, constants) + _templates(orelse, constants)
        case ast.BoolOp(values=values):
            return [text for value in values for text in _templates(value, constants)]
        case ast.Name(id=name) if name in constants:
            return _templates(constants[name], constants)
    return ["{" + ast.unparse(node) + "}"]
