"""What is read in several queries is of one moment: a DROP between two of them is before all of them, or after all."""

from __future__ import annotations

from unittest import mock

import pytest

from pgbridge.bridge.apply.published import Published
from pgbridge.bridge.check.report import role_script
from pgbridge.bridge.commands import publications as listed
from pgbridge.bridge.commands.refresh import published_tables
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.publications import apply_publications, read_publications, read_relations
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.bridge.source.options import SourceOptions, published_tables as of_source
from pgbridge.bridge.sync.start import warn_without_identity

MADE = """
CREATE DOMAIN d AS int; CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY, v d); CREATE TABLE kept (id int);
CREATE PUBLICATION pub FOR TABLE s.t WITH (publish = 'insert'); CREATE PUBLICATION other FOR TABLE kept
"""
DROPPED = "DROP SCHEMA IF EXISTS s CASCADE; DROP TABLE IF EXISTS kept; DROP DOMAIN IF EXISTS d"
FORGOTTEN = "DROP PUBLICATION IF EXISTS pub; DROP PUBLICATION IF EXISTS other"
NAMES = ("pub", "other")


def shown(tables):
    return [(table.namespace, table.name, [column.name for column in table.columns]) for table in tables]


def relations(publisher, _):
    found = read_relations(publisher)
    return sorted(shown(found.by_relid.values())), "s" in found.schemas


def applied(publisher, _):
    return shown(apply_publications(publisher, NAMES, None).routing.tables())


def published(publisher, subscription):
    return shown(Published.read(subscription, publisher, mock.Mock()).tables.values())


def without_identity(publisher, _):
    log = mock.Mock()
    warn_without_identity(publisher, NAMES, log)
    return [call.kwargs["relation"] for call in log.warning.call_args_list]


READS = {
    "tables": lambda publisher, _: shown(publisher.tables(NAMES)),
    "relations": relations,
    "publications": lambda publisher, _: read_publications(publisher, NAMES),
    "applied": applied,
    "published": published,
    "without identity": without_identity,
    "refresh": lambda _, subscription: shown(published_tables(subscription).values()),
    "dump": lambda _, subscription: listed.dump([subscription]),
    "targets": lambda _, subscription: listed.collect([subscription]),
    "role": lambda _, subscription: role_script(subscription),
    "source": lambda publisher, _: shown(of_source(publisher, SourceOptions("", NAMES))),
}


CASES = {(name, dropped) for name in READS for dropped in (DROPPED, f"{DROPPED}; {FORGOTTEN}")}
CASES.remove(("role", f"{DROPPED}; {FORGOTTEN}"))  # it is written without a server's answer, too


@pytest.mark.parametrize(("name", "dropped"), sorted(CASES))
def test_a_drop_between_two_queries(publisher, name, dropped):
    """After each of its queries. pg_get_publication_tables fails without a publication; then it is read again."""
    subscription = Subscription(name="s", connection=publisher.conninfo, publications=NAMES, warehouse="/lake")
    rows = Publisher.rows

    def answer(after):
        """What is read if the tables are dropped after so many queries."""
        number = 0

        def asked(self, statement, parameters=None):
            nonlocal number
            found = rows(self, statement, parameters)
            number += statement != "server"
            if number == after:
                publisher.execute(dropped)
            return found

        publisher.execute(f"{dropped}; {FORGOTTEN}")
        publisher.execute(MADE)
        if after == 0:
            publisher.execute(dropped)
        with Publisher(publisher.conninfo, application_name="x") as opened, mock.patch.object(Publisher, "rows", asked):
            try:
                return str(READS[name](opened, subscription)), number
            except PublisherError as error:
                return "again" if error.retry else str(error), number

    (after, _), (before, last) = answer(0), answer(-1)
    assert before != after
    assert last > 1
    seen = [answer(number)[0] for number in range(1, last + 1)]
    assert set(seen) <= ({before, after, "again"} if FORGOTTEN in dropped else {before, after})
