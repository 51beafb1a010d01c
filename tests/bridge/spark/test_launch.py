"""Spark's JVM on this machine: Ivy is asked once, and what a user has set up stands.

A resolution of Ivy's is remembered as long as it can be trusted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from pgbridge.bridge.spark import launch
from pgbridge.bridge.spark.launch import DeltaJars, Launch
from pgbridge.bridge.spark.settings import DEFAULTS

WRITE = """
import sys
from pathlib import Path
from pgbridge.bridge.spark import session

spark = session.start("local[1]", {"spark.driver.memory": "512m"}, warehouses=["s3a://lake"], log=Path(sys.argv[2]))
spark.range(3).write.format("delta").save(sys.argv[1])
print(spark.read.format("delta").load(sys.argv[1]).count(), spark.sparkContext.getConf().get("spark.jars.packages"))
"""


@pytest.mark.soak  # it starts a JVM beside the run's own
def test_a_start_asks_ivy_no_more(spark, tmp_path):
    """The session of these tests has asked Ivy, or one before."""
    log = tmp_path / "spark.log"
    command = [sys.executable, "-c", WRITE, str(tmp_path / "table"), str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment())
    assert done.stdout.split() == ["3", "None"]
    assert "resolving dependencies" not in log.read_text()
    assert "WARN NativeCodeLoader" in log.read_text()
    assert done.stderr == ""  # the log of the daemon has its own lines only


@pytest.mark.parametrize("name", ["SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_DIST_CLASSPATH"])
def test_another_spark_is_started_by_pyspark(monkeypatch, name):
    monkeypatch.setenv(name, "mine")
    assert launch.delta_jars({}) is None


def test_a_users_jars_are_started_by_pyspark():
    assert launch.delta_jars({"spark.jars": "mine.jar"}) is None


def test_a_user_without_a_home_asks_ivy_each_time(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert launch.delta_jars({}) is None


def test_a_users_packages_are_resolved_beside_delta():
    settings = {"spark.jars.packages": "org.example:one:1.0,org.example:two:2.0"}
    builder = launch.with_packages(SparkSession.builder, settings)
    packages = builder._options["spark.jars.packages"].split(",")
    assert packages[1:] == ["org.example:one:1.0", "org.example:two:2.0"]
    assert packages[0].startswith("io.delta:delta-spark")


def test_what_spark_has_itself_is_not_fetched(monkeypatch):
    """Unless the user names it, or starts another Spark, which may have other jars."""
    settings = {"spark.jars.packages": "org.slf4j/slf4j-api:3.0", "spark.jars.excludes": "a:b"}
    excludes = launch.with_packages(SparkSession.builder, settings)._options["spark.jars.excludes"].split(",")
    assert excludes[0] == "a:b"
    assert {"*:hadoop-client-runtime", "*:parquet-column", "*:spark-core_2.13"} < set(excludes)
    assert "*:slf4j-api" not in excludes
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert launch.with_packages(SparkSession.builder, settings)._options["spark.jars.excludes"] == "a:b"


def test_a_start_that_takes_long_is_told(monkeypatch, tmp_path):
    times_s = iter([100.0, 104.0, 106.0, 107.0, 111.0, 116.0, 123.0])
    monkeypatch.setattr(launch, "time", SimpleNamespace(monotonic=lambda: next(times_s)))
    log = tmp_path / "spark.log"
    log.write_text("\tfound an earlier start's\n")
    starting = launch.Starting(log)
    assert starting.news() == {}
    assert starting.news() == {"seconds": 6}
    with log.open("a") as file:
        file.write("\tfound a#b;1 in central\n\tfound c#d;1 in central\n")
    assert starting.news() == {}
    assert starting.news() == {"seconds": 11, "jars": 2}
    with log.open("a") as file:
        file.write("downloading a …\n\t[SUCCESSFUL ] a#b (1ms)\ndownloading c …\n")
    told = starting.news()
    assert (told["seconds"], told["jars"], told["jars_fetched"]) == (16, 2, 1)
    assert "pgbridge prepare" in str(told["hint"])
    log.unlink()
    assert starting.news() == {"seconds": 23}


def test_a_users_packages_are_another_resolution(monkeypatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    none, one = launch.delta_jars({}), launch.delta_jars({"spark.jars.packages": "org.example:one:1.0"})
    assert none is not None
    assert one is not None
    assert one.record != none.record


def gateway_exited():
    return PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})


def test_a_download_that_is_cut_off_is_tried_again():
    errors, session_ = [gateway_exited(), gateway_exited()], MagicMock(SparkSession)

    def start():
        if errors:
            raise errors.pop()
        return session_

    assert launch._downloading(start) is session_


@pytest.mark.parametrize(("error", "times"), [(gateway_exited(), 3), (ValueError("no"), 1)])
def test_what_fails_each_time_is_told(error, times):
    tried = []

    def start():
        tried.append(1)
        raise error

    with pytest.raises(type(error)):
        launch._downloading(start)
    assert len(tried) == times


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """PySpark's own start, with a cache folder without records."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in launch._OTHER_STARTS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("new", [None, "new.jsa"])
def test_a_jvm_with_the_known_jars_uses_the_archive_of_their_classes_or_makes_one(monkeypatch, tmp_path, new):
    jar = tmp_path / "io.delta_delta-storage-4.4.0.jar"
    jar.write_bytes(b"classes")
    jars = launch.delta_jars({})
    assert jars is not None
    jars.remember([jar.as_uri()])
    launched = []
    monkeypatch.setattr(launch, "started", lambda builder, _: launched.append(dict(builder._options)))
    monkeypatch.setattr(SparkContext, "_gateway", None)
    archive = jars.archive
    for _ in range(2):
        launch.start_local(
            "local[1]", {"spark.driver.extraJavaOptions": "-Xss4m"}, Launch(new_archive=tmp_path / new if new else None)
        )
        archive.touch()
    without, with_archive = (options["spark.driver.extraJavaOptions"] for options in launched)
    if new:
        assert f'-XX:ArchiveClassesAtExit="{tmp_path / new}"' in without
        assert with_archive == without
    else:
        assert without == "-Xss4m"
        assert with_archive.startswith(f'-Xss4m -XX:SharedArchiveFile="{archive}"')


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("resolved", [["delta", "store", "storage"], ["delta", "store"]], ids=["all", "other"])
def test_with_more_jars_deltas_come_first_and_their_archive_is_used(tmp_path, resolved):
    """Unless there is an archive of all of them, or some of Delta's jars are others."""
    paths = {name: tmp_path / f"group_{name}-4.4.0.jar" for name in ("delta", "store", "storage")}
    for path in paths.values():
        path.write_bytes(b"classes")
    deltas, more = launch.delta_jars({}), launch.delta_jars({"spark.jars.packages": "a:store:1"})
    assert deltas is not None
    assert more is not None
    deltas.remember([paths[name].as_uri() for name in ("delta", "storage")])
    known = [str(paths[name]) for name in resolved]
    in_turn = [str(paths[name]) for name in ("delta", "storage", "store")]
    expected = (in_turn, deltas.archive) if "storage" in resolved else (known, more.archive)
    assert more.class_path(known) == expected
    more.archive.touch()
    assert more.class_path(known) == (known, more.archive)


@pytest.mark.parametrize(
    ("cores", "users", "options"), [(2, None, launch.ON_FEW_CORES), (3, None, None), (2, "-Xss4m", "-Xss4m")]
)
def test_the_collector_is_chosen_on_few_cores_unless_the_user_has_options(monkeypatch, cores, users, options):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(launch, "delta_jars", lambda _: None)
    launched = []
    monkeypatch.setattr(launch, "started", lambda builder, _: launched.append(dict(builder._options)))
    launch.start_local("local[1]", {} if users is None else {"spark.driver.extraJavaOptions": users}, Launch())
    assert launched[0].get("spark.driver.extraJavaOptions") == options


def test_the_class_path_is_for_one_launch():
    with launch._environment("SPARK_DIST_CLASSPATH", "a.jar:b.jar"):
        assert os.environ["SPARK_DIST_CLASSPATH"] == "a.jar:b.jar"
    assert "SPARK_DIST_CLASSPATH" not in os.environ


@pytest.mark.soak  # 12 s for what nobody would lose but time by
def test_generated_classes_are_compiled_once(spark):
    """Spark's default would compile those of twenty tables again and again."""
    assert int(spark.conf.get("spark.sql.codegen.cache.maxEntries")) == int(
        DEFAULTS["spark.sql.codegen.cache.maxEntries"]
    )
    compiled = spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    expressions = [[f"id + {n} AS a", f"id * {n + 2} AS b"] for n in range(120)]
    for columns in expressions:
        spark.range(1).selectExpr(*columns).collect()
    before = compiled.getCount()
    for columns in expressions:
        spark.range(1).selectExpr(*columns).collect()
    assert compiled.getCount() - before < 12


@pytest.mark.parametrize(
    ("conf", "variable", "expected"),
    [
        ({}, None, sys.executable),
        ({}, "/theirs", "/theirs"),
        ({"spark.pyspark.python": "./environment/bin/python"}, "/theirs", "./environment/bin/python"),
    ],
)
def test_whose_python(monkeypatch, conf, variable, expected):
    if variable is None:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    else:
        monkeypatch.setenv("PYSPARK_PYTHON", variable)
    launch.choose_python(conf)
    assert os.environ["PYSPARK_PYTHON"] == expected


def clean_environment():
    return {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_GATEWAY"))}


def test_a_large_log_is_set_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "_LOG_BYTES", 3)
    log = tmp_path / "spark.log"
    for text in (b"one", b"two!", b"three"):
        with launch._opened(log) as file:
            file.write(text)
    assert log.read_bytes() == b"three"
    assert (tmp_path / "spark.log.1").read_bytes() == b"onetwo!"
    assert log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("settings", "environment", "kept"),
    [
        ({}, {}, False),
        ({"spark.driver.host": "daemon.internal"}, {}, True),
        ({"spark.driver.bindAddress": "::"}, {}, True),
        ({}, {"SPARK_LOCAL_IP": "10.0.0.1"}, True),
    ],
)
def test_where_a_jvm_listens(monkeypatch, settings, environment, kept):
    """On loopback, its UI too, if the user does not say where."""
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    own = dict(settings)
    with launch._on_loopback(own):
        assert (own == settings) is kept
        assert os.environ["SPARK_LOCAL_IP" if not kept else "HOME"] == ("127.0.0.1" if not kept else os.environ["HOME"])
    assert os.environ.get("SPARK_LOCAL_IP") == environment.get("SPARK_LOCAL_IP")
    assert kept or set(own.values()) == {"127.0.0.1"}


PACKAGES = {"pyspark": "4.2.0", "delta-spark": "4.4.0"}


@pytest.fixture
def jars(tmp_path):
    """Two jars as Ivy names them."""
    paths = [tmp_path / "io.delta_delta-storage-4.4.0.jar", tmp_path / "org.slf4j_slf4j-api-2.0.13.jar"]
    for path in paths:
        path.write_bytes(b"classes")
    return paths


@pytest.fixture
def delta_jars(tmp_path, jars):
    found = DeltaJars(tmp_path / "cache", PACKAGES)
    found.remember([jar.as_uri() for jar in jars])
    return found


def test_a_resolution_is_known(delta_jars, jars):
    assert delta_jars.known() == [str(jar) for jar in jars]


def test_nothing_is_known_before(tmp_path):
    assert DeltaJars(tmp_path / "cache", PACKAGES).known() is None


def test_other_packages_are_another_resolution(delta_jars):
    assert DeltaJars(delta_jars.folder, PACKAGES | {"delta-spark": "4.4.1"}).known() is None


def test_a_jar_that_has_vanished_is_resolved_again(delta_jars, jars):
    jars[0].unlink()
    assert delta_jars.known() is None


def test_a_jar_that_was_cut_short_is_resolved_again(delta_jars, jars):
    jars[0].write_bytes(b"cl")
    assert delta_jars.known() is None


@pytest.mark.parametrize("record", ["", "{}", "[]", '{"jars": 1}', '{"jars": []}', '{"jars": [["a"]]}', "\xff"])
def test_a_damaged_record_is_no_record(delta_jars, record):
    delta_jars.record.write_text(record, encoding="latin-1")
    assert delta_jars.known() is None


@pytest.mark.parametrize("version", ["a:b:1.0-SNAPSHOT", "a:b:latest.release", "a:b:[1.0,2.0)", "a:b:1.+"])
def test_a_version_that_may_change_is_resolved_each_time(tmp_path, jars, version):
    delta_jars = DeltaJars(tmp_path / "cache", PACKAGES | {"spark.jars.packages": version})
    delta_jars.remember([jar.as_uri() for jar in jars])
    assert delta_jars.known() is None


def test_without_a_place_to_remember_it_is_resolved_each_time(tmp_path, jars):
    (tmp_path / "file").touch()
    delta_jars = DeltaJars(tmp_path / "file" / "cache", PACKAGES)
    delta_jars.remember([jar.as_uri() for jar in jars])
    assert delta_jars.known() is None
