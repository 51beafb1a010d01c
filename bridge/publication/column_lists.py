"""The columns of a table that several publications publish (`check_and_init_gencol`, `pgoutput_column_list_init`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.errors import PublicationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.publication.membership import Membership
    from bridge.publication.tables import CatalogColumn, CatalogRelation


def published_columns(members: Sequence[Membership], target: CatalogRelation) -> tuple[CatalogColumn, ...]:
    """The published columns, in the table's order.

    Raises:
        PublicationError: The publications publish different columns.
    """
    unlisted = [member.publication for member in members if member.column_list(target) is None]
    generated = {publication.generated_columns for publication in unlisted}
    if len(generated) > 1 and any(column.generated for column in target.columns):
        raise PublicationError(
            f'cannot use different values of publish_generated_columns for table "{target.qualified_name}" '
            "in different publications"
        )
    lists = [member.columns(target) for member in members]
    if any(names != lists[0] for names in lists):
        raise PublicationError(
            f'cannot use different column lists for table "{target.qualified_name}" in different publications',
            hint="give the table the same column list in every publication of the subscription",
        )
    return tuple(column for column in target.columns if column.name in lists[0])
