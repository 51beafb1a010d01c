"""Says what to do about errors of Spark's executors, by the text of Spark's exceptions."""

from __future__ import annotations

import re
from typing import Final

_OTHERS: Final = (
    'name another Python by "spark.pyspark.python" in [spark.conf], or send a packed environment by spark.archives '
    "(docs/clusters.md)"
)
_NO_PYTHON: Final = (
    f"Spark's executors have no Python at {{found}}: install one there on every machine of the cluster, {_OTHERS}"
)
_NO_LIBRARY: Final = (
    "the Python of Spark's executors lacks a library: install numpy, pandas, pyarrow and psycopg[binary] in it on "
    f"every machine of the cluster, {_OTHERS}"
)
_OTHER_VERSION: Final = (
    f"the Python of Spark's executors must have the same minor version as pgbridge's: install that, {_OTHERS}"
)
_NO_CLASS: Final = "Spark's executors lack {found}: give the cluster the jars that the daemon has (docs/clusters.md)"
_LOST: Final = (
    "an executor was lost, and pgbridge tries again by itself. If this goes on, look at the executors' logs: mostly "
    "one runs out of memory (spark.executor.memory, spark.executor.memoryOverhead)"
)
_LOSSES: Final = (
    "ExecutorLostFailure|Checkpoint block .{1,200} not found|MetadataFetchFailed|Executor heartbeat timed out"
    "|Lost executor"
)
_NO_SUCH_CLASS: Final = r"ClassNotFoundException: (?P<found>(?:io\.delta|org\.apache)\.\S+)"

_HINTS: Final = (
    (r'Cannot run program "(?P<found>[^"]+)"', _NO_PYTHON),
    (r"No module named '|PACKAGE_NOT_INSTALLED", _NO_LIBRARY),
    ("PYTHON_VERSION_MISMATCH", _OTHER_VERSION),
    (_NO_SUCH_CLASS, _NO_CLASS),
    (_LOSSES, _LOST),
)


def executor_hint(error: BaseException) -> str:
    """Return what an operator can do about an error of Spark's executors; empty for other errors."""
    text = str(error)
    for pattern, hint in _HINTS:
        if found := re.search(pattern, text):
            return hint.format(**found.groupdict())
    return ""
