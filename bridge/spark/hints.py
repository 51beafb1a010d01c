"""Says Spark's errors to people: the message without stack traces, and what an operator can do about it.

The hints are for errors of executors, of Hadoop's S3 client and of catalogs, by the text of their exceptions.
"""

from __future__ import annotations

import re
from typing import Final

from bridge.spark.outcome import root_text
from bridge.targets.location import quoted, sql_name

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


_ENDPOINT: Final = "spark.hadoop.fs.s3a.endpoint"

_CREDENTIALS: Final = (
    "give pgbridge's process AWS credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in its environment, a "
    "profile in its user's ~/.aws, or a role of its machine"
)
_REFUSED: Final = (
    "S3 refuses pgbridge's credentials, or its policy does: it needs s3:ListBucket on the bucket, and on the "
    "warehouse's objects s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload"
)
_AWAY: Final = (
    "UnknownHostException|ConnectException|ConnectTimeoutException|SocketTimeoutException|NoRouteToHostException"
    "|ApiCallTimeout|Unable to execute HTTP request|SlowDown|Status Code: 5[0-9][0-9]"
)
_STORE_HINTS: Final = (
    (
        "NoSuchBucket|UnknownStoreException",
        f"create the bucket, or correct warehouse; of another store than AWS, {_ENDPOINT} in [spark.conf]",
    ),
    ("NoAuthWithAWSException|Unable to load credentials", _CREDENTIALS),
    (r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|Status Code: 40[13]\b", _REFUSED),
    ("Unable to load region", "set AWS_REGION, or spark.hadoop.fs.s3a.endpoint.region in [spark.conf]"),
    (_AWAY, f"S3 does not answer, or not as it should: check the network, and {_ENDPOINT} in [spark.conf]"),
    ('No FileSystem for scheme "s3n?"', "Hadoop's client has another name for S3: write s3a://… as warehouse"),
    (
        r"Class org\.apache\.hadoop\.fs\.s3a\.\S+ not found",
        "Spark was started without S3: restart the daemon; a Spark of your own needs hadoop-aws",
    ),
)


def store_hint(error: BaseException) -> str:
    """Return what an operator can do about an error of the object store; empty for other errors."""
    text = str(error)
    if "s3a" not in text and "scheme" not in text:
        return ""
    return next((hint for pattern, hint in _STORE_HINTS if re.search(pattern, text)), "")


def catalog_hint(error: BaseException) -> str:
    """Return what an operator can do about an error of a catalog."""
    if "Derby" in str(error):
        return "Derby's files belong to one JVM at a time: end the other one, or use a metastore that is a server"
    return "see the settings of the catalog in [spark.conf], and what its user may do there"


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

_EXECUTOR_HINTS: Final = (
    (r'Cannot run program "(?P<found>[^"]+)"', _NO_PYTHON),
    (r"No module named '|PACKAGE_NOT_INSTALLED", _NO_LIBRARY),
    ("PYTHON_VERSION_MISMATCH", _OTHER_VERSION),
    (_NO_SUCH_CLASS, _NO_CLASS),
    (_LOSSES, _LOST),
)


def executor_hint(error: BaseException) -> str:
    """Return what an operator can do about an error of Spark's executors; empty for other errors."""
    text = str(error)
    for pattern, hint in _EXECUTOR_HINTS:
        if match := re.search(pattern, text):
            return hint.format(**match.groupdict())
    return ""


_CHECK: Final = re.compile(r"CHECK constraint (?P<name>.+?) \(.*\) violated by row", re.DOTALL)
_NOT_NULL: Final = re.compile(
    r"NOT NULL constraint violated for column: (?P<name>.+?)\.?$"
    r"|Column (?P<missing>.+?), which has a NOT NULL constraint,",
    re.MULTILINE,
)


def constraint_hint(error: BaseException, location: str) -> str:
    """Return what an operator can do about a row that a constraint of a Delta table refuses; empty for other errors."""
    what = "the Delta table has a constraint that a published row does not meet. To drop it,"
    if check := _CHECK.search(str(error)):
        return f"{what} run in Spark: ALTER TABLE {sql_name(location)} DROP CONSTRAINT {quoted(check['name'])}"
    if column := _NOT_NULL.search(str(error)):
        name = quoted(column["name"] or column["missing"])
        return f"{what} run in Spark: ALTER TABLE {sql_name(location)} ALTER COLUMN {name} DROP NOT NULL"
    return ""
