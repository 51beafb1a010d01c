"""What is shown of Spark's errors."""

from __future__ import annotations

from bridge.apply.delta.spark_errors import summary


def test_summary_keeps_what_was_raised_in_a_python_worker():
    error = Exception(
        "[X] An exception was thrown:\nTraceback (most recent call last):\n  File x, line 1, in read\n"
        "bridge.errors.TargetError: column \"d\": value 'infinity' cannot be represented\nHINT:  do this\n"
    )
    assert summary(error) == "column \"d\": value 'infinity' cannot be represented\nHINT:  do this"


def test_summary_finds_what_was_raised_in_a_python_worker_below_java_frames():
    """The form of a Py4JJavaError, which a write raises."""
    raised = "column \"d\": value 'infinity' cannot be represented\nHINT:  do this"
    error = Exception(
        "An error occurred while calling o12.save.\n: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task\n"
        "\tat org.x.y(Z.scala:1)\nCaused by: org.apache.spark.api.python.PythonException: Traceback (most recent):\n"
        f'  File "copy.py", line 1, in read\n    raise TargetError(\nbridge.errors.TargetError: {raised}\n'
        " SQLSTATE: 38000\n\tat org.x.y(Z.scala:1)\n\t... 1 more\n"
    )
    assert summary(error) == raised
    java = "An error occurred while calling o12.save.\n: java.io.IOException: no space\n\tat org.x.y(Z.scala:1)"
    assert summary(Exception(java)) == "java.io.IOException: no space"


def test_summary_cuts_stack_traces_and_length():
    assert summary(Exception("[CODE] what\n\tat org.apache…\n\tat …")) == "[CODE] what"
    assert len(summary(Exception("x" * 5000))) < 700


# --- targets that cannot be written -----------------------------------------------------------------------------------
