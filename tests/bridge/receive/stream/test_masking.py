"""Values of a stream's messages are masked before they are kept, whatever comes between; pure."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from random import Random

import pytest

from pgbridge.bridge.publication.shape import Mask
from pgbridge.bridge.receive.stream.masking import StreamMasks
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec import messages as m, pgoutput
from pgbridge.protocol.codec.walsender import HEADER_BYTES
from pgbridge.protocol.errors import MalformedMessage
from pgbridge.protocol.lsn import Lsn

TEXT, NULL, UNCHANGED = m.ValueKind.TEXT, m.Value(m.ValueKind.NULL), m.Value(m.ValueKind.UNCHANGED_TOAST)
FIRST = {"b": Mask("first", characters=1)}
MASKS = {"public.t": FIRST, "public.u": {"a": Mask("null"), "b": Mask("text", text="hidden")}}


def text(value):
    return m.Value(TEXT, value.encode())


def relation(relid, name, *columns, key=("a",), identity="d"):
    return m.Relation(
        relid, "public", name, identity, tuple(m.Column(column, 25, -1, is_key=column in key) for column in columns)
    )


T, V = relation(1, "t", "a", "b", "c"), relation(3, "v", "a", "b", "c")
U = relation(2, "u", "a", "b", "c", key=("c",))


def in_xlog_data(*messages):
    """Each message of pgoutput as it comes."""
    return [b"w" + bytes(HEADER_BYTES - 1) + pgoutput.encode(message) for message in messages]


def masked(masking, *messages):
    """What comes of messages that arrive together."""
    return masking.masked(MessageArray.of(in_xlog_data(*messages))).messages()


def masking(known=None, names=None):
    return StreamMasks(MASKS, names or {}, known or {})


def test_the_tuples_of_each_kind_of_message():
    """NULL stays NULL, what was not sent is not made up, and other tables are as they were."""
    given = [
        T,
        U,
        V,
        m.Insert(1, (text("k"), text("secret"), text("c"))),
        m.Insert(1, (text("k"), NULL, text("c"))),
        m.Update(1, (text("k"), UNCHANGED, text("c"))),
        m.Update(1, (text("n"), text(""), text("c")), key_tuple=(text("k"), NULL, NULL)),
        m.Delete(1, key_tuple=(text("n"), NULL, NULL)),
        m.Insert(2, (text("key"), text("secret"), NULL)),
        m.Insert(3, (text("k"), text("secret"), text("c"))),
    ]
    expected = [
        T,
        U,
        V,
        m.Insert(1, (text("k"), text("s"), text("c"))),
        m.Insert(1, (text("k"), NULL, text("c"))),
        m.Update(1, (text("k"), UNCHANGED, text("c"))),
        m.Update(1, (text("n"), text(""), text("c")), key_tuple=(text("k"), NULL, NULL)),
        m.Delete(1, key_tuple=(text("n"), NULL, NULL)),
        m.Insert(2, (NULL, text("hidden"), NULL)),
        m.Insert(3, (text("k"), text("secret"), text("c"))),
    ]
    assert masked(masking(), *given) == in_xlog_data(*expected)


def test_old_rows_are_masked():
    full = relation(1, "t", "a", "b", identity="f", key=("a", "b"))
    update = m.Update(1, (text("1"), text("new")), old_tuple=(text("1"), text("old")))
    delete = m.Delete(1, old_tuple=(text("1"), text("new")))
    assert masked(masking(), full, update, delete) == in_xlog_data(
        full,
        m.Update(1, (text("1"), text("n")), old_tuple=(text("1"), text("o"))),
        m.Delete(1, old_tuple=(text("1"), text("n"))),
    )


class Reference:
    """Masks one message after the other, decoded."""

    def __init__(self):
        self.session, self.streams, self.xid, self.number = {}, {}, None, 0

    def masked(self, message):
        match message:
            case m.StreamStart():
                self.xid = message.xid
            case m.StreamStop():
                self.xid = None
            case m.Relation():
                self.number += 1
                announced = self.session if self.xid is None else self.streams.setdefault(self.xid, {})
                announced[message.relation_id] = self.number, message
            case m.StreamCommit():  # what was announced since outside of the transaction is newer
                for relid, announced in self.streams.pop(message.xid, {}).items():
                    self.session[relid] = max(announced, self.session.get(relid, announced), key=itemgetter(0))
            case m.StreamAbort() | m.StreamPrepare():  # of a subtransaction, too: the server announces again
                self.streams.pop(message.xid, None)
            case m.Insert() | m.Update() | m.Delete():
                _, known = {**self.session, **self.streams.get(self.xid, {})}[message.relation_id]
                of_table = MASKS.get(f"{known.namespace}.{known.name}", {})

                def of(values):
                    if values is None:
                        return None
                    named = zip(known.columns, values, strict=True)
                    return tuple(
                        value
                        if value.kind is not TEXT or column.name not in of_table
                        else NULL
                        if (shown := of_table[column.name].of(value.data)) is None
                        else m.Value(TEXT, shown)
                        for column, value in named
                    )

                fields = [name for name in ("new_tuple", "old_tuple", "key_tuple") if hasattr(message, name)]
                return replace(message, **{name: of(getattr(message, name)) for name in fields})
        return message


def random_stream(random, count):
    """Transactions in turn, streamed and not, with definitions that change, also within those that are rolled back."""

    def define(relid, xid):
        others = {*"abc", *random.sample("xyde", random.randrange(5))}
        names = [name for name in "xyabcde" if name in others]
        defined = relation(relid, "tuv"[relid - 1], *names, identity="f", key=tuple(names))
        return replace(defined, xid=xid)

    def values(columns):
        return tuple(
            random.choice([NULL, UNCHANGED, text("x" * random.randrange(4)), text("é9")]) for _ in range(columns)
        )

    def old(columns):
        return tuple(NULL if value is UNCHANGED else value for value in values(columns))

    def row(relid, columns, xid):
        match random.randrange(4):
            case 0:
                return m.Insert(relid, old(columns), xid)
            case 1:
                return m.Update(relid, values(columns), xid=xid)
            case 2:
                return m.Update(relid, values(columns), old_tuple=old(columns), xid=xid)
            case _:
                return m.Delete(relid, old_tuple=old(columns), xid=xid)

    known: dict[int, tuple[int, int]] = {}  # the number of the definition, and of its columns
    streamed: dict[int, dict[int, tuple[int, int]]] = {}
    number = 0
    for _ in range(count):
        xid = random.choice([None, 7, 8])
        if xid is not None and xid in streamed and random.randrange(3) == 0:
            ended = streamed.pop(xid)
            match random.randrange(4):
                case 0:
                    numbers = {relid: max(both, known.get(relid, both)) for relid, both in ended.items()}
                    known |= numbers
                    yield m.StreamCommit(xid, 0, Lsn(1), Lsn(2), 3)
                case 1:
                    yield m.StreamPrepare(0, Lsn(1), Lsn(2), 3, xid, "gid")
                case _:
                    yield m.StreamAbort(xid, random.choice([xid, xid + 100]))
            continue
        own = known if xid is None else streamed.setdefault(xid, {})
        yield m.Begin(Lsn(1), 0, 1) if xid is None else m.StreamStart(xid, first_segment=True)
        for relid in random.choices((1, 2, 3), k=random.randrange(1, 6)):
            if relid not in (own | known) or random.randrange(3) == 0:
                defined = define(relid, xid)
                number += 1
                own[relid] = number, len(defined.columns)
                yield defined
            yield from (row(relid, {**known, **own}[relid][1], xid) for _ in range(random.randrange(4)))
        yield m.Commit(0, Lsn(1), Lsn(2), 3) if xid is None else m.StreamStop()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_between_and_however_it_is_cut(seed):
    random = Random(seed)
    given = list(random_stream(random, 40))
    reference, under_test = Reference(), masking()
    expected = in_xlog_data(*map(reference.masked, given))
    came = []
    while given:
        size = random.randrange(1, 30)
        came += masked(under_test, *given[:size])
        del given[:size]
    assert came == expected


def test_keepalives_and_what_is_no_message_of_pgoutput_are_left_alone():
    keepalive = b"k" + bytes(17)
    rows = in_xlog_data(T, m.Insert(1, (text("k"), text("secret"), NULL)))
    came = masking().masked(MessageArray.of([keepalive, *rows, keepalive, b"w"])).messages()
    assert came == [keepalive, *in_xlog_data(T, m.Insert(1, (text("k"), text("s"), NULL))), keepalive, b"w"]
    assert not len(masking().masked(MessageArray.of()))


def test_a_table_that_was_renamed_is_masked_under_its_new_name():
    renamed = relation(1, "renamed", "a", "b", "c")
    given = renamed, m.Insert(1, (text("k"), text("secret"), NULL))
    assert masked(masking(names={1: "public.t"}), *given)[1:] == in_xlog_data(m.Insert(1, (text("k"), text("s"), NULL)))
    assert masked(masking(), *given) == in_xlog_data(*given)


@pytest.mark.parametrize(
    ("known", "columns", "refused"),
    [
        ("abc", "ac", None),  # it was dropped
        ("abc", "acd", '"b", but "d"'),
        ("ac", "acd", None),  # it was dropped before
        ("abc", "abcd", None),
        (None, "ac", None),  # nothing is known of it
    ],
)
def test_a_column_that_may_be_a_masked_one_under_another_name(known, columns, refused):
    defined = relation(1, "t", *columns)
    of_table = masking({} if known is None else {1: known})
    if refused is None:
        assert masked(of_table, defined) == in_xlog_data(defined)
        return
    with pytest.raises(TargetError, match=f'"public.t" does not have the masked column {refused}'):
        masked(of_table, defined)


def test_columns_in_another_order_may_be_masked_ones_under_other_names():
    """Names were swapped: the masked column is where another one was."""
    with pytest.raises(TargetError, match='columns in another order, "c" among them, which may be a masked one'):
        masked(masking({1: "abc"}), relation(1, "t", "a", "c", "b"))
    assert masked(masking({1: "abcd"}), relation(1, "t", "a", "b", "d"))


def test_a_definition_that_was_rolled_back_is_not_the_one_before():
    """A streamed transaction adds `d`, and is rolled back; the `d` that comes later may be `b` under another name."""
    under_test = masking({1: "abc"})
    added = replace(relation(1, "t", "a", "b", "c", "d"), xid=7)
    masked(under_test, m.StreamStart(7, first_segment=True), added, m.StreamStop(), m.StreamAbort(7, 7))
    with pytest.raises(TargetError, match='"b", but "d"'):
        masked(under_test, relation(1, "t", "a", "c", "d"))


def test_what_cannot_be_masked_stops_the_stream():
    with pytest.raises(TargetError, match='column "b" of table "public.t" identifies rows'):
        masked(masking(), relation(1, "t", "a", "b", key=("b",)))
    binary = m.Insert(1, (text("k"), m.Value(m.ValueKind.BINARY, b"1"), NULL))
    with pytest.raises(MalformedMessage, match='column "b" is masked, but its values come in binary form'):
        masked(masking(), T, binary)
    with pytest.raises(MalformedMessage, match="expected a tuple of 3 columns"):
        masked(masking(), T, m.Insert(1, (text("k"), text("secret"))))
