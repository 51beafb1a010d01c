"""Masked columns beside a native subscriber of a server whose generated columns have the masked values.

A mask is a function of the value's text; PostgreSQL computes the same in an SQL expression, and its own subscriber
carries the result. The copy, rows, large transactions in spool files, skipped transactions and verification are masked.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext

import pytest

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.config import config
from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.runtime.errors import ApplyError, NeedsResync, SkipError, TargetError
from pgbridge.bridge.service import cli
from pgbridge.bridge.service.replay import replay, show_skipped
from pgbridge.bridge.spark.session import fork
from tests.bridge.verify.test_verification import tables_of, verified
from tests.oracle.typed import type_in

SALT = "a long random word"
TABLES = """
    CREATE TYPE mood AS ENUM ('sad', 'happy');
    CREATE TABLE people (id int PRIMARY KEY, email text, born date, phone varchar(20), wage numeric(9, 2), mood mood,
      tags text[], note text, kept text);
    ALTER TABLE people ALTER note SET STORAGE EXTERNAL;
    CREATE TABLE bag (email text, n int);
    ALTER TABLE bag REPLICA IDENTITY FULL;
    CREATE PUBLICATION pub FOR TABLE people, bag;
"""
MASKS = {
    "email": "sha256",
    "born": "null",
    "phone": {"first": 3},
    "wage": {"text": "it's \\ hidden"},
    "mood": "sha256",
    "tags": "sha256",
    "note": {"first": 4},
}


def hashed(text):
    return hashlib.sha256(SALT.encode() + text.encode()).hexdigest()


def masked(row):
    """A row of `people` as it is in Delta; `row` has the texts that psql prints."""
    id_, email, _born, phone, wage, mood, tags, note, kept = row
    return {
        "id": id_,
        "email": email and hashed(email),
        "born": None,
        "phone": phone and phone[:3],
        "wage": wage and "it's \\ hidden",
        "mood": mood and hashed(mood),
        "tags": tags and hashed(tags),
        "note": note and note[:4],
        "kept": kept,
    }


@pytest.fixture
def salted(tmp_path):
    file = tmp_path / "salt"
    file.write_text(SALT + "\n")
    file.chmod(0o600)
    return str(file)


def people(publisher):
    rows = publisher.query(
        "SELECT id, email, born::text, phone, wage::text, mood::text, tags::text, note, kept FROM people"
    )
    return sorted((masked(row) for row in rows), key=lambda row: row["id"])


def bridged(bridge):
    return sorted(bridge.rows("people"), key=lambda row: row["id"])


def leaked(folder, *secrets):
    """The files under a folder that have one of some texts."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in secrets)
    ]


@pytest.mark.parametrize("streaming", ["off", "on"])
def test_what_the_delta_tables_have(spark, publisher, pipeline, salted, streaming):
    """By the copy and by the stream, also of values that were not sent, old rows, and a table without a key."""
    publisher.stream_everything()
    publisher.execute(TABLES)
    publisher.execute("""
        INSERT INTO people SELECT g, 'copied' || g || '@example.org', '2000-01-01', '0171234' || g, g, 'sad',
          ARRAY['a', NULL, g::text], repeat('é', 3000), 'kept' FROM generate_series(1, 5) g;
        INSERT INTO people (id) VALUES (6); INSERT INTO bag VALUES ('copied@example.org', 1), (NULL, 2)
    """)
    bridge = pipeline(
        target__mask_salt_file=salted,
        streaming=streaming,
        tables={"public.people": Table(mask=MASKS), "public.bag": Table(mask={"email": "sha256"})},
    )
    bridge.catch_up()
    assert bridged(bridge) == people(publisher)
    publisher.execute("""
        BEGIN; INSERT INTO people SELECT g, 'sent' || g || '@example.org', 'infinity', NULL, 'NaN', 'happy', '{}', 'x',
          ''          FROM generate_series(11, 14) g; SAVEPOINT a; UPDATE people SET email = 'void@example.org';
        ROLLBACK TO a; UPDATE people SET kept = 'new', phone = '0' WHERE id IN (1, 12); COMMIT;
        UPDATE people SET email = NULL, id = 102 WHERE id = 2; DELETE FROM people WHERE id = 3;
        UPDATE bag SET n = 10 WHERE n = 1; INSERT INTO bag VALUES ('sent@example.org', 3), ('sent@example.org', 3);
        DELETE FROM bag WHERE email IS NULL; DELETE FROM bag WHERE ctid IN (SELECT min(ctid) FROM bag WHERE n = 3)
    """)
    bridge.catch_up()
    assert bridged(bridge) == people(publisher)
    assert sorted((row["email"], row["n"]) for row in bridge.rows("bag")) == sorted(
        (hashed(email), n) for email, n in publisher.query("SELECT email, n FROM bag")
    )
    document = verified(bridge)
    assert {name: table["equal"] for name, table in tables_of(document).items()} == {
        "public.people": True,
        "public.bag": True,
    }
    spark.sql(f"UPDATE delta.`{bridge.path('people')}` SET email = 'other' WHERE id = 11").collect()
    table = tables_of(verified(bridge))["public.people"]
    assert not table["equal"]
    assert "example.org" not in str(table), "what is shown is masked"
    assert leaked(bridge.folder, "example.org", "0171234") == []


def test_large_and_prepared_transactions_are_masked_in_their_files(publisher, pipeline, salted, monkeypatch):
    """A prepared transaction waits in a file of `state_dir`, a skipped one is kept there, and can be replayed."""
    publisher.needs(15)
    publisher.execute(TABLES)
    bridge = pipeline(
        target__mask_salt_file=salted,
        two_phase=True,
        streaming="on",
        tables={"public.people": Table(mask=MASKS)},
    )
    bridge.catch_up()
    publisher.execute(
        "BEGIN; INSERT INTO people (id, email) SELECT g, 'prepared' || g || '@example.org' FROM generate_series(1, 9) g"
        "; PREPARE TRANSACTION 'one'"
    )
    bridge.catch_up()
    spooled = [path for path in (bridge.folder / "state").rglob("*") if path.is_file() and path.stat().st_size]
    assert any(hashed("prepared1@example.org").encode() in path.read_bytes() for path in spooled)
    assert leaked(bridge.folder, "example.org") == []
    publisher.execute("COMMIT PREPARED 'one'")
    bridge.catch_up()
    assert bridged(bridge) == people(publisher)


def test_rows_that_were_prepared_before_a_mask_came_are_not_shown(publisher, memory_pipeline):
    """Also of columns that the Delta table did not have yet: the table waits, and its copy is masked."""
    publisher.needs(15)
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR TABLE t")
    bridge = memory_pipeline(two_phase=True)
    bridge.catch_up()
    publisher.execute("ALTER TABLE t ADD secret text, ADD amount int")
    publisher.execute("BEGIN; INSERT INTO t VALUES (1, 'a', 'ada@example.org', 258); PREPARE TRANSACTION 'one'")
    bridge.catch_up()
    hidden = {"public.t": Table(mask={name: {"text": "hidden"} for name in ("secret", "amount")})}
    bridge.subscription = bridge.subscription.model_copy(update={"tables": hidden})
    bridge.catch_up()
    publisher.execute("COMMIT PREPARED 'one'")
    publisher.execute("INSERT INTO t VALUES (2, 'b', 'ben@example.org', 7)")
    with pytest.raises(NeedsResync, match='mask of table "public.t" is another than when rows of a prepared'):
        bridge.catch_up()
    assert bridge.rows("t") == []
    refresh.copy_afresh(bridge.catalog, bridge.subscription.name, ("public", "t"))
    bridge.catch_up()
    assert {(row["id"], row["secret"], row["amount"]) for row in bridge.rows("t")} == {
        (1, "hidden", "hidden"),
        (2, "hidden", "hidden"),
    }


def test_a_skipped_transaction_is_kept_masked(spark, publisher, pipeline, salted):
    publisher.execute(TABLES)
    bridge = pipeline(target__mask_salt_file=salted, tables={"public.people": Table(mask=MASKS)})
    bridge.catch_up()
    spark.sql(f"ALTER TABLE delta.`{bridge.path('people')}` ADD CONSTRAINT small CHECK (id < 100)").collect()
    publisher.execute("INSERT INTO people (id, email, kept) VALUES (100, 'skipped@example.org', 'k')")
    with pytest.raises(ApplyError, match="small") as caught:
        bridge.catch_up()
    assert "example.org" not in str(caught.value)
    lsn = str(caught.value.context.finish_lsn)
    name = bridge.subscription.name
    (bridge.folder / "pgbridge.toml").write_text(f"""
        state_dir = "state"
        [subscription."{name}"]
        connection = "{publisher.conninfo}"
        publications = ["pub"]
        warehouse = "lake"
        target.mask_salt_file = "{salted}"
        tables."public.people".mask = {{ email = "sha256" }}
    """)
    cli.app(["skip", name, "--lsn", lsn, "--config", str(bridge.folder / "pgbridge.toml")], standalone_mode=False)
    bridge.catch_up()
    assert leaked(bridge.folder, "example.org") == []
    settings = config.load(bridge.folder / "pgbridge.toml")
    (subscription,) = settings.choose(name)
    (shown,) = [json.loads(line) for line in show_skipped(settings, subscription, lsn)][1:]
    assert shown["new"]["email"] == hashed("skipped@example.org")
    spark.sql(f"ALTER TABLE delta.`{bridge.path('people')}` DROP CONSTRAINT small").collect()
    more = {"public.people": Table(mask={"email": "sha256", "kept": "null"})}
    masked_since = subscription.model_copy(update={"tables": more})
    with pytest.raises(SkipError, match='column "kept" of table "public.people" had another mask, or none'):
        list(replay(settings, masked_since, lsn, started=lambda *_: nullcontext(fork(spark))))
    list(replay(settings, subscription, lsn, started=lambda *_: nullcontext(fork(spark))))
    assert [row["email"] for row in bridge.rows("people")] == [hashed("skipped@example.org")]


def test_definitions_that_change(publisher, memory_pipeline, salted):
    """A column that may be a masked one under another name stops the stream before anything is written."""
    publisher.execute(TABLES + "INSERT INTO people (id, email) VALUES (1, 'first@example.org')")
    tables = {"public.people": Table(mask={"email": "sha256", "wage": {"first": 1}})}
    bridge = memory_pipeline(target__mask_salt_file=salted, tables=tables)
    bridge.catch_up()

    def masks(**masks):
        given = {"public.people": Table(mask=masks)}
        bridge.subscription = bridge.subscription.model_copy(update={"tables": given})

    publisher.execute(
        "ALTER TABLE people ADD more int DEFAULT 7; ALTER TABLE people ALTER email TYPE varchar;"
        "INSERT INTO people (id, email) VALUES (2, 'second@example.org')"
    )
    bridge.catch_up()
    assert {row["email"] for row in bridge.rows("people")} == {hashed(f"{n}@example.org") for n in ("first", "second")}
    publisher.execute(
        "ALTER TABLE people RENAME email TO mail; INSERT INTO people (id, mail) VALUES (3, 'third@example.org')"
    )
    with pytest.raises(TargetError, match='does not have the masked column "email", but "mail"') as caught:
        bridge.catch_up()
    assert 'add "mail" to mask in tables."public.people"' in caught.value.hint
    masks(email="sha256", mail="sha256", wage={"first": 1})
    bridge.catch_up()
    third = {row["id"]: row["mail"] for row in bridge.rows("people")}
    assert third[3] == hashed("third@example.org")
    publisher.execute("ALTER TABLE people DROP wage; ALTER TABLE people ADD pay int; INSERT INTO people VALUES (4)")
    with pytest.raises(TargetError, match='does not have the masked column "wage", but "pay"'):
        bridge.catch_up()
    masks(email="sha256", mail="sha256", wage={"first": 1}, pay="none")
    bridge.catch_up()
    assert {row["id"] for row in bridge.rows("people")} == {1, 2, 3, 4}


def test_a_type_whose_text_changes(publisher, memory_pipeline):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b numeric(6, 2)); CREATE PUBLICATION pub FOR TABLE t")
    publisher.execute("INSERT INTO t VALUES (1, 1, 1)")
    bridge = memory_pipeline(tables={"public.t": Table(mask={"a": {"first": 9}, "b": {"first": 9}})})
    bridge.catch_up()
    publisher.execute("ALTER TABLE t ALTER a TYPE bigint; INSERT INTO t VALUES (2, 5000000000, 2)")
    bridge.catch_up()
    assert bridge.rows("t")[1] == {"id": 2, "a": "500000000", "b": "2.00"}
    publisher.execute("ALTER TABLE t ALTER b TYPE numeric(8, 3); INSERT INTO t VALUES (3, 3, 3)")
    with pytest.raises(NeedsResync, match=r"changed its type from numeric\(6,2\) to numeric\(8,3\)"):
        bridge.catch_up()


def test_masks_that_change_have_the_table_wait(publisher, memory_pipeline, salted):
    """So that values of both kinds do not mix; the others go on."""
    publisher.execute(
        TABLES + "INSERT INTO people (id, email) VALUES (1, 'a@example.org'); INSERT INTO bag VALUES ('b', 1)"
    )
    bridge = memory_pipeline(target__mask_salt_file=salted)
    bridge.catch_up()
    given = {"public.people": Table(mask={"email": "sha256"})}
    bridge.subscription = bridge.subscription.model_copy(update={"tables": given})
    publisher.execute("INSERT INTO people (id, email) VALUES (2, 'c@example.org'); INSERT INTO bag VALUES ('d', 2)")
    with pytest.raises(NeedsResync, match='mask or rename_columns of table "public.people" are others') as caught:
        bridge.catch_up()
    assert [row["id"] for row in bridge.rows("people")] == [1]
    assert len(bridge.rows("bag")) == 2
    type_in(bridge, caught.value.hint.rpartition(": ")[2])
    bridge.catch_up()
    assert {row["email"] for row in bridge.rows("people")} == {hashed("a@example.org"), hashed("c@example.org")}
    assert refresh.waiting(bridge.catalog, bridge.subscription.name) == []


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"emial": "null"}, 'no published column "emial"'),
        ({"Email": "null"}, 'no published column "Email"'),
        ({"id": "null"}, 'column "id" of table "public.people" identifies rows, and cannot be masked'),
    ],
)
def test_what_cannot_be_masked_is_said_before_the_slot_is_made(publisher, memory_pipeline, mask, message):
    publisher.execute(TABLES)
    bridge = memory_pipeline(tables={"public.people": Table(mask=mask)})
    with pytest.raises(TargetError, match=message):
        bridge.catch_up()
    assert publisher.query(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (bridge.subscription.slot_name,)
    ) == [(0,)]


def test_a_key_that_becomes_masked(publisher, memory_pipeline):
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL UNIQUE); CREATE PUBLICATION pub FOR TABLE t"
    )
    bridge = memory_pipeline(tables={"public.t": Table(mask={"code": {"first": 1}})})
    bridge.catch_up()
    publisher.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key; INSERT INTO t VALUES (1, 'secret')")
    with pytest.raises(TargetError, match='column "code" of table "public.t" identifies rows'):
        bridge.catch_up()


def test_names_that_a_dropped_column_had_and_names_that_are_swapped(publisher, memory_pipeline):
    """Over a restart, too; a rename onto the name of a column that was dropped is seen by the attribute numbers."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, email text, city text, n int); CREATE PUBLICATION pub FOR TABLE t"
    )
    bridge = memory_pipeline(tables={"public.t": Table(mask={"email": {"first": 1}})})
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (1, 'one', 'a', 1)")
    bridge.catch_up()
    publisher.execute(
        "ALTER TABLE t RENAME city TO tmp; ALTER TABLE t RENAME email TO city; ALTER TABLE t RENAME tmp TO email"
    )
    publisher.execute("INSERT INTO t VALUES (2, 'secret', 'b', 2)")
    with pytest.raises(TargetError, match='has its columns in another order, "city" among them'):
        bridge.catch_up()
    assert bridge.rows("t") == [{"id": 1, "email": "o", "city": "a", "n": 1}]


@pytest.mark.parametrize("lives", [1, 2])
def test_a_rename_onto_the_name_of_a_dropped_column(publisher, memory_pipeline, lives):
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, email text, city text, n int); CREATE PUBLICATION pub FOR TABLE t"
    )
    bridge = memory_pipeline(tables={"public.t": Table(mask={"email": {"first": 1}})})
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (1, 'one', 'a', 1)")
    bridge.catch_up()
    publisher.execute("ALTER TABLE t DROP city")
    if lives == 2:
        publisher.execute("INSERT INTO t VALUES (2, 'two', 2)")
        bridge.catch_up()
    publisher.execute("ALTER TABLE t RENAME email TO city; INSERT INTO t VALUES (3, 'secret', 3)")
    with pytest.raises((TargetError, ApplyError), match="masked") as caught:
        bridge.catch_up()
    assert 'add "city" to mask' in caught.value.hint
    assert "secret" not in str(bridge.rows("t"))
    given = Table(mask={"email": {"first": 1}, "city": {"first": 1}})
    bridge.subscription = bridge.subscription.model_copy(update={"tables": {"public.t": given}})
    with pytest.raises(NeedsResync, match="mask or rename_columns") as caught:  # the Delta table's own city is clear
        bridge.catch_up()
    type_in(bridge, caught.value.hint.rpartition(": ")[2])
    bridge.catch_up()
    assert [row["city"] for row in bridge.rows("t")] == (["o", "t", "s"] if lives == 2 else ["o", "s"])


def test_a_schema_with_a_dot_and_a_table_by_its_partitions(publisher, memory_pipeline):
    publisher.execute('CREATE SCHEMA "my.app"; CREATE TABLE "my.app".t (id int PRIMARY KEY, email text)')
    publisher.execute('CREATE PUBLICATION pub FOR TABLE "my.app".t; INSERT INTO "my.app".t VALUES (1, $$secret1$$)')
    bridge = memory_pipeline(tables={"my.app.t": Table(mask={"email": {"first": 1}})})
    bridge.catch_up()
    publisher.execute('INSERT INTO "my.app".t VALUES (2, $$secret2$$)')
    bridge.catch_up()
    assert [row["email"] for row in bridge.rows("my.app.t")] == ["s", "s"]


def test_a_masked_column_that_partitions(spark, publisher, pipeline, salted):
    """An empty text has a hash, which is a partition; where the mask leaves it empty it is NULL, or an error."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, h text, f text); CREATE PUBLICATION pub FOR TABLE t")
    publisher.execute("INSERT INTO t VALUES (1, '', 'x'), (2, 'b', 'y')")
    given = Table(mask={"h": "sha256", "f": {"first": 1}}, partition_by=["h", "f"])
    bridge = pipeline(target__mask_salt_file=salted, tables={"public.t": given}, unrepresentable="null")
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (3, '', '')")
    bridge.catch_up()
    assert sorted((row["id"], row["h"], row["f"]) for row in bridge.rows("t")) == [
        (1, hashed(""), "x"),
        (2, hashed("b"), "y"),
        (3, hashed(""), None),
    ]
    assert tables_of(verified(bridge))["public.t"]["equal"]
