"""Summarizes Spark's errors for people: the message without stack traces."""

from __future__ import annotations

import re

from bridge.spark_outcome import root_text

_MESSAGE_CHARACTERS = 600
_RAISED = re.compile(r"^[A-Za-z_][\w.]*: (.+)", re.MULTILINE)  # the line under a Python traceback
_AROUND = re.compile(r"\AAn error occurred while calling \S+\n: |\s*SQLSTATE: 38000\s*\Z")  # py4j's words, and Spark's


def summary(error: Exception) -> str:
    """An error's message without stack traces; for an error of a Python worker, the message that was raised there."""
    text = root_text(error)
    last_frame = text.rfind("\n  File ")
    if last_frame >= 0 and (raised := _RAISED.search(text, last_frame)):
        text = text[raised.start(1) :]
    text = text.split("\n\tat ", maxsplit=1)[0].split("JVM stacktrace:", maxsplit=1)[0]
    text = _AROUND.sub("", text).strip() or type(error).__name__
    return text if len(text) <= _MESSAGE_CHARACTERS else text[:_MESSAGE_CHARACTERS] + " …"
