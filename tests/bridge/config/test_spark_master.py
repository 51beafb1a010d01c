"""What Spark's launcher takes as a master and as a heap, and what it would refuse after it has started a JVM."""

from __future__ import annotations

import pytest

from pgbridge.bridge.config.spark_master import check_master, heap_bytes, local_threads


@pytest.mark.parametrize(
    ("master", "threads"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[*]", -1),
        ("local[2, 4]", 2),
        ("local-cluster[2,1,1024]", None),
        ("spark://a:7077,b:7077", None),
        ("spark://[::1]:7077", None),
        ("yarn", None),
        ("k8s://https://kubernetes.internal:6443", None),
        ("k8s://host:6443", None),
        ("sc://host", None),
        ("sc://host:15002/;use_ssl=true;token=x", None),
    ],
)
def test_masters(master, threads):
    check_master(master)
    assert local_threads(master) == threads


@pytest.mark.parametrize(
    "master",
    [
        *(
            "",
            "lcal[2]",
            "Local[2]",
            "local[]",
            "local[-1]",
            "local[x]",
            "local[2",
            " local[2]",
            "local[0]",
            "local [2]",
        ),
        *("spark://", "spark://host", "spark://host:port", "spark://a:7077/x", "local-cluster[2,1]", "yarn-client"),
        *("mesos://a:5050", "k8s://ftp://a", "http://a"),
        *("sc://", "sc://:15002", "sc://host:port", "sc://host:999999", "sc://host/path"),
    ],
)
def test_masters_that_spark_refuses(master):
    with pytest.raises(ValueError, match=r"Spark does not know|no thread"):
        check_master(master)


def test_a_token_is_not_shown():
    with pytest.raises(ValueError, match="Spark does not know") as caught:
        check_master("sx://host/;token=s3cret")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("memory", "size"), [("450m", 450 << 20), ("2G", 2 << 30), ("460800k", 450 << 20), ("449m", None)]
)
def test_heaps(memory, size):
    if size:
        assert heap_bytes(memory) == size
    else:
        with pytest.raises(ValueError, match="Spark's own least"):
            heap_bytes(memory)


@pytest.mark.parametrize("memory", ["2gb", "1024", "1.5g", "", "g", "2 g"])
def test_sizes_that_the_jvm_does_not_read(memory):
    with pytest.raises(ValueError, match="must be a number with k, m, g or t"):
        heap_bytes(memory)
