"""A resolution of Ivy's is remembered as long as it can be trusted."""

import pytest

from bridge.spark.jars import DeltaJars

PACKAGES = {"pyspark": "4.2.0", "delta-spark": "4.4.0"}


@pytest.fixture
def jars(tmp_path):
    """Two jars as Ivy names them: one of Delta's, and one that Spark has itself."""
    paths = [tmp_path / "io.delta_delta-storage-4.4.0.jar", tmp_path / "org.slf4j_slf4j-api-2.0.13.jar"]
    for path in paths:
        path.write_bytes(b"classes")
    return paths


@pytest.fixture
def delta_jars(tmp_path, jars):
    found = DeltaJars(tmp_path / "cache", PACKAGES)
    found.remember([jar.as_uri() for jar in jars], ["slf4j-api-2.0.17.jar", "spark-core_2.13-4.2.0.jar"])
    return found


def test_what_spark_has_itself_is_left_out(delta_jars, jars):
    assert delta_jars.known() == [str(jars[0])]


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
    delta_jars.remember([jar.as_uri() for jar in jars], [])
    assert delta_jars.known() is None


def test_without_a_place_to_remember_it_is_resolved_each_time(tmp_path, jars):
    (tmp_path / "file").touch()
    delta_jars = DeltaJars(tmp_path / "file" / "cache", PACKAGES)
    delta_jars.remember([jar.as_uri() for jar in jars], [])
    assert delta_jars.known() is None
