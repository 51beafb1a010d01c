"""The parameters of CREATE PUBLICATION's WITH, validated as `parse_publication_options` does (publicationcmds.c)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypedDict

from bridge.publication.publication import ACTIONS, Action, GeneratedColumns

if TYPE_CHECKING:
    from collections.abc import Mapping


class Options(TypedDict, total=False):
    """`Publication`'s fields."""

    actions: frozenset[Action]
    via_root: bool
    generated_columns: GeneratedColumns


class OptionError(Exception):
    """A parameter is refused; has PostgreSQL's message and DETAIL."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


def publication_options(given: Mapping[str, str | None]) -> Options:
    """Read parameters.

    Args:
        given: Values by name; None for a parameter without a value.

    Raises:
        OptionError: A name or value that PostgreSQL does not know.
    """
    options = Options()
    for name, value in given.items():
        match name:
            case "publish":
                options["actions"] = _actions(value)
            case "publish_via_partition_root":
                options["via_root"] = _boolean(name, value)
            case "publish_generated_columns":
                options["generated_columns"] = _generated(name, value)
            case _:
                raise OptionError(
                    f'unrecognized publication parameter: "{name}"',
                    "The parameters are publish, publish_via_partition_root and publish_generated_columns.",
                )
    return options


def _actions(value: str | None) -> frozenset[Action]:
    if value is None:
        raise OptionError("publish requires a parameter")
    words = [word.strip() for word in value.split(",")] if value.strip() else []
    if any(not re.fullmatch(r'"[^"]+"|[^\s",]+', word) for word in words):
        raise OptionError('invalid list syntax in parameter "publish"')
    names = [word[1:-1] if word[0] == '"' else word.lower() for word in words]
    if unknown := [name for name in names if name not in ACTIONS]:
        raise OptionError(
            f'unrecognized value for publication option "publish": "{unknown[0]}"',
            f"The values are {', '.join(ACTIONS)}.",
        )
    return frozenset(action for action in ACTIONS if action in names)


def _boolean(name: str, value: str | None) -> bool:
    """`defGetBoolean`: no value means true."""
    known = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
    if value is None:
        return True
    if value.lower() not in known:
        raise OptionError(f"{name} requires a Boolean value")
    return known[value.lower()]


def _generated(name: str, value: str | None) -> GeneratedColumns:
    match (value or "").lower():
        case "none":
            return "none"
        case "stored":
            return "stored"
    raise OptionError(
        f'invalid value for publication parameter "{name}": "{value or ""}"',
        'Valid values are "none" and "stored".',
    )
