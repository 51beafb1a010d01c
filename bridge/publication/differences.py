"""Compares what is published now with what is followed, and finds differences that the stream does not announce.

A difference of `STATES` is there as long as the catalog shows it. Any other one is an event: the Delta table may lack
rows, or have rows in an old form, whatever the catalog shows later, until the table is copied afresh. A change that
PostgreSQL applies exactly from now on, as a changed row filter, is no difference but a note.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.publication.catalog_picture import ACTIONS, CatalogPicture, Name, TablePicture, TypeInUse
from pgbridge.bridge.publication.routing_then import Former

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

STATES: Final = ("unpublished", "replaced", "renamed", "dropped", "not_followed", "actions", "identity")
EVENTS: Final = ("gap", "attached", "detached", "type")
KINDS: Final = (*STATES, *EVENTS)
"""All kinds. A table that was unpublished, or had actions unpublished, has a gap afterwards."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between what is followed and what is published.

    Attributes:
        kind: One of `KINDS`.
        relation: The table's name as it is followed.
        subject: Tells several differences of a kind and a table apart: a partition, or a type and its part.
        message: A sentence.
        hint: What to do, with the pgbridge command as it is typed.
    """

    kind: str
    relation: Name
    subject: str
    message: str
    hint: str

    @property
    def key(self) -> tuple[str, Name, str]:
        """The same difference has the same key at each look."""
        return self.kind, self.relation, self.subject


@dataclass(frozen=True, slots=True)
class Note:
    """A change that PostgreSQL applies exactly from now on."""

    relation: Name
    message: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of a look.

    Attributes:
        differences: Those of now.
        notes: For the log, once.
        followed: The pictures that count as followed from now on, where they changed, by table.
        joining: Tables that are published, and followed under no name.
    """

    differences: tuple[Difference, ...]
    notes: tuple[Note, ...]
    followed: Mapping[Name, TablePicture]
    joining: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class Remedies:
    """The commands that hints name, and the publications that a table could be added to.

    Attributes:
        refresh: Adds and removes tables as they are published.
        resync: Copies a table, by its `namespace.name`, afresh.
        publications: As the subscription names them.
        definitions: Whether own definitions say what is published.
    """

    refresh: str
    resync: Callable[[str], str]
    publications: Sequence[str]
    definitions: bool = False


def compare(
    subscribed: Mapping[Name, int | None],
    followed: Mapping[Name, TablePicture],
    now: CatalogPicture,
    published: Mapping[Name, int],
    standing: Collection[Difference],
    remedies: Remedies,
    *,
    others: Collection[Name] = (),
    applied_lsn: int = 0,
) -> Comparison:
    """Compare what is followed with what is published.

    Args:
        subscribed: The tables that follow the stream: their relids, None if unknown.
        followed: Their pictures when they were copied, with what was noted since.
        now: The catalog.
        published: What the publications, or the definitions, publish now: relids by name.
        standing: The differences of the last look.
        remedies: For hints.
        others: Tables that are published and need not be followed: left out, or being copied.
        applied_lsn: What the tables have: nothing from before it is applied any more.
    """
    differences: list[Difference] = []
    notes: list[Note] = []
    accepted: dict[Name, TablePicture] = {}
    for name, relid in subscribed.items():
        before = followed.get(name)
        looked = _Table(name, before.relid if before else relid, now, published, remedies)
        elsewhere = looked.not_published()
        earlier = [difference for difference in standing if difference.relation == name]
        kept = [difference for difference in earlier if difference.kind in EVENTS]
        if elsewhere is not None:
            differences += [elsewhere, *kept]
            continue
        picture = now.table(published[name])
        if picture is None:
            continue  # it was dropped between two queries of this look
        if before is None:
            accepted[name] = picture
            differences += looked.states(picture, picture)
            continue
        states = looked.states(before, picture)
        over = {difference.kind for difference in earlier} - {difference.kind for difference in states}
        events = [*kept, *looked.events(before, picture, returned=bool(over & {"unpublished", "actions"}))]
        differences += [*states, *{event.key: event for event in events}.values()]
        notes += looked.notes(before, picture)
        formers = (
            *(former for former in before.formers if former.until_lsn > applied_lsn),
            *_gone(before, picture, now.lsn),
        )
        after = replace(picture, actions=_union(before.actions, picture.actions), unsent=(), formers=formers)
        if after != before:
            accepted[name] = after
    missing = sorted(published.keys() - subscribed.keys() - set(others))
    known = {followed[name].relid if name in followed else relid for name, relid in subscribed.items()}
    differences += [
        Difference(
            "not_followed",
            name,
            "",
            f'table "{_text(name)}" is published and not followed',
            f"to copy it and follow it, run: {remedies.refresh}",
        )
        for name in missing
    ]
    joining = tuple(name for name in missing if published[name] not in known)
    return Comparison(tuple(differences), tuple(notes), accepted, joining)


class _Table:
    """One subscribed table; `relid` is that of the table that was copied."""

    def __init__(
        self,
        name: Name,
        relid: int | None,
        now: CatalogPicture,
        published: Mapping[Name, int],
        remedies: Remedies,
    ) -> None:
        self._name, self._relid, self._now, self._published, self._remedies = name, relid, now, published, remedies
        self._quoted = f'"{_text(name)}"'
        self._resync = remedies.resync(_text(name))

    def not_published(self) -> Difference | None:
        """The table is not published as what was copied; None if it is."""
        here = self._published.get(self._name)
        if here is not None and self._relid in {here, None}:
            return None
        renamed = self._now.names.get(self._relid) if self._relid is not None else None
        moved = renamed if renamed != self._name else None
        if here is not None:
            what = f'was renamed to "{_text(moved)}", and another table has its name' if moved else _REPLACED
            return self._state("replaced", f"table {self._quoted} {what}; {_OLD_ROWS}", _afresh(self._resync))
        if moved and moved in self._published:
            return self._state(
                "renamed",
                f'table {self._quoted} was renamed to "{_text(moved)}": its next change has it wait for its resync',
                f"to copy it afresh under its new name, run: {self._remedies.refresh}",
            )
        if renamed is not None:
            return self._unpublished(moved)
        if any(name == self._name for name in self._now.names.values()):
            what = f"table {self._quoted} {_REPLACED}, and the new one is not published; {_OLD_ROWS}"
            return self._state("replaced", what, self._publish_again())
        return self._state(
            "dropped",
            f"table {self._quoted} does not exist on the publisher any more; its Delta table stays as it is",
            f"to remove it from the subscription, run: {self._remedies.refresh}",
        )

    def _unpublished(self, moved: Name | None) -> Difference:
        """The table exists under its name, or under `moved`, and is not published."""
        is_now = f', and is "{_text(moved)}" now' if moved else ""
        lead = f"table {self._quoted} is not published any more{is_now}"
        assert self._relid is not None  # noqa: S101 - its name is known by its relid
        picture = self._now.table(self._relid)
        below = picture is not None and self._now.published_below(picture)
        if below or self._now.published_above(self._relid):
            instead = "its partitions are published in its place" if below else "its root is published in its place"
            hint = f"to follow what is published now, run: {self._remedies.refresh}"
            return self._state("unpublished", f"{lead}: {instead}", hint)
        gone = [name for name in self._remedies.publications if name not in self._now.publications]
        why = f' (publication "{gone[0]}" does not exist)' if gone else ""
        hint = f"{self._publish_again(moved)}; or, to remove it from the subscription, run: {self._remedies.refresh}"
        return self._state("unpublished", f"{lead}{why}: its changes are not sent", hint)

    def _publish_again(self, moved: Name | None = None) -> str:
        publication = self._remedies.publications[0]
        quoted = ".".join(map(_identifier, moved or self._name))
        if self._remedies.definitions:
            then = "publish it again, in the definitions and on the server;"
        elif publication not in self._now.publications:
            then = f"run on the server: CREATE PUBLICATION {_identifier(publication)} FOR TABLE …;"
        else:
            then = f"run on the server: ALTER PUBLICATION {_identifier(publication)} ADD TABLE {quoted};"
        return f"{then} then run: {self._remedies.refresh if moved else self._resync}"

    def states(self, before: TablePicture, now: TablePicture) -> list[Difference]:
        """Return the differences that the catalog shows for a table that is published as what was copied."""
        standing = [
            self._state(
                "unpublished",
                f'changes of "{name}" are not sent any more, whose rows table {self._quoted} has',
                f"publish it on the server; then run: {self._resync}",
                name,
            )
            for name in now.unsent
        ]
        lost = [ACTIONS[action] for action in before.actions if action not in now.actions]
        if lost and now.members:
            listed = " and ".join(lost)
            publications = sorted({publication for publication, *_ in now.rules} or set(self._remedies.publications))
            hint = (
                f"run on the server: ALTER PUBLICATION {_identifier(publications[0])} SET (publish = '…'); "
                f"then run: {self._resync}; to leave it so, run that at once"
            )
            standing.append(
                self._state("actions", f"{listed} of table {self._quoted} are not published any more", hint)
            )
        if now.nullable and set(now.actions) & {"u", "d"}:
            listed = ", ".join(f'"{column}"' for column in now.nullable)
            standing.append(
                self._state(
                    "identity",
                    f"the replica identity of table {self._quoted} is not an identity: {listed} may be NULL, because "
                    "the NOT NULL constraint is not validated; UPDATEs and DELETEs of such rows are not found",
                    "run on the server: ALTER TABLE … VALIDATE CONSTRAINT …; or ALTER TABLE … REPLICA IDENTITY FULL; "
                    f"then run: {self._resync}",
                )
            )
        return standing

    def events(self, before: TablePicture, now: TablePicture, *, returned: bool) -> Iterator[Difference]:
        """Yield what has happened to the table since the last look; `returned`: something of it was not published."""
        if returned or any(self._again(source, before, now) for source in before.members):
            what = f"table {self._quoted}, or some of its changes, was not published for a while"
            yield self._state("gap", f"{what}: changes of that time were not sent", _afresh(self._resync))
        known, present = ({partition.relid: partition for partition in picture.partitions} for picture in (before, now))
        for relid, partition in present.items():
            if not (partition.attached and partition.has_rows) or (
                relid in known and known[relid].xid == partition.xid
            ):
                continue
            what = f'partition "{partition.name}" was attached to table {self._quoted}'
            lacking = "the rows that it had were not sent"
            if relid in known:
                lacking = "it was detached before, and what was changed in between was not sent"
            yield self._state("attached", f"{what}: {lacking}", self._resync_hint, partition.name)
        for relid, partition in known.items():
            if relid not in present and partition.is_leaf:
                became = "detached" if relid in self._now.names else "detached or dropped"
                what = f'partition "{partition.name}" of table {self._quoted} was {became}'
                yield self._state(
                    "detached", f"{what}: its rows are still in the Delta table", self._resync_hint, partition.name
                )
        for oid, kind in before.types.items():
            for subject, what in _type_changes(kind, now.types.get(oid)):
                message = f"{what}: rows of table {self._quoted} from before keep the old text"
                yield self._state("type", message, self._resync_hint, f"{kind.name} {subject}")

    def _again(self, source: int, before: TablePicture, now: TablePicture) -> bool:
        """Whether all that has the table in the stream now came after the last look.

        ALTER PUBLICATION … SET TABLE puts another member in its place at once, if its rules are others.
        """
        rules = _rules(now, source)
        # pictures that were kept before schemas were members have the publication's oid in their place
        publications = {str(self._now.publications[publication][0]) for publication, *_ in rules}
        members = now.members.get(source, frozenset()) | publications
        return bool(rules) and members.isdisjoint(before.members[source]) and _rules(before, source) == rules

    @property
    def _resync_hint(self) -> str:
        return _afresh(self._resync)

    def notes(self, before: TablePicture, now: TablePicture) -> Iterator[Note]:
        """Yield the changes of rules that hold from now on, as for PostgreSQL's subscriber."""
        was, is_ = (
            {(publication, source): rule for publication, source, *rule in rules_of.rules} for rules_of in (before, now)
        )
        for key in sorted(was.keys() & is_.keys()):
            if before.members.get(key[1]) == now.members.get(key[1]):
                continue  # a member's rules never change; kept digests of servers before 17 may be of another form
            for number, what in enumerate(("column list", "row filter")):
                if was[key][number] != is_[key][number]:
                    text = f'the {what} of table {self._quoted} in publication "{key[0]}" was altered'
                    yield Note(self._name, f"{text}: it holds for changes from now on")
        if now.identity != before.identity:
            text = f"the replica identity of table {self._quoted} was altered"
            yield Note(self._name, f"{text}: it holds for changes from now on")
        if more := [ACTIONS[action] for action in now.actions if action not in before.actions]:
            text = f"{' and '.join(more)} of table {self._quoted} are published"
            yield Note(self._name, f"{text}: it holds for changes from now on")

    def _state(self, kind: str, message: str, hint: str, subject: str = "") -> Difference:
        return Difference(kind, self._name, subject, message, hint)


_REPLACED = "was dropped and created again"
_OLD_ROWS = "its Delta table still has the old table's rows"


def _afresh(resync: str) -> str:
    return f"to copy the table afresh, run: {resync}"


def _type_changes(before: TypeInUse, now: TypeInUse | None) -> Iterator[tuple[str, str]]:
    """Yield each change of a type that changes the text of stored values, with its subject."""
    if now is None:
        return  # no column has the type any more
    if before.typtype == "e":
        for oid, label in before.parts.items():
            renamed = now.parts.get(oid, label)
            if renamed != label:
                yield label, f"label '{label}' of enum {before.name} was renamed to '{renamed}'"
        return
    # the text of a composite has no names, so that a renamed attribute leaves it as it is
    for number, attribute in now.parts.items():
        if number not in before.parts:
            yield attribute, f'attribute "{attribute}" was added to the composite type {before.name}'
    for number, attribute in before.parts.items():
        if number not in now.parts:
            yield attribute, f'attribute "{attribute}" of the composite type {before.name} was dropped'


def _rules(picture: TablePicture, source: int) -> set[tuple[str, int, str, str]]:
    return {rule for rule in picture.rules if rule[1] == source}


def _gone(before: TablePicture, now: TablePicture, lsn: int) -> Iterator[Former]:
    """Yield partitions that a table had at the last look and does not have now, or has again."""
    present = {(partition.relid, partition.xid) for partition in now.partitions}
    for partition in before.partitions:
        if (partition.relid, partition.xid) not in present:
            yield Former(partition.relid, partition.parent, int(partition.xid or 0), lsn)


def _union(before: str, now: str) -> str:
    return "".join(action for action in ACTIONS if action in before or action in now)


def _text(name: Name) -> str:
    return ".".join(name)


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
