"""The row filters of a table that several publications publish, per action (`pgoutput_row_filter_init`).

A row passes if one of the filters passes it. A publication without a filter, or of all tables, or of the table's
schema, passes every row, whatever the others say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.publication.publication import DML

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bridge.publication.membership import Membership
    from bridge.publication.publication import Action
    from bridge.publication.tables import CatalogRelation


def action_filters(
    members: Sequence[Membership], target: CatalogRelation, actions: Collection[Action]
) -> dict[Action, tuple[str, ...]]:
    """The row filters for each of these actions that is DML; none where every row passes."""
    return {
        action: _combined([member for member in members if action in member.publication.actions], target)
        for action in DML
        if action in actions
    }


def copy_filters(members: Sequence[Membership], target: CatalogRelation) -> tuple[str, ...]:
    """The row filters of the initial copy, which disregards `publish` (`fetch_remote_table_info`)."""
    return _combined(members, target)


def _combined(members: Sequence[Membership], target: CatalogRelation) -> tuple[str, ...]:
    filters = [member.row_filter(target) for member in members]
    found = tuple(dict.fromkeys(text for text in filters if text is not None))
    return () if None in filters else found
