"""To which target a relation of the stream goes, and as what: the server's publications, or re-applied definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from bridge import remedies
from bridge.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bridge.apply.batch.subscribed import Subscribed
    from bridge.publication.replica_identity import Refusal
    from protocol.lsn import Lsn
    from protocol.messages import Relation


class RenamedTable(NamedTuple):
    """A table of ours that has another name in the stream.

    Attributes:
        lsn: Its changes count from here on (`srsublsn`); under another name it may have been before.
        error: That they cannot be applied, and what to do.
    """

    lsn: Lsn
    error: TargetError


class Routes:
    """What the server publishes is taken as it comes: each relation goes to the target of its name.

    Args:
        subscribed: The tables that follow the stream, by (namespace, name).
        cut_identities: Looks again at which tables have a replica identity that is not wholly published
            (`Subscribed.cut_identity`).
        subscription: For the command that is the remedy.
        replaced: Called with a table that is another one of the same name from now on, as after DROP and CREATE, and
            with the command that copies it afresh.

    Attributes:
        names: What the tables are called here, by the relids under which the stream has them.
    """

    def __init__(
        self,
        subscribed: Mapping[tuple[str, str], Subscribed],
        cut_identities: Callable[[], Mapping[tuple[str, str], frozenset[str]]] | None = None,
        *,
        subscription: str = "",
        replaced: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self.subscribed = subscribed
        self._cut_identities = cut_identities
        self._keys: dict[int, frozenset[str]] = {}
        self._subscription = subscription
        self._replaced = replaced
        self.names = {table.relid: name for name, table in subscribed.items() if table.relid is not None}

    def route(self, relation: Relation) -> Subscribed | None:
        """Where a relation's changes go; None when they go nowhere.

        Raises:
            TargetError: They cannot be taken rightly.
        """
        if self._cut_identities is not None and self._key_shrank(relation):
            cut = self._cut_identities()
            self.subscribed = {
                name: replace(found, cut_identity=cut.get(name, frozenset())) for name, found in self.subscribed.items()
            }
        return self.subscribed.get(name_of(relation))

    def _key_shrank(self, relation: Relation) -> bool:
        """The key has fewer columns than it had: it is another one, or they are not published any more."""
        key = frozenset(column.name for column in relation.columns if column.is_key)
        before = self._keys.get(relation.relation_id, key)
        self._keys[relation.relation_id] = key
        return key < before

    def renamed_table(self, relation: Relation) -> RenamedTable | None:
        """Whether a relation is a table of ours that has another name now: a native subscriber stops there."""
        return self._renamed_from(relation.relation_id, name_of(relation))

    def _renamed_from(self, relid: int, name: tuple[str, str]) -> RenamedTable | None:
        ours = self.names.get(relid, name)
        if ours == name or ours not in self.subscribed:
            return None
        old, new = ".".join(ours), ".".join(name)
        if name in self.subscribed:
            message = f'table "{old}" has the name of "{new}" now, which is another table of the subscription'
            hint = f"copy both afresh: {remedies.resync(self._subscription, old, new)}"
        else:
            message = f'logical replication target relation "{new}" does not exist'
            hint = (
                f'table "{old}" was renamed. To go on with it under its new name, copied afresh, run: '
                f"{remedies.refresh(self._subscription)}; or give it its old name back, and run: "
                f"{remedies.resync(self._subscription, old)}"
            )
        return RenamedTable(self.subscribed[ours].lsn, TargetError(message, hint=hint))

    def remember_relid(self, relation: Relation) -> None:
        """A relation's changes go where `route` has said: take note of its relid, which may be another than before."""
        name = name_of(relation)
        if relation.relation_id in self.names or name not in self.subscribed:
            return
        before = [relid for relid, ours in self.names.items() if ours == name]
        for relid in before:
            del self.names[relid]
        self.names[relation.relation_id] = name
        if before:
            self._replaced(".".join(name), remedies.resync(self._subscription, ".".join(name)))

    def truncated(self, relations: Sequence[Relation]) -> list[Subscribed]:
        """Which targets one TRUNCATE message empties, as far as that is published."""
        return [found for relation in relations if (found := self.route(relation)) is not None]

    def identity_refusals(
        self, relation: Relation, definition_of: Callable[[int], Relation | None]
    ) -> Sequence[Refusal]:
        """UPDATEs and DELETEs of a relation that cannot be taken rightly, by the replica identity they came with.

        Args:
            relation: As the stream has it.
            definition_of: Gives the latest definition that the stream has of an oid.
        """
        del relation, definition_of
        return ()

    def reread_catalog(self) -> None:
        """The server has sent a definition that it had sent before: something about the table has changed."""


def name_of(relation: Relation) -> tuple[str, str]:
    """(namespace, name); the namespace is empty in the message for pg_catalog."""
    return relation.namespace or "pg_catalog", relation.name
