"""Sessions on a Spark Connect server; `tests/faults/test_connect.py` has what a daemon does with them."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own: a process has sessions of one kind."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


def test_a_missing_package_is_named():
    done = run(
        "import sys; sys.modules['grpc'] = None\n"
        "from pgbridge.bridge.spark import session\n"
        "try: session.start('sc://127.0.0.1:1', {})\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    assert "SparkLost Spark Connect needs packages that are not installed" in done.stdout, done.stderr
    assert "install them: pip install 'googleapis-common-protos" in done.stdout


def test_a_server_that_is_not_there():
    done = run(
        "from pgbridge.bridge.spark import connect, session\n"
        "connect._TRIES = 2\n"
        "try: session.start('sc://127.0.0.1:1/;token=secret;use_ssl=false', {})\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    assert "SparkLost the Spark Connect server at sc://127.0.0.1:1 cannot be used" in done.stdout, done.stderr
    assert "secret" not in done.stdout + done.stderr
    assert done.returncode == 0


SESSIONS = """
from pgbridge import session as public
from pgbridge.bridge.spark import connect, session
from pgbridge.bridge.spark.settings import REQUIRED
import numpy as np, pyarrow as pa
from pgbridge.bridge.lake import source as stage
from pgbridge.bridge.spark.outcome import is_lost

spark = public.start(MASTER, {"spark.driver.memory": "3g", "spark.sql.shuffle.partitions": 3})
assert all(value in spark.conf.get(key) for key, value in REQUIRED.items())
assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
one, other = session.fork(spark), session.fork(spark)
one.conf.set("spark.databricks.delta.write.txnVersion", "5")
assert other.conf.get("spark.databricks.delta.write.txnVersion", None) is None
companion = session.companion(one, "x", {"spark.sql.shuffle.partitions": "9"})
assert companion.conf.get("spark.sql.shuffle.partitions") == "9"
driver = session.driver_of(one)
assert driver is session.driver_of(companion)
assert (driver.heap(), driver.lost(), driver.kill(), driver.executors_here) == (None, None, False, False)

connect.Connect.piece_bytes = 1000
rows = pa.table({"a": np.arange(300), "b": pa.array(["x"] * 300)})
assert stage.as_frame(one, rows).selectExpr("sum(a)").collect()[0][0] == 44850
with stage.arrow_stream_source(other, rows.schema, rows.to_batches(max_chunksize=50)) as pieces:
    assert pieces.count() == 300
assert stage.concatenated([one.range(i, i + 1) for i in range(700)]).count() == 700
session.interrupt(one)

try:
    connect.REQUIRED = {"spark.sql.extensions": "an.other.Extension"}
    connect._check(spark, "here")
except Exception as error:
    assert "--conf spark.sql.extensions=an.other.Extension" in str(error), error
else:
    raise AssertionError
finally:
    connect.REQUIRED = REQUIRED

one.stop()  # as if the server had closed it
try:
    one.range(1).collect()
except Exception as error:
    assert is_lost(error) and driver.lost(error), error
assert driver.lost()
next_one = driver.forget()
again = next_one.start({})
assert again.range(3).count() == 3 and next_one.lost() is None and driver.lost()
try:
    session.fork(other)
except Exception as error:
    assert "is gone" in str(error), error
else:
    raise AssertionError
next_one.stop(again)
print("done")
"""


@pytest.mark.soak  # a minute; tests/faults/test_connect.py kills a server in every run
def test_sessions_on_a_server(connect_server):
    """Settings, forks, companions, staged rows, the loss of a session; and the process ends at once, with them open."""
    done = run(f"MASTER = {connect_server.master!r}\n{SESSIONS}")
    *warnings, last = done.stdout.splitlines()
    assert (last, done.returncode) == ("done", 0), done.stderr
    assert "these cannot be set by a client" in "\n".join([*warnings, done.stderr])
