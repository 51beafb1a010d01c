"""What is published, held against what is followed: every event of the catalog, on a real server, without Spark."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from pgbridge.bridge.catalog import followed, refresh
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.publication.catalog_picture import parse
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.runtime import log, threads
from pgbridge.bridge.sync.catalog_look import CatalogLook, CatalogWatch
from pgbridge.protocol.lsn import Lsn
from tests.bridge.configurations import placed

SCHEMA = """
CREATE TYPE mood AS ENUM ('ok', 'sad');
CREATE TYPE pair AS (a int, m mood);
CREATE DOMAIN pairs AS pair[];
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE typed (id int PRIMARY KEY, m mood, p pairs);
CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10);
CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
CREATE TABLE r21 PARTITION OF r2 FOR VALUES FROM (10) TO (15);
CREATE TABLE lone (id int NOT NULL); INSERT INTO lone VALUES (16); ALTER TABLE lone ADD PRIMARY KEY (id);
CREATE SCHEMA s; CREATE TABLE s.moves (id int PRIMARY KEY);
"""
PUBLICATIONS = """
CREATE PUBLICATION p FOR TABLE t, typed, r WITH (publish_via_partition_root = true);
CREATE PUBLICATION q FOR TABLES IN SCHEMA s;
"""
AFRESH = "to copy the table afresh, run: pgbridge refresh shop --resync public."


class Look:
    """A subscription that follows all that is published, as after its first copy."""

    def __init__(self, publisher, folder, **options):
        given = {"publications": ("p", "q"), "warehouse": "lake", **options}
        self.subscription = Subscription(name="shop", connection=publisher.conninfo, **placed(given))
        self.server = publisher
        self.catalog = Catalog(catalog_path(folder))
        self.catalog.register("shop", enabled=True)
        self.publisher = Publisher(publisher.conninfo, application_name="look")
        self.publisher.connection.execute("SET search_path = public")
        self.watch = CatalogWatch(self.subscription, self.catalog, log.get("shop"))

    def follow(self, *names):
        rels = [
            RelRow(namespace, table, "r", Lsn(1), f"/lake/{table}")
            for namespace, _, table in (name.partition(".") for name in names)
        ]
        self.catalog.create_origin("shop", Lsn(1), "abc", rels)
        assert self.now() == []

    def execute(self, statements):
        """Each statement by itself, on the connection that looks: a transaction that is open there sees it."""
        for statement in filter(None, map(str.strip, statements.split(";"))):
            self.publisher.connection.execute(statement.encode())

    def now(self):
        """The differences after a look."""
        self.watch.look(self.publisher)
        return [one.difference for one in followed.seen(self.catalog, "shop")]

    def copied(self, namespace, name):
        """The table is copied afresh."""
        text = self.publisher.picture(self.subscription.publications, {(namespace, name): None})[1]
        assert text is not None
        relid = next(relid for relid, known in parse(text).names.items() if known == (namespace, name))
        followed.copied(self.catalog, "shop", (namespace, name), parse(text).table(relid))


@pytest.fixture
def look(publisher, tmp_path):
    """Makes a `Look` over the tables of `SCHEMA`."""
    made = []

    def make(*names, publications=PUBLICATIONS, **options):
        publisher.execute(SCHEMA)
        publisher.execute(publications)
        made.append(Look(publisher, tmp_path, **options))
        made[-1].follow(*(names or ("public.t", "public.typed", "public.r", "s.moves")))
        return made[-1]

    yield make
    for one in made:
        one.watch.close()
        one.publisher.close()
        one.catalog.close()


EVENTS = {
    "dropped and created again": (
        "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text)",
        "replaced",
        (
            'table "public.t" was dropped and created again, and the new one is not published; '
            "its Delta table still has the old table's rows"
        ),
        (
            'run on the server: ALTER PUBLICATION "p" ADD TABLE "public"."t"; then run: '
            "pgbridge refresh shop --resync public.t"
        ),
    ),
    "dropped, created and published again": (
        "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); ALTER PUBLICATION p ADD TABLE t",
        "replaced",
        'table "public.t" was dropped and created again; its Delta table still has the old table\'s rows',
        f"{AFRESH}t",
    ),
    "dropped": (
        "DROP TABLE t",
        "dropped",
        'table "public.t" does not exist on the publisher any more; its Delta table stays as it is',
        "to remove it from the subscription, run: pgbridge refresh shop",
    ),
    "taken out of the publication": (
        "ALTER PUBLICATION p DROP TABLE t",
        "unpublished",
        'table "public.t" is not published any more: its changes are not sent',
        (
            'run on the server: ALTER PUBLICATION "p" ADD TABLE "public"."t"; then run: pgbridge refresh shop --resync '
            "public.t; or, to remove it from the subscription, run: pgbridge refresh shop"
        ),
    ),
    "taken out and added again": (
        "ALTER PUBLICATION p DROP TABLE t; ALTER PUBLICATION p ADD TABLE t",
        "gap",
        'table "public.t", or some of its changes, was not published for a while: changes of that time were not sent',
        f"{AFRESH}t",
    ),
    "its schema is taken out and added again": (
        "ALTER PUBLICATION q DROP TABLES IN SCHEMA s; ALTER PUBLICATION q ADD TABLES IN SCHEMA s",
        "gap",
        'table "s.moves", or some of its changes, was not published for a while: changes of that time were not sent',
        "to copy the table afresh, run: pgbridge refresh shop --resync s.moves",
    ),
    "moved out of the schema and back": (
        "ALTER TABLE s.moves SET SCHEMA public; ALTER TABLE public.moves SET SCHEMA s",
        "gap",
        'table "s.moves", or some of its changes, was not published for a while: changes of that time were not sent',
        "to copy the table afresh, run: pgbridge refresh shop --resync s.moves",
    ),
    "its schema is set again": ("ALTER PUBLICATION q SET TABLES IN SCHEMA s", None, None, None),
    "moved to the schema where it is": ("ALTER TABLE s.moves SET SCHEMA s", None, None, None),
    "published by itself, too": ("ALTER PUBLICATION q ADD TABLE s.moves", None, None, None),
    "moved out of the schema": (
        "ALTER TABLE s.moves SET SCHEMA public",
        "unpublished",
        'table "s.moves" is not published any more, and is "public.moves" now: its changes are not sent',
        'run on the server: ALTER PUBLICATION "p" ADD TABLE "public"."moves"; then run: pgbridge refresh shop; or, ',
    ),
    "renamed": (
        "ALTER TABLE t RENAME TO t2",
        "renamed",
        'table "public.t" was renamed to "public.t2": its next change has it wait for its resync',
        "to copy it afresh under its new name, run: pgbridge refresh shop",
    ),
    "the publication is dropped": (
        "DROP PUBLICATION p",
        "unpublished",
        'table "public.t" is not published any more (publication "p" does not exist): its changes are not sent',
        'run on the server: CREATE PUBLICATION "p" FOR TABLE …; then run: pgbridge refresh shop --resync public.t',
    ),
    "the publication is dropped and made again": (
        "DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE t, typed, r WITH (publish_via_partition_root = true)",
        "gap",
        'table "public.t", or some of its changes, was not published for a while: changes of that time were not sent',
        f"{AFRESH}t",
    ),
    "via the root no more": (
        "ALTER PUBLICATION p SET (publish_via_partition_root = false)",
        "unpublished",
        'table "public.r" is not published any more: its partitions are published in its place',
        "to follow what is published now, run: pgbridge refresh shop",
    ),
    "attached": (
        "TRUNCATE lone; ALTER TABLE r ATTACH PARTITION lone FOR VALUES FROM (20) TO (30)",
        None,
        None,
        None,
    ),
    "attached with rows": (
        "UPDATE lone SET id = 21; ALTER TABLE r ATTACH PARTITION lone FOR VALUES FROM (20) TO (30)",
        "attached",
        'partition "public.lone" was attached to table "public.r": the rows that it had were not sent',
        f"{AFRESH}r",
    ),
    "attached with rows, at the second level": (
        "ALTER TABLE r2 ATTACH PARTITION lone FOR VALUES FROM (15) TO (20)",
        "attached",
        'partition "public.lone" was attached to table "public.r": the rows that it had were not sent',
        f"{AFRESH}r",
    ),
    "a partition is created": ("CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (30) TO (40)", None, None, None),
    "an empty partition is attached": (
        "CREATE TABLE r4 (id int NOT NULL); ALTER TABLE r ATTACH PARTITION r4 FOR VALUES FROM (40) TO (50)",
        None,
        None,
        None,
    ),
    "detached": (
        "ALTER TABLE r2 DETACH PARTITION r21",
        "detached",
        'partition "public.r21" of table "public.r" was detached or dropped: its rows are still in the Delta table',
        f"{AFRESH}r",
    ),
    "detached with its partitions": (
        "ALTER TABLE r DETACH PARTITION r2",
        "detached",
        'partition "public.r21" of table "public.r" was detached or dropped: its rows are still in the Delta table',
        f"{AFRESH}r",
    ),
    "detached and attached again": (
        (
            "INSERT INTO r VALUES (11); ALTER TABLE r2 DETACH PARTITION r21; "
            "ALTER TABLE r2 ATTACH PARTITION r21 FOR VALUES FROM (10) TO (15)"
        ),
        "attached",
        (
            'partition "public.r21" was attached to table "public.r": it was detached before, and what was changed in '
            "between was not sent"
        ),
        f"{AFRESH}r",
    ),
    "a label is renamed": (
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
        "type",
        (
            "label 'ok' of enum public.mood was renamed to 'fine': rows of table \"public.typed\" from before keep "
            "the old text"
        ),
        f"{AFRESH}typed",
    ),
    "a label is added": ("ALTER TYPE mood ADD VALUE 'so' BEFORE 'sad'", None, None, None),
    "an attribute is added": (
        "ALTER TYPE pair ADD ATTRIBUTE z text",
        "type",
        (
            'attribute "z" was added to the composite type public.pair: rows of table "public.typed" from before keep '
            "the old text"
        ),
        f"{AFRESH}typed",
    ),
    "an attribute is dropped": (
        "ALTER TYPE pair DROP ATTRIBUTE a",
        "type",
        (
            'attribute "a" of the composite type public.pair was dropped: rows of table "public.typed" from before '
            "keep the old text"
        ),
        f"{AFRESH}typed",
    ),
    "an attribute is renamed": ("ALTER TYPE pair RENAME ATTRIBUTE a TO b", None, None, None),
    "the identity is changed": ("ALTER TABLE t REPLICA IDENTITY FULL", None, None, None),
    "a filter": ("ALTER PUBLICATION p SET TABLE t WHERE (id > 3), typed, r", None, None, None),
    "a column list": ("ALTER PUBLICATION p SET TABLE t (id), typed, r", None, None, None),
    "actions": (
        "ALTER PUBLICATION p SET (publish = 'insert, update')",
        "actions",
        'DELETE and TRUNCATE of table "public.t" are not published any more',
        (
            "run on the server: ALTER PUBLICATION \"p\" SET (publish = '…'); then run: pgbridge refresh shop --resync "
            "public.t; to leave it so, run that at once"
        ),
    ),
    "a new table": (
        "CREATE TABLE s.young (id int)",
        "not_followed",
        'table "s.young" is published and not followed',
        "to copy it and follow it, run: pgbridge refresh shop",
    ),
}


def test_every_event_is_seen(look):
    """Each in a transaction that is rolled back. A second look sees the same, since the same time."""
    looked = look()
    kept = followed.pictures(looked.catalog, "shop")
    for event, (statements, kind, message, hint) in EVENTS.items():
        looked.execute(f"BEGIN; {statements}")
        seen = looked.now()
        (one,) = [one for one in seen if one.message == message] or seen or [None]
        assert (one and one.kind, one and one.message) == (kind, message), event
        assert one is None or one.hint.startswith(hint), event
        before = followed.seen(looked.catalog, "shop")
        assert looked.now() == seen, event
        assert followed.seen(looked.catalog, "shop") == before, event
        looked.execute("ROLLBACK")
        for name, picture in kept.items():
            followed.copied(looked.catalog, "shop", name, picture)
    assert looked.now() == []


def test_a_copy_ends_what_was_seen_of_the_table(look):
    """Events last until then, also when the catalog is as it was."""
    looked = look()
    looked.execute(
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'; ALTER TYPE mood RENAME VALUE 'fine' TO 'ok'; "
        "ALTER TABLE r2 DETACH PARTITION r21; ALTER PUBLICATION p DROP TABLE t"
    )
    assert [one.kind for one in looked.now()] == ["detached", "unpublished"]
    looked.execute("ALTER TABLE r2 ATTACH PARTITION r21 FOR VALUES FROM (10) TO (15); ALTER PUBLICATION p ADD TABLE t")
    assert [one.kind for one in looked.now()] == ["detached", "gap"]
    looked.copied("public", "r")
    assert [one.kind for one in looked.now()] == ["gap"]
    refresh.take_up(looked.catalog, "shop", 0, bring_in=(), follow=(), remove=[("public", "t")])
    assert [one.kind for one in looked.now()] == ["not_followed"]


def test_actions_that_were_not_published_leave_a_gap(look):
    looked = look()
    looked.execute("ALTER PUBLICATION p SET (publish = 'insert')")
    assert {one.kind for one in looked.now()} == {"actions"}
    looked.execute("ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')")
    assert {one.kind for one in looked.now()} == {"gap"}


def test_a_filter_that_comes_again_is_the_same(look):
    """Wherever the statement has it: before version 17 its tree says where. A renamed column leaves it as it is."""
    looked = look("public.t", publications="CREATE PUBLICATION p FOR TABLE t WHERE (id > 3 AND v <> 'x');")
    catalog_look = CatalogLook(looked.subscription, looked.catalog)
    looked.execute("ALTER TABLE t RENAME v TO w; ALTER PUBLICATION p SET TABLE t WHERE ((id > 3) AND w <> 'x')")
    compared = catalog_look.look(looked.publisher)
    assert (compared.differences, compared.notes) == ((), ())
    looked.execute("ALTER PUBLICATION p DROP TABLE t; ALTER PUBLICATION p ADD TABLE ONLY t WHERE (id > 3 AND w <> 'x')")
    compared = catalog_look.look(looked.publisher)
    assert ([one.kind for one in compared.differences], compared.notes) == (["gap"], ())


def test_an_identity_that_may_be_null(look):
    """Also of a table that was so when it was copied. It ends with the server's own remedy."""
    looked = look()
    looked.execute(
        "ALTER TABLE t ADD COLUMN a int; ALTER TABLE t ADD CONSTRAINT nn NOT NULL a NOT VALID; "
        "CREATE UNIQUE INDEX ti ON t (a) INCLUDE (v); ALTER TABLE t REPLICA IDENTITY USING INDEX ti"
    )
    (one,) = looked.now()
    assert one.kind == "identity"
    assert one.message.startswith('the replica identity of table "public.t" is not an identity: "a" may be NULL')
    assert [one.kind for one in CatalogLook(looked.subscription, None).look(looked.publisher).differences] == [
        "identity"
    ]
    looked.execute("ALTER TABLE t VALIDATE CONSTRAINT nn")
    assert looked.now() == []


def test_a_table_that_joins_is_asked_for_once(look):
    """It is a difference only if it could not be added; one that has left, or has another name, is left to somebody."""
    looked = look(workers__refresh="auto")
    assert looked.watch._every_s == 10

    def asked():
        return [(row.table, row.copy_data, row.joins) for row in refresh.asked(looked.catalog, "shop")]

    assert asked() == []
    looked.execute(
        "CREATE TABLE s.young (id int); ALTER TABLE s.moves RENAME TO moved; ALTER PUBLICATION p DROP TABLE typed"
    )
    assert {one.kind for one in looked.now()} == {"renamed", "unpublished", "not_followed"}
    assert {one.relation for one in looked.now() if one.kind == "not_followed"} == {("s", "moved")}
    assert asked() == [(("s", "young"), True, True)]
    number = refresh.asked(looked.catalog, "shop")[-1].number
    refresh.take_up(looked.catalog, "shop", number, bring_in=(), follow=(), remove=())
    not_followed = {one.relation for one in looked.now() if one.kind == "not_followed"}
    assert not_followed == {("s", "moved"), ("s", "young")}, "it could not be added"
    assert asked() == []


DEFINITIONS = "CREATE PUBLICATION d FOR TABLE r, TABLES IN SCHEMA s WITH (publish_via_partition_root = true);"


def test_own_definitions_are_held_against_the_stream(look, tmp_path):
    """A root of the definitions comes as its partitions, each of which the stream must have."""
    file = tmp_path / "definitions.sql"
    file.write_text(DEFINITIONS)
    publications = "CREATE PUBLICATION p FOR TABLE r1, r21, s.moves;"
    looked = look("public.r", "s.moves", publications=publications, publication_definitions=str(file))
    looked.execute("ALTER PUBLICATION p DROP TABLE r21; ALTER TABLE s.moves SET SCHEMA public")
    assert [(one.kind, one.relation, one.message) for one in looked.now()] == [
        (
            "unpublished",
            ("public", "r"),
            'changes of "public.r21" are not sent any more, whose rows table "public.r" has',
        ),
        (
            "unpublished",
            ("s", "moves"),
            (
                'table "s.moves" is not published any more, and is "public.moves" now (publication "q" does not '
                "exist): its changes are not sent"
            ),
        ),
    ]


def test_the_watch_goes_on_after_a_failure(look):
    """A connection that the server closed is opened again without a word; each difference is told once."""
    looked = look(workers__catalog_check_s=0.2)
    told = []
    looked.watch._log = SimpleNamespace(warning=lambda event, **_: told.append(event), info=lambda event, **_: None)
    looked.watch.start()
    looked.execute("ALTER PUBLICATION p DROP TABLE t")
    wait_until(lambda: followed.seen(looked.catalog, "shop"))
    backend = "SELECT pid FROM pg_stat_activity WHERE application_name = 'shop_look' AND datname = current_database()"
    ((pid,),) = looked.server.query(backend)
    looked.server.query("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    looked.execute("ALTER PUBLICATION p ADD TABLE t")
    wait_until(lambda: [one.difference.kind for one in followed.seen(looked.catalog, "shop")] == ["gap"])
    assert looked.server.query(backend) != [(pid,)]
    assert told == [EVENTS["taken out of the publication"][2], EVENTS["taken out and added again"][2]]


def test_a_look_that_waits_holds_up_nobody(look):
    """Another one has a lock on a published table: the stream begins, and the subscription ends."""
    looked = look(workers__catalog_check_s=0.05)
    with looked.server.connect() as locking:
        locking.execute("BEGIN")
        locking.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        looked.watch.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'shop_look' AND wait_event_type = 'Lock'"
        wait_until(lambda: looked.server.query(waiting))
        begin_s = time.monotonic()
        looked.watch.look(looked.publisher)
        looked.watch.close()
        looked.catalog.close()  # whoever looks no more records nothing, or pytest sees the thread's error
        assert time.monotonic() - begin_s < 5
        assert not looked.watch._thread.is_alive()
        wait_until(lambda: not looked.server.query(waiting))


def test_a_look_that_was_asked_for_is_the_last_one(look):
    looked = look()  # otherwise after a minute
    looked.watch.start()
    looked.execute("ALTER PUBLICATION p DROP TABLE t")
    looked.watch.soon()
    looked.watch.close()
    assert [one.difference.kind for one in followed.seen(looked.catalog, "shop")] == ["unpublished"]


def test_what_is_asked_for_before_it_begins_is_looked_at_then(look):
    looked = look()
    looked.execute("ALTER PUBLICATION p DROP TABLE t")
    looked.watch.soon()
    looked.watch.start()
    wait_until(lambda: followed.seen(looked.catalog, "shop"))


def test_a_thread_that_cannot_be_started_ends_nothing(look, monkeypatch):
    """There are too many; the next turn tries again, and the end is one."""
    looked = look(workers__catalog_check_s=0.05)
    whole = threading.Thread.start
    failures: list[threading.Thread] = []

    def start(thread):
        if thread.name.startswith("catalog ") and thread.name != "catalog looks" and len(failures) < 2:
            failures.append(thread)
            raise RuntimeError("can't start new thread")
        whole(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(threads, "_AFTER_ERROR_S", 0.05)
    looked.watch.start()
    looked.execute("ALTER PUBLICATION p DROP TABLE t")
    wait_until(lambda: followed.seen(looked.catalog, "shop"))
    assert len(failures) == 2
    failures.clear()
    looked.watch.soon()
    looked.watch.close()


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
