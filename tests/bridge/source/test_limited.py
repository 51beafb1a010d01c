"""PySpark's own Python workers around the source: what the JVM sends and gets, without a JVM."""

from __future__ import annotations

import io
import json

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.serializers import read_int, write_with_length
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.datasource_internal import _streamReader
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

from pgbridge.bridge.source.data_source import PgoutputSource


def sent_to(*arguments):
    """What the JVM sends with a call."""
    sent = io.BytesIO()
    for argument in arguments:
        write_with_length(json.dumps(argument).encode(), sent)
    sent.seek(0)
    return sent


def test_a_batch_through_the_planner_and_a_task(source):
    """Offsets as JSON, the source pickled as it is for workers, and PySpark's check of the Arrow schema."""
    options = {"connection": source.publisher.conninfo, "publication": "shop", "slot": source.slot}
    pickled = cloudpickle.loads(cloudpickle.dumps(PgoutputSource))(CaseInsensitiveDict(options))
    schema = pickled.schema()
    reader = _streamReader(cloudpickle.loads(cloudpickle.dumps(pickled)), schema)
    source.readers.append(reader)
    command = io.BytesIO()
    write_read_func_and_partitions(
        command,
        reader=reader,
        data_source=pickled,
        schema=schema,
        max_arrow_batch_size=10_000,
        binary_as_bytes=True,
    )
    command.seek(0)
    read, _ = cloudpickle.loads(command.read(read_int(command)))
    assert read_int(command) == 0

    answer = io.BytesIO()
    runner.check_support_func(reader, answer)
    answer.seek(0)
    assert read_int(answer) == runner.SUPPORTS_ADMISSION_CONTROL | runner.SUPPORTS_TRIGGER_AVAILABLE_NOW
    answer = io.BytesIO()
    runner.initial_offset_func(reader, answer)
    start = _text(answer)
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1.5), (2, NULL, NULL)")
    answer = io.BytesIO()
    runner.get_default_read_limit_func(reader, answer)
    limit = _text(answer)
    assert limit == {"max_bytes": 1 << 30, "_type": "ReadMaxBytes"}
    answer = io.BytesIO()
    runner.latest_offset_admission_control_func(reader, sent_to(start, limit), answer)
    end = _text(answer)
    answer = io.BytesIO()
    runner.partitions_func(reader, pickled, schema, 10_000, sent_to(start, end), answer)
    answer.seek(0)
    assert read_int(answer) == 1
    partition = answer.read(read_int(answer))
    task = [pa.RecordBatch.from_arrays([pa.array([partition], pa.binary())], ["partition"])]
    rows = [row for batch in read(iter(task)) for row in batch.to_pylist()]
    assert [row["public.orders"]["new"]["id"] for row in rows] == [1, 2]
    runner.commit_func(reader, sent_to(end), io.BytesIO())


def _text(answer):
    answer.seek(0)
    return json.loads(answer.read(read_int(answer)))
