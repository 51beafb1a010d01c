"""What `pgbridge publications` says of a server's publications, and of definitions that are re-applied to them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pgbridge.bridge.commands.publications import collect, dump, is_refused, render
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.runtime.errors import PublicationError, PublisherError
from tests.bridge.publication.server_publications import own_publications


@pytest.fixture
def subscription(publisher, tmp_path):
    """Makes subscriptions to the publication `broad`."""
    publisher.execute("CREATE TABLE t (a int PRIMARY KEY, b text)")
    publisher.execute("CREATE TABLE root (a int PRIMARY KEY) PARTITION BY RANGE (a)")
    publisher.execute("CREATE TABLE leaf PARTITION OF root DEFAULT")
    publisher.execute("CREATE PUBLICATION broad FOR ALL TABLES")

    def make(text: str | None = None, *names: str) -> Subscription:
        path = None
        if text is not None:
            path = str(tmp_path / "f.sql")
            (tmp_path / "f.sql").write_text(text)
        return Subscription(
            name="shop",
            connection=publisher.conninfo,
            publications=names or ("broad",),
            warehouse="lake",
            publication_definitions=path,
        )

    return make


DEFINITIONS = """
    CREATE PUBLICATION one FOR TABLE t (a) WHERE (a > 5), root WHERE (a < 9) WITH (publish_via_partition_root);
    CREATE PUBLICATION two FOR TABLE t (a) WHERE (a = 1) WITH (publish = 'insert');
"""


def printed(document) -> str:
    console = Console(file=io.StringIO(), width=150)
    console.print(render(document))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_definitions(subscription, tmp_path):
    document = collect([subscription(DEFINITIONS)])
    (found,) = document["subscriptions"]
    assert {key: found[key] for key in ("name", "publications", "definitions", "refused", "warnings", "notes")} == {
        "name": "shop",
        "publications": ["one", "two"],
        "definitions": str(tmp_path / "f.sql"),
        "refused": None,
        "warnings": [],
        "notes": [],
    }
    root, table = found["targets"]
    assert table == {
        "name": "public.t",
        "publications": ["one", "two"],
        "actions": ["insert", "update", "delete", "truncate"],
        "filters": {"insert": "(a > 5) OR (a = 1)", "update": "a > 5", "delete": "a > 5"},
        "copy_filter": "(a > 5) OR (a = 1)",
        "columns": ["a"],
        "root": None,
        "leaves": [],
    }
    assert (root["name"], root["root"], root["leaves"]) == ("public.root", "public.root", ["public.leaf"])
    assert not is_refused(document)


def test_for_people(subscription):
    lines = printed(collect([subscription(DEFINITIONS)])).splitlines()
    assert lines[0].split() == ["table", "publications", "actions", "row", "filter", "columns", "partitions"]
    assert lines[1].split() == ["shop:", "public.root", "one", "all", "a", "<", "9", "a", "public.leaf"]
    assert " ".join(lines[2].split()) == "shop: public.t one, two all insert: (a > 5) OR (a = 1) a -"
    assert [line.strip() for line in lines[3:6]] == ["update: a > 5", "delete: a > 5", "copy: (a > 5) OR (a = 1)"]


def test_the_servers_own(subscription):
    """Without definitions."""
    (found,) = collect([subscription()])["subscriptions"]
    assert (found["publications"], found["definitions"]) == (["broad"], None)
    assert [target["name"] for target in found["targets"]] == ["public.leaf", "public.t"]
    assert found["targets"][1]["filters"] == {"insert": None, "update": None, "delete": None}


def test_what_cannot_be_reapplied(subscription, publisher):
    publisher.execute("CREATE PUBLICATION via_root FOR ALL TABLES WITH (publish_via_partition_root)")
    document = collect([subscription("CREATE PUBLICATION p FOR TABLE leaf", "via_root")])
    (found,) = document["subscriptions"]
    assert is_refused(document)
    assert 'the server publishes changes of table "public.leaf" as "public.root"' in found["refused"]
    assert "shop, refused" in printed(document)


def test_what_will_stop_the_subscription(subscription):
    document = collect([subscription("CREATE PUBLICATION p FOR TABLE t WHERE (b = 'x')")])
    (found,) = document["subscriptions"]
    assert not is_refused(document)
    (warning,) = found["warnings"]
    assert 'UPDATE or DELETE of table "public.t" will stop the subscription' in warning
    assert "not part of the replica identity" in " ".join(printed(document).split())


def test_what_the_stream_lacks(subscription, publisher):
    publisher.execute("CREATE PUBLICATION small FOR TABLE t WITH (publish = 'insert')")
    document = collect([subscription("CREATE PUBLICATION p FOR ALL TABLES", "small")])
    (found,) = document["subscriptions"]
    assert found["notes"] == [
        'no publication on the server publishes table "public.leaf"',
        'the publications on the server do not publish UPDATE, DELETE, TRUNCATE of table "public.t"',
    ]
    assert not is_refused(document)
    assert found["notes"][0] in printed(document)


def test_everything_except(subscription):
    """EXCEPT leaves a root's partitions out; sequences are named, for nothing copies them."""
    text = "CREATE PUBLICATION p FOR ALL TABLES EXCEPT (TABLE root), ALL SEQUENCES"
    (found,) = collect([subscription(text)])["subscriptions"]
    assert [target["name"] for target in found["targets"]] == ["public.t"]
    assert found["notes"] == [
        'publication "p" has ALL SEQUENCES, which no stream carries; in a file of definitions it means nothing'
    ]


def test_tables_that_are_not_there(subscription):
    with pytest.raises(PublicationError, match='f.sql:1:32: relation "public.nothing" does not exist'):
        collect([subscription("CREATE PUBLICATION p FOR TABLE nothing")])


def test_dump(subscription, publisher):
    """Each publication once, however many subscriptions have it; it reads back to what the server has."""
    publisher.execute("CREATE PUBLICATION small FOR TABLE t (a) WHERE (a > 5)")
    made = [subscription(None, "small", "broad"), subscription(None, "broad")]
    text, errors = dump(made)
    assert (parse(text, "dump.sql"), errors) == (own_publications(publisher, "small", "broad"), [])


def test_one_whose_server_is_away_does_not_silence_the_others(subscription):
    """It is told, beside them."""
    away = subscription().model_copy(update={"name": "away", "connection": "host=/nowhere dbname=x"})
    document = collect([away, subscription()])
    first, second = document["subscriptions"]
    assert first["error"].startswith("cannot connect to the publisher")
    assert second["targets"]
    assert is_refused(document)
    assert "away, cannot be read:" in printed(document)
    text, (error,) = dump([away, subscription()])
    assert text.startswith("CREATE PUBLICATION")
    assert error.startswith('subscription "away": cannot connect')
    with pytest.raises(PublisherError, match="cannot connect"):
        collect([away])


def test_what_delta_cannot_hold(subscription, publisher):
    publisher.execute("CREATE TABLE bare ()")
    (found,) = collect([subscription()])["subscriptions"]
    (note,) = found["notes"]
    assert note.startswith('table "public.bare" has no published column')


def test_what_is_not_there_yet(subscription, publisher):
    """From PostgreSQL 18 on; but nothing can be dumped of it."""
    chosen = subscription(None, "broad", "later")
    if publisher.query("SHOW server_version_num")[0][0] < "180000":
        with pytest.raises(PublisherError, match='"later" does not exist'):
            collect([chosen])
        return
    (found,) = collect([chosen])["subscriptions"]
    assert found["notes"] == ['publication "later" does not exist on the publisher']
    assert [target["name"] for target in found["targets"]] == ["public.leaf", "public.t"]
    with pytest.raises(PublisherError, match='publication "later" does not exist'):
        dump([chosen])
