"""What `master` and the driver's memory may be, by Spark's launcher or Spark Connect. Pure.

Source: Spark's SparkSubmit ("Master must either be yarn or start with spark, k8s, or local"), SparkContext's
SparkMasterRegex, Utils.extractHostPortFromSparkUrl and Utils.checkAndGetK8sMasterUrl. Spark itself refuses the others
after it has started a JVM, and says so in a log.
"""

from __future__ import annotations

import re
from typing import Final

CONNECT: Final = "sc://"
"""What the URL of a Spark Connect server begins with."""

_LOCAL: Final = re.compile(r"local(?:\[([0-9]+|\*)(?:\s*,\s*[0-9]+)?\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*[0-9]+\s*,\s*[0-9]+\s*,\s*[0-9]+\s*\]")
_HOST: Final = r"(?:[^\s:/;@,\[\]]+|\[[0-9A-Fa-f:]+\])"
_HOST_AND_PORT: Final = rf"{_HOST}:[0-9]{{1,5}}"
_STANDALONE: Final = re.compile(rf"spark://{_HOST_AND_PORT}(?:,{_HOST_AND_PORT})*")
_KUBERNETES: Final = re.compile(r"k8s://(?:https?://)?[^\s:/]+(?::[0-9]{1,5})?(?:/\S*)?")
_SPARK_CONNECT: Final = re.compile(rf"sc://{_HOST}(?::[0-9]{{1,5}})?(?:/(?:;\S*)?)?")

_XMX: Final = re.compile(r"(\d+)([kmgtKMGT])")
_LEAST_HEAP_BYTES: Final = 450 << 20

_FORMS: Final = (
    '"local[N]", "local[*]", "spark://HOST:PORT", "yarn", "k8s://HOST:PORT", or "sc://HOST:PORT" for Spark Connect'
)


def check_master(master: str) -> None:
    """Raise if Spark does not know a master.

    Raises:
        ValueError: It does not; the message has the forms that it knows, and no token.
    """
    patterns = (_LOCAL, _LOCAL_CLUSTER, _STANDALONE, _KUBERNETES, _SPARK_CONNECT)
    if master != "yarn" and not any(pattern.fullmatch(master) for pattern in patterns):
        shown = "" if ";" in master or "@" in master else f', not "{master}"'
        raise ValueError(f"Spark does not know this master: it must be {_FORMS}{shown}")
    if local_threads(master) == 0:
        raise ValueError(f'"{master}" has no thread to run a task: Spark needs local[1] at least')


def local_threads(master: str) -> int | None:
    """How many tasks run at once in the driver; -1 for as many as there are cores, None if they run elsewhere."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return None
    return -1 if match[1] == "*" else int(match[1] or 1)


def heap_bytes(memory: str) -> int:
    """The size of a JVM's heap (`spark.driver.memory`).

    Raises:
        ValueError: It is no size of the JVM's option -Xmx, or Spark refuses it (UnifiedMemoryManager).
    """
    size = _XMX.fullmatch(memory)
    if size is None:
        raise ValueError(f'spark.driver.memory must be a number with k, m, g or t, as in "2g", not "{memory}"')
    heap = int(size[1]) << {"k": 10, "m": 20, "g": 30, "t": 40}[size[2].lower()]
    if heap < _LEAST_HEAP_BYTES:
        raise ValueError(f'spark.driver.memory must be at least "450m", Spark\'s own least, not "{memory}"')
    return heap
