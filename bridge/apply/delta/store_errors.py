"""Says what to do about errors of Hadoop's S3 client, and of catalogs, by the text of their exceptions."""

from __future__ import annotations

import re
from typing import Final

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
_HINTS: Final = (
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
    return next((hint for pattern, hint in _HINTS if re.search(pattern, text)), "")


def catalog_hint(error: BaseException) -> str:
    """Return what an operator can do about an error of a catalog."""
    if "Derby" in str(error):
        return "Derby's files belong to one JVM at a time: end the other one, or use a metastore that is a server"
    return "see the settings of the catalog in [spark.conf], and what its user may do there"
