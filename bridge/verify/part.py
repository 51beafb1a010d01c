"""A part of a table's rows, by a column of its key: what one step of a verification compares on both sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pgbridge.bridge.sqltext.lexer import quote_identifier
from pgbridge.bridge.sync.key_order import range_condition
from pgbridge.bridge.targets.location import quoted

if TYPE_CHECKING:
    from pgbridge.bridge.sync.key_order import KeyParts
    from pgbridge.bridge.verify.window import TableWindow


@dataclass(frozen=True, slots=True)
class Part:
    """The rows with a value of a column within two bounds.

    Attributes:
        column: An integer or a uuid, which is a string in Delta.
        lower: The least value in it, as text; None for no bound, and NULLs.
        upper: The least value above it.
        texts: Delta has texts.
    """

    column: str
    lower: str | None
    upper: str | None
    texts: bool

    @property
    def source_condition(self) -> str:
        """PostgreSQL's condition of its rows."""
        return self._with_nulls(range_condition(self.column, self.lower, self.upper), quote_identifier(self.column))

    @property
    def target_condition(self) -> str:
        """Spark's."""
        name, ends = quoted(self.column), ((">=", self.lower), ("<", self.upper))
        within = " AND ".join(f"{name} {than} {self._literal(end)}" for than, end in ends if end is not None)
        return self._with_nulls(within, name)

    def _with_nulls(self, condition: str, name: str) -> str:
        return condition if self.lower is not None or not condition else f"({condition} OR {name} IS NULL)"

    def of(self, window: TableWindow, key: tuple[str, ...]) -> TableWindow:
        """The changes of its rows.

        Args:
            key: The columns of the window's keys.
        """
        number = key.index(self.column)
        return replace(window, rows={texts: row for texts, row in window.rows.items() if self._has(texts[number])})

    def _has(self, value: str | None) -> bool:
        if value is None:
            return self.lower is None
        order = _order(value, self.texts)
        above = self.lower is None or _order(self.lower, self.texts) <= order
        return above and (self.upper is None or order < _order(self.upper, self.texts))

    def _literal(self, value: str) -> str:
        return f"'{value}'" if self.texts else f"{value}L"


def part_from(parts: KeyParts, lower: str | None) -> Part:
    """The part that begins with a value."""
    texts = parts.texts
    above = (bound for bound in parts.bounds if lower is None or _order(bound, texts) > _order(lower, texts))
    return Part(parts.column, lower, next(above, None), texts)


def _order(value: str, texts: bool) -> tuple[int, str]:
    return (0, value) if texts else (int(value), "")
