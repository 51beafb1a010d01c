"""With sslmode=verify-full every kind of connection works, and a server that cannot prove who it is gets none."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from psycopg.conninfo import make_conninfo

from pgbridge.bridge.check.finding import passed
from pgbridge.bridge.check.server import check_server
from pgbridge.bridge.receive.connection import connect
from pgbridge.bridge.receive.copy_out import copy_out
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.server_facts import identify, read_facts
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.protocol.bulk.copy import CopyDecoder
from pgbridge.protocol.values.types import resolve
from tests.bridge.receive.streams import Stream, ids, insert
from tests.bridge.receive.tls import HOST, Authority, TlsFront


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    """The one that signed the server's certificate, and another of the same name."""
    folders = [tmp_path_factory.mktemp(name) for name in ("right", "wrong")]
    return [Authority(folder, "pgbridge test authority") for folder in folders]


@pytest.fixture(scope="module")
def front(authorities, postgresql_server):
    """The server, with TLS."""
    certificate, key = authorities[0].issue(HOST)
    with TlsFront(postgresql_server, certificate, key) as made:
        yield made


@pytest.fixture
def conninfo(publisher, front, authorities) -> str:
    """The publisher over TLS, in the mode that the documentation has."""
    return make_conninfo(
        publisher.conninfo,
        host=HOST,
        hostaddr="127.0.0.1",
        port=front.port,
        gssencmode="disable",
        sslmode="verify-full",
        sslrootcert=str(authorities[0].certificate),
    )


def refusal(conninfo: str, *, replication: bool = False) -> PublisherError:
    with pytest.raises(PublisherError) as caught:
        connect(conninfo, application_name="test", replication=replication)
    return caught.value


# --- what works -------------------------------------------------------------------------------------------------------


def test_publisher(conninfo, publisher, front):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    before = front.encrypted
    with Publisher(conninfo, application_name="test") as opened:
        assert [table.name for table in opened.tables(["p"])] == ["t"]
    assert front.encrypted == before + 1


def test_stream(conninfo, publisher, front, tmp_path):
    """A slot is created and streamed, with rows of more than a TLS record."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    before = front.encrypted
    stream = Stream(conninfo, f"{publisher.name}_slot", tmp_path / "spool")
    try:
        stream.start()
        insert(publisher, 1, 2)
        publisher.execute("INSERT INTO t SELECT n, repeat(n::text, 50_000) FROM generate_series(3, 6) n")
        assert ids(stream.take(3)) == [[1], [2], [3, 4, 5, 6]]
    finally:
        stream.receiver.stop()
    assert front.encrypted == before + 2


def test_copy(conninfo, publisher):
    """The bytes are read by libpq: the socket's are encrypted."""
    publisher.execute("CREATE TABLE t AS SELECT n, repeat('x', 1000) FROM generate_series(1, 2000) n")
    decoder = CopyDecoder([resolve(23, -1), resolve(25, -1)], ["n", "x"])
    with closing(connect(conninfo, application_name="test")) as connection:
        parts = copy_out(connection, "COPY public.t TO STDOUT (FORMAT binary)", 2)
        rows = sum(decoder.decode(messages).num_rows for messages in parts)
    decoder.finish()
    assert rows == 2000


def test_check_says_that_tls_is_in_use(conninfo, publisher, pgbridge, tmp_path, monkeypatch):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    monkeypatch.setattr("pgbridge.bridge.check.machine.check_java", lambda _: passed("Java", "17"))
    lines = [
        "[subscription.shop]", f"connection = {json.dumps(conninfo)}", 'publications = ["pub"]', 'warehouse = "lake"'
    ]  # fmt: skip
    (tmp_path / "pgbridge.toml").write_text("\n".join(lines))
    found = json.loads(pgbridge("check", "--json").out)["subscriptions"][0]["findings"]
    levels = {one["subject"]: (one["level"], one["message"]) for one in found}
    assert levels["TLS"] == ("pass", "sslmode=verify-full")
    assert {levels[subject][0] for subject in ("connection", "replication", "public.t")} == {"pass"}


@pytest.mark.parametrize("sslmode", ["prefer", "require", "verify-ca"])
def test_check_warns_of_a_weaker_mode(conninfo, sslmode):
    facts = read_facts(make_conninfo(conninfo, sslmode=sslmode), application_name="test")
    (found,) = [one for one in check_server(facts, slot_exists=False, running=False) if one.subject == "TLS"]
    assert found.message == f"encrypted, but with sslmode={sslmode} the server's name is not verified"


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replication", [False, True])
def test_another_authority(conninfo, authorities, replication):
    """Somebody in between, or a certificate that was renewed by another one: no try in a second will help."""
    error = refusal(make_conninfo(conninfo, sslrootcert=str(authorities[1].certificate)), replication=replication)
    assert "certificate verify failed" in str(error)
    assert error.hint.startswith("sslrootcert must have the certificate of the authority that signed the server's")
    assert not error.retry


def test_another_name(conninfo):
    error = refusal(make_conninfo(conninfo, host="replica.pgbridge.test"))
    assert f'server certificate for "{HOST}" does not match host name "replica.pgbridge.test"' in str(error)
    assert error.hint.startswith("set host to a name in the server's certificate")
    assert not error.retry


def test_no_file_of_the_authority(conninfo, tmp_path):
    error = refusal(make_conninfo(conninfo, sslrootcert=str(tmp_path / "none.pem")))
    assert f'root certificate file "{tmp_path}/none.pem" does not exist' in str(error)
    assert error.hint.startswith("set sslrootcert to the certificate")
    assert not error.retry


def test_a_file_of_the_authority_that_is_none(conninfo, tmp_path):
    (tmp_path / "empty.pem").write_text("")
    error = refusal(make_conninfo(conninfo, sslrootcert=str(tmp_path / "empty.pem")))
    assert "could not read root certificate file" in str(error)
    assert error.hint.startswith("set sslrootcert to the certificate")
    assert not error.retry


def test_a_server_without_tls(publisher):
    server = publisher.server
    if server.embedded is None:
        pytest.skip("another server may have TLS")
    error = refusal(f"host=127.0.0.1 port={server.port} user={server.user} sslmode=verify-full sslrootcert=system")
    assert "server does not support SSL, but SSL was required" in str(error)
    assert error.hint.startswith("turn on ssl on the server")
    assert not error.retry


def test_a_key_that_others_can_read(conninfo, authorities):
    """For a server that asks for a client's certificate."""
    certificate, key = authorities[0].issue("replicator")
    key.chmod(0o644)
    error = refusal(make_conninfo(conninfo, sslcert=str(certificate), sslkey=str(key)))
    assert "private key file" in str(error)
    assert error.hint.startswith("check sslcert and sslkey")
    assert not error.retry


@pytest.mark.parametrize("sslmode", ["verify-fully", "require"])
def test_a_wrong_parameter(conninfo, sslmode):
    """`system` is only allowed with verify-full."""
    error = refusal(make_conninfo(conninfo, sslrootcert="system", sslmode=sslmode))
    assert error.hint
    assert not error.retry


def test_identify_refuses_too(conninfo, authorities):
    """What `check` and the stream open is no other way in."""
    with pytest.raises(PublisherError, match="certificate verify failed"):
        identify(make_conninfo(conninfo, sslrootcert=str(authorities[1].certificate)), application_name="test")
