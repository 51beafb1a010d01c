"""Errors get the context they were raised in, once; the message type is told where it is only one."""

import pytest
from py4j.protocol import Py4JNetworkError

from bridge.effects.events import DELETE, INSERT
from bridge.lake.error_context import command_of, context_of, error_context
from bridge.runtime.errors import ApplyContext, ApplyError, BridgeError, OutcomeUnknown, TargetBusy
from bridge.targets.target import Target
from protocol.lsn import Lsn
from tests.bridge.apply.made_batches import batch
from tests.bridge.apply.made_targets import changes

CONTEXT = ApplyContext("pgbridge_sub", Lsn(0x18), 7, "public.t")
TARGET = Target("public", "t", "/lake/public/t", ())


def raised(error):
    with pytest.raises(type(error) if isinstance(error, TargetBusy) else ApplyError) as caught, error_context(CONTEXT):
        raise error
    return caught.value


def test_errors_get_the_context():
    found = raised(BridgeError("no", hint="do"))
    assert (found.message, found.hint, found.context) == ("no", "do", CONTEXT)
    assert (raised(ValueError("no")).message, raised(ValueError("no")).context) == ("no", CONTEXT)
    for lost in (Py4JNetworkError("gone"), ConnectionError("gone")):
        assert isinstance(raised(lost), OutcomeUnknown)


def test_errors_that_have_one_keep_it():
    for error in (ApplyError("no", ApplyContext("o", Lsn(1))), TargetBusy("busy")):
        assert raised(error) is error


def test_the_message_type_where_it_is_only_one():
    one, other = (INSERT, None, 1, "a"), (DELETE, 1, None, None)
    assert command_of(batch(), changes(TARGET, one, one)) == "INSERT"
    assert command_of(batch(), changes(TARGET, one, other)) is None
    assert command_of(batch(), changes(TARGET, truncated=True)) == "TRUNCATE"
    assert command_of(batch(), changes(TARGET, one, truncated=True)) is None
    assert str(context_of("o", batch(), changes(TARGET, other))).startswith(
        'processing remote data for replication origin "o" during message type "DELETE"'
    )
