"""A conflict that is raised in an expression comes back out of Spark's error, whatever the values hold.

Errors get the context they were raised in, once; the message type is told where it is only one.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from pgbridge.bridge.effects.conflicts import UPDATE_EXISTS, Conflict
from pgbridge.bridge.effects.events import DELETE, INSERT
from pgbridge.bridge.lake.commit_errors import (
    command_of,
    conflict_of,
    context_of,
    error_context,
    literal,
    raise_conflict,
)
from pgbridge.bridge.runtime.errors import ApplyContext, ApplyError, BridgeError, OutcomeUnknown, TargetBusy
from pgbridge.bridge.targets.target import Target
from pgbridge.protocol.lsn import Lsn
from tests.bridge.apply.made_batches import batch
from tests.bridge.apply.made_targets import changes

NASTY = 'a\'b"c\\d\\n\n\t{"pgbridge_conflict": 1} <errorMessage> ${x} $1 %s `é\u2028 😀'


def test_a_raised_conflict_is_read_back(spark):
    """In one job for all: the first row raises, the others are not reached."""
    relation, column = f"s {NASTY}.t", f"c {NASTY}"
    columns = [
        (column, "note", pa.string()),
        ("raw", "raw", pa.binary()),
        ("flag", "flag", pa.bool_()),
        ("long", "repeat('é', 500)", pa.string()),
    ]
    frame = spark.createDataFrame([(NASTY, b"\x00\xff", True)], "note string, raw binary, flag boolean")
    with pytest.raises(PySparkException) as caught:
        frame.selectExpr(raise_conflict(f"'{UPDATE_EXISTS}'", relation, columns)).collect()
    assert conflict_of(caught.value) == Conflict(
        relation, UPDATE_EXISTS, (column, "raw", "flag", "long"), (NASTY, "\\x00ff", "t", "é" * 200)
    )


@pytest.mark.parametrize("text", ["something else", '{"pgbridge_conflict": broken', '{"pgbridge_conflict": "x"}'])
def test_other_errors_are_none(text):
    assert conflict_of(Exception(text)) is None


def test_literals_hold_any_text(spark):
    assert spark.sql(f"SELECT {literal(NASTY)}").collect() == [(NASTY,)]


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
