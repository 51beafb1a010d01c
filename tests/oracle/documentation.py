"""Rules and examples of PostgreSQL's documentation as values, many of which share one subscription.

Each case has a schema of its own, named after it, which its SQL but for the publications takes for granted. So the
statements are the documentation's to the letter, and all cases of a run are one subscription of the oracle's, and
one of the bridge's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.oracle.native import Row

_DDL = ("CREATE", "ALTER")


@dataclass(frozen=True)
class Case:
    """One rule, or one worked example.

    Attributes:
        name: Its schema; its publications are named `<name>_…`.
        rule: What it proves, mostly in the documentation's words.
        schema: The publisher's tables.
        publications: CREATE PUBLICATION statements, tables with their schema: the text that both sides get.
        definitions: The bridge's own, of the same names, where the server cannot read them; None for `publications`.
        before: What is there before the copy.
        changes: What happens after it, a transaction each. Where CREATE or ALTER comes first, the native subscriber
            gets it too.
        tables: What subscribers get, and nothing else.
        subscriber: The native subscriber's tables where they are not the publisher's.
        shown: The rows that the documentation shows for the subscriber, by table.
        roots: Partitioned tables in whose place the server's own broad publication has no partitions.
        since: The lowest server_version_num.
    """

    name: str
    rule: str
    schema: str
    publications: str
    tables: tuple[str, ...]
    before: str = ""
    changes: tuple[str, ...] = ()
    subscriber: str | None = None
    shown: Mapping[str, list[Row]] = field(default_factory=dict, hash=False)
    roots: tuple[str, ...] = ()
    since: int = 150000
    definitions: str | None = None

    @property
    def publication_names(self) -> list[str]:
        """Of its publications."""
        return re.findall(r"CREATE PUBLICATION (\w+)", self.publications)

    @property
    def qualified_tables(self) -> list[str]:
        """`tables` with the schema."""
        return [f"{self.name}.{table}" for table in self.tables]

    def inside(self, statements: str) -> str:
        """Statements that find the case's tables by their bare names."""
        return f"SET search_path TO {self.name}; {statements}"


@dataclass(frozen=True)
class Run:
    """Cases that share a subscription.

    Attributes:
        name: The run's.
        cases: The cases.
    """

    name: str
    cases: tuple[Case, ...]

    def on(self, version: int) -> Run:
        """The same without the cases that a server is too old for."""
        return Run(self.name, tuple(case for case in self.cases if case.since <= version))

    @property
    def publications(self) -> str:
        """The text of all publications."""
        return "\n".join(case.publications for case in self.cases)

    @property
    def definitions(self) -> str:
        """The text of the bridge's definitions."""
        return "\n".join(case.definitions or case.publications for case in self.cases)

    @property
    def publication_names(self) -> list[str]:
        """Of all publications."""
        return [name for case in self.cases for name in case.publication_names]

    def broad(self, version: int) -> dict[str, str]:
        """The server's publications for the bridge, by name: everything, and the trees that go by their roots."""
        generated = " WITH (publish_generated_columns = stored)" if version >= 180000 else ""
        made = {"broad": f"CREATE PUBLICATION broad FOR ALL TABLES{generated}"}
        roots = [f"{case.name}.{root}" for case in self.cases for root in case.roots]
        if roots:
            made["roots"] = f"CREATE PUBLICATION roots FOR TABLE {', '.join(roots)} WITH (publish_via_partition_root)"
        return made

    @property
    def publisher_schema(self) -> str:
        """All tables of the publisher."""
        return self._schema(case.schema for case in self.cases)

    @property
    def subscriber_schema(self) -> str:
        """All tables of the native subscriber."""
        return self._schema(case.schema if case.subscriber is None else case.subscriber for case in self.cases)

    def _schema(self, schemas: Iterable[str]) -> str:
        made = [
            f"CREATE SCHEMA {case.name}; {case.inside(text)}" for case, text in zip(self.cases, schemas, strict=True)
        ]
        return ";\n".join(made)

    def changes(self) -> Iterator[tuple[str, bool]]:
        """The cases' changes in turn: each with whether the native subscriber gets it too."""
        for step in zip_longest(*(case.changes for case in self.cases)):
            for case, change in zip(self.cases, step, strict=True):
                if change is not None:
                    yield case.inside(change), change.startswith(_DDL)
